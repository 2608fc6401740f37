package pods

import (
	"context"
	"errors"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/cri"
)

var (
	// ErrPartial is returned with a list that is incomplete.
	ErrPartial = errors.New("the list is not complete")
	// ErrUnwatchable means that a runtime can't report changes.
	ErrUnwatchable = errors.New("changes can't be watched")
)

// Runtime lists what runs. List is not called concurrently with itself, and returns in
// bounded time even if the runtime hangs.
type Runtime interface {
	// Name identifies the runtime in logs: a socket, an address.
	Name() string
	// List returns what exists now. With an error the list is used only if that is
	// ErrPartial.
	List(ctx context.Context) (List, error)
	// Watch calls changed after changes, until ctx ends or changes can't be reported any
	// more, and returns the reason. It need not report each change.
	Watch(ctx context.Context, changed func()) error
}

// Specifications return what pods are: what their owners requested. They take precedence
// over what is deduced from the runtime. They answer from memory, without I/O: an Inventory
// calls them for each pod of each list, and waiting would delay the list. After a change,
// [Inventory.Refresh] applies it.
type Specifications interface {
	// Specification returns a pod's priority, QoS class, requests, tolerations, init
	// containers and so on; nil if they are not known, or contradict running. Its usage is
	// ignored, and the Inventory does not change it. running is the pod as the kubelet
	// described it to the runtime: UID, names, labels, whether a kubelet made it and
	// whether it is static, the QoS class of its cgroup (empty if the cgroup's name shows
	// none), and a critical priority if its oom_score_adj shows one.
	Specification(running *evict.Pod) *evict.Pod
}

// List is the answer of a runtime. An Inventory keeps it and does not change it.
type List struct {
	Pods []Pod
	// Software and Version identify the runtime.
	Software, Version string
	// PID is the process that answered; 0 if not known.
	PID int
}

// Pod is a pod in a runtime's list.
type Pod struct {
	UID        string
	Namespace  string
	Name       string
	Sandbox    Sandbox
	Containers []Container
}

// Sandbox is a pod's sandbox. Its ID is unique; a pod whose sandbox has none is left out.
// Err is why only the data of the list are known.
type Sandbox struct {
	cri.SandboxDetail
	Err error
}

// Container is a container in any state. Err is why only the data of the list are known.
type Container struct {
	cri.ContainerDetail
	Err error
}

// live reports whether the container may use resources: one whose state the runtime does
// not know may run.
func (c *Container) live() bool { return c.State != cri.StateExited }

// running reports whether the container counts as running.
func (c *Container) running() bool {
	return c.State == cri.StateRunning || c.State == cri.StateUnknown
}
