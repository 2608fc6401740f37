package cri

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"google.golang.org/grpc"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// maxSeconds is the longest grace that a runtime, which turns it into a
// time.Duration, does not take for a negative one.
const maxSeconds = int64(math.MaxInt64 / time.Second)

// StopContainer has the runtime send the container its stop signal and, grace
// later, SIGKILL; grace 0 kills at once. CRI counts whole seconds: grace is rounded
// up, so that no container gets less than it was promised. The call returns when
// the container has exited, at the latest grace plus [StopMargin] from now
// (ErrTimeout). A container that is gone counts as stopped.
func (c *Client) StopContainer(ctx context.Context, id string, grace time.Duration) error {
	op := "stop container " + id
	if err := checkID(id); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	if grace < 0 {
		return fmt.Errorf("%s: negative grace period %v", op, grace)
	}
	seconds := int64(grace / time.Second)
	if grace%time.Second != 0 && seconds < maxSeconds {
		seconds++
	}
	timeout := grace + StopMargin
	if timeout < grace {
		timeout = grace
	}
	return gone(c.call(ctx, timeout, op, func(ctx context.Context, opts ...grpc.CallOption) error {
		_, err := c.runtime.StopContainer(ctx, &runtimev1.StopContainerRequest{ContainerId: id, Timeout: seconds}, opts...)
		return err
	}))
}

// RemoveContainer removes the container, killing it first if it runs. It ends
// after [StopMargin]; a container that is gone counts as removed.
func (c *Client) RemoveContainer(ctx context.Context, id string) error {
	return c.remove(ctx, "remove container "+id, id, func(ctx context.Context, opts ...grpc.CallOption) error {
		_, err := c.runtime.RemoveContainer(ctx, &runtimev1.RemoveContainerRequest{ContainerId: id}, opts...)
		return err
	})
}

// StopSandbox kills the sandbox and every container in it, without grace, and
// takes its network down. It ends after [StopMargin]; a sandbox that is gone counts
// as stopped.
func (c *Client) StopSandbox(ctx context.Context, id string) error {
	return c.remove(ctx, "stop sandbox "+id, id, func(ctx context.Context, opts ...grpc.CallOption) error {
		_, err := c.runtime.StopPodSandbox(ctx, &runtimev1.StopPodSandboxRequest{PodSandboxId: id}, opts...)
		return err
	})
}

// RemoveSandbox removes the sandbox and every container in it. It ends after
// [StopMargin]; a sandbox that is gone counts as removed.
func (c *Client) RemoveSandbox(ctx context.Context, id string) error {
	return c.remove(ctx, "remove sandbox "+id, id, func(ctx context.Context, opts ...grpc.CallOption) error {
		_, err := c.runtime.RemovePodSandbox(ctx, &runtimev1.RemovePodSandboxRequest{PodSandboxId: id}, opts...)
		return err
	})
}

func (c *Client) remove(ctx context.Context, op, id string, f func(context.Context, ...grpc.CallOption) error) error {
	if err := checkID(id); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return gone(c.call(ctx, StopMargin, op, f))
}

// gone forgives that there was nothing left to do.
func gone(err error) error {
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}
