package pods

import (
	"context"
	"errors"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/cri"
)

var (
	// ErrPartial comes with a list that lacks some of what there is.
	ErrPartial = errors.New("the list is not complete")
	// ErrUnwatchable says that a runtime can't tell of changes.
	ErrUnwatchable = errors.New("changes can't be watched")
)

// Runtime lists what runs. Its List is not called concurrently with itself, and
// ends soon, whatever becomes of the other side.
type Runtime interface {
	// Name names the runtime for people: a socket, an address.
	Name() string
	// List lists what is there now. With an error the list counts only where
	// that is ErrPartial.
	List(ctx context.Context) (List, error)
	// Watch calls changed whenever something did, until ctx ends or that can't
	// be told any more, and returns why. It need not tell of every change.
	Watch(ctx context.Context, changed func()) error
}

// Specifications knows what pods are: what their makers asked for, which is believed
// before anything that is concluded from what runs. It answers from memory, without
// I/O: an Inventory asks for every pod of each list, and a source that waited would
// withhold the list. [Inventory.Refresh] makes a later answer count.
type Specifications interface {
	// Specification returns the pod of a UID: its priority, QoS class, requests,
	// tolerations, init containers and the like; nil where it is not known. Its usage
	// is not looked at, and nothing in it is changed.
	Specification(uid string) *evict.Pod
}

// List is what a runtime knows. An Inventory keeps it and changes nothing in it.
type List struct {
	Pods []Pod
	// Software and Version are what the other side says that it is.
	Software, Version string
	// PID is the process that answered; 0 is not known.
	PID int
}

// Pod is a pod as a runtime lists it.
type Pod struct {
	UID        string
	Namespace  string
	Name       string
	Sandbox    Sandbox
	Containers []Container
}

// Sandbox is a pod's sandbox. Err says why only what a list tells is known of
// it.
type Sandbox struct {
	cri.SandboxDetail
	Err error
}

// Container is a container in any state. Err says why only what a list tells is
// known of it.
type Container struct {
	cri.ContainerDetail
	Err error
}

// live reports whether the container holds something, or may: what the runtime
// has lost sight of may run.
func (c *Container) live() bool { return c.State != cri.StateExited }

// running reports whether the container counts as running.
func (c *Container) running() bool {
	return c.State == cri.StateRunning || c.State == cri.StateUnknown
}
