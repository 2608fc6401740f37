package cri

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// State is the state of a container.
type State uint8

// The states of CRI. Unknown includes states that a later CRI adds; such a container
// may be running.
const (
	StateUnknown State = iota
	StateCreated
	StateRunning
	StateExited
)

func (s State) String() string {
	switch s {
	case StateCreated:
		return "created"
	case StateRunning:
		return "running"
	case StateExited:
		return "exited"
	}
	return "unknown"
}

// Sandbox is a pod sandbox. Values that the author of the pod chooses (name, labels,
// annotations) are not validated.
type Sandbox struct {
	ID        string
	Name      string
	Namespace string
	UID       string
	Attempt   uint32    // how often the kubelet has recreated the sandbox of this pod
	Created   time.Time // zero if not reported
	Ready     bool
	Labels    map[string]string
	// Annotations are those of the sandbox, and for a kubelet's pod those of the pod.
	Annotations map[string]string
	// RuntimeHandler is the RuntimeClass handler, "" for the runtime's default.
	RuntimeHandler string
}

// Container is a container of a sandbox.
type Container struct {
	ID          string
	SandboxID   string
	Name        string
	Attempt     uint32
	State       State
	Created     time.Time // zero if not reported
	Image       string    // as requested
	ImageRef    string    // as resolved: a digest or an image ID
	Labels      map[string]string
	Annotations map[string]string
}

// Sandboxes lists the sandboxes, ready or not, ordered by ID. If some entries are
// unusable (no valid ID, no metadata, or a duplicate ID), it returns the others with
// [ErrMalformed].
//
// A list above 16 MiB is read as a stream if the runtime supports that (CRI of
// Kubernetes 1.36), and is an error otherwise.
func (c *Client) Sandboxes(ctx context.Context) ([]Sandbox, error) {
	const op = "list sandboxes"
	var items []*runtimev1.PodSandbox
	err := c.list(ctx, op, func(ctx context.Context, opts ...grpc.CallOption) error {
		resp, err := c.runtime.ListPodSandbox(ctx, &runtimev1.ListPodSandboxRequest{}, opts...)
		items = resp.GetItems()
		return err
	}, func(ctx context.Context, opts ...grpc.CallOption) error {
		stream, err := c.runtime.StreamPodSandboxes(ctx, &runtimev1.StreamPodSandboxesRequest{}, opts...)
		items = nil
		return drain(stream, err, func(r *runtimev1.StreamPodSandboxesResponse) { items = append(items, r.GetPodSandboxes()...) })
	})
	if err != nil {
		return nil, err
	}
	return distinct(op, items, sandboxOf, func(s Sandbox) string { return s.ID })
}

// Containers lists the containers in any state, ordered by ID. It handles unusable
// entries and lists above 16 MiB as [Client.Sandboxes] does.
func (c *Client) Containers(ctx context.Context) ([]Container, error) {
	const op = "list containers"
	var items []*runtimev1.Container
	err := c.list(ctx, op, func(ctx context.Context, opts ...grpc.CallOption) error {
		resp, err := c.runtime.ListContainers(ctx, &runtimev1.ListContainersRequest{}, opts...)
		items = resp.GetContainers()
		return err
	}, func(ctx context.Context, opts ...grpc.CallOption) error {
		stream, err := c.runtime.StreamContainers(ctx, &runtimev1.StreamContainersRequest{}, opts...)
		items = nil
		return drain(stream, err, func(r *runtimev1.StreamContainersResponse) { items = append(items, r.GetContainers()...) })
	})
	if err != nil {
		return nil, err
	}
	return distinct(op, items, containerOf, func(c Container) string { return c.ID })
}

// list reads a list in one message or, if that is too large for either side, as a
// stream. A user who can annotate pods can make the list too large.
func (c *Client) list(ctx context.Context, op string, whole, stream func(context.Context, ...grpc.CallOption) error) error {
	err := c.call(ctx, c.callTimeout, op, whole)
	if status.Code(err) != codes.ResourceExhausted {
		return err
	}
	if streamErr := c.call(ctx, c.callTimeout, op, stream); !errors.Is(streamErr, ErrUnimplemented) {
		return streamErr
	}
	return err
}

// drain reads a stream to its end and calls add for each message. err is the error
// of opening the stream.
func drain[R any](stream grpc.ServerStreamingClient[R], err error, add func(*R)) error {
	if err != nil {
		return err
	}
	for {
		resp, err := stream.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		add(resp)
	}
}

// distinct converts a list and orders it by ID. It drops all entries with a duplicate
// ID: choosing one would be a guess, and a container mistaken for that of another pod
// could be killed in its place.
func distinct[P, T any](op string, items []P, convert func(P) (T, error), id func(T) string) ([]T, error) {
	list := make([]T, 0, len(items))
	var bad []error
	for _, item := range items {
		v, err := convert(item)
		if err != nil {
			bad = append(bad, err)
			continue
		}
		list = append(list, v)
	}
	slices.SortStableFunc(list, func(a, b T) int { return cmp.Compare(id(a), id(b)) })
	unique := list[:0]
	for i := 0; i < len(list); {
		next := i + 1
		for next < len(list) && id(list[next]) == id(list[i]) {
			next++
		}
		if next == i+1 {
			unique = append(unique, list[i])
		} else {
			bad = append(bad, fmt.Errorf("id %s occurs %d times", id(list[i]), next-i))
		}
		i = next
	}
	clear(list[len(unique):])
	if len(bad) > 0 {
		return unique, fmt.Errorf("%s: %w: %d of its %d entries: %w", op, ErrMalformed, len(items)-len(unique), len(items), bad[0])
	}
	return unique, nil
}

func sandboxOf(s *runtimev1.PodSandbox) (Sandbox, error) {
	if err := checkID(s.GetId()); err != nil {
		return Sandbox{}, fmt.Errorf("sandbox: %w", err)
	}
	if s.GetMetadata() == nil {
		return Sandbox{}, fmt.Errorf("sandbox %s: no metadata", s.GetId())
	}
	return Sandbox{
		ID:             s.GetId(),
		Name:           s.GetMetadata().GetName(),
		Namespace:      s.GetMetadata().GetNamespace(),
		UID:            s.GetMetadata().GetUid(),
		Attempt:        s.GetMetadata().GetAttempt(),
		Created:        nanoseconds(s.GetCreatedAt()),
		Ready:          s.GetState() == runtimev1.PodSandboxState_SANDBOX_READY,
		Labels:         s.GetLabels(),
		Annotations:    s.GetAnnotations(),
		RuntimeHandler: s.GetRuntimeHandler(),
	}, nil
}

func containerOf(c *runtimev1.Container) (Container, error) {
	if err := checkID(c.GetId()); err != nil {
		return Container{}, fmt.Errorf("container: %w", err)
	}
	if err := checkID(c.GetPodSandboxId()); err != nil {
		return Container{}, fmt.Errorf("container %s: sandbox: %w", c.GetId(), err)
	}
	if c.GetMetadata() == nil {
		return Container{}, fmt.Errorf("container %s: no metadata", c.GetId())
	}
	return Container{
		ID:          c.GetId(),
		SandboxID:   c.GetPodSandboxId(),
		Name:        c.GetMetadata().GetName(),
		Attempt:     c.GetMetadata().GetAttempt(),
		State:       stateOf(c.GetState()),
		Created:     nanoseconds(c.GetCreatedAt()),
		Image:       c.GetImage().GetImage(),
		ImageRef:    c.GetImageRef(),
		Labels:      c.GetLabels(),
		Annotations: c.GetAnnotations(),
	}, nil
}

func stateOf(s runtimev1.ContainerState) State {
	switch s {
	case runtimev1.ContainerState_CONTAINER_CREATED:
		return StateCreated
	case runtimev1.ContainerState_CONTAINER_RUNNING:
		return StateRunning
	case runtimev1.ContainerState_CONTAINER_EXITED:
		return StateExited
	}
	return StateUnknown
}

// nanoseconds converts a CRI timestamp. 0 means "not specified", and CRI-O sends a
// negative number for a zero time.Time; both become the zero time.
func nanoseconds(ns int64) time.Time {
	if ns <= 0 {
		return time.Time{}
	}
	return time.Unix(0, ns)
}

// checkID checks an ID by the rules of the runtimes: containerd's identifiers and the
// hex strings of CRI-O and docker. An empty ID in a request would mean all.
func checkID(id string) error {
	if id == "" {
		return errors.New("empty id")
	}
	if len(id) > 255 || strings.IndexFunc(id, func(r rune) bool {
		return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '-' || r == '_' || r == '.')
	}) >= 0 {
		return fmt.Errorf("invalid id %.80q", id)
	}
	return nil
}
