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

// maxSeconds is the longest grace period that does not overflow when a runtime
// converts it to a time.Duration.
const maxSeconds = int64(math.MaxInt64 / time.Second)

// StopContainer makes the runtime send the container its stop signal and, after
// grace, SIGKILL; grace 0 kills at once. CRI counts whole seconds, so grace is
// rounded up. StopContainer returns when the container has exited, or fails with
// ErrTimeout after grace plus [StopMargin]. A container that does not exist counts
// as stopped.
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
	return ignoreNotFound(c.call(ctx, timeout, op, func(ctx context.Context, opts ...grpc.CallOption) error {
		_, err := c.runtime.StopContainer(ctx, &runtimev1.StopContainerRequest{ContainerId: id, Timeout: seconds}, opts...)
		return err
	}))
}

// RemoveContainer removes the container, killing it first if it runs. It fails with
// ErrTimeout after [StopMargin]. A container that does not exist counts as removed.
func (c *Client) RemoveContainer(ctx context.Context, id string) error {
	return c.remove(ctx, "remove container "+id, id, func(ctx context.Context, opts ...grpc.CallOption) error {
		_, err := c.runtime.RemoveContainer(ctx, &runtimev1.RemoveContainerRequest{ContainerId: id}, opts...)
		return err
	})
}

// StopSandbox kills every process of the sandbox and its containers, without grace,
// and tears its network down. It fails with ErrTimeout after [StopMargin]. A sandbox
// that does not exist counts as stopped.
func (c *Client) StopSandbox(ctx context.Context, id string) error {
	return c.remove(ctx, "stop sandbox "+id, id, func(ctx context.Context, opts ...grpc.CallOption) error {
		_, err := c.runtime.StopPodSandbox(ctx, &runtimev1.StopPodSandboxRequest{PodSandboxId: id}, opts...)
		return err
	})
}

// RemoveSandbox removes the sandbox and every container in it. It fails with
// ErrTimeout after [StopMargin]. A sandbox that does not exist counts as removed.
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
	return ignoreNotFound(c.call(ctx, StopMargin, op, f))
}

// ignoreNotFound returns nil for ErrNotFound, and err otherwise.
func ignoreNotFound(err error) error {
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}
