package act

import (
	"context"
	"time"

	"github.com/evictd/evictd/agent/evict"
)

// Job is an order with what names the parts of the pod that it is about.
type Job struct {
	Order evict.Order
	// SandboxID is the pod's sandbox. Owned tells that no kubelet made it, so
	// that it is evictd's to stop.
	SandboxID  string
	Owned      bool
	Containers []evict.ContainerHandle
	// Turns is the order in which the containers are asked to stop, where there
	// is one; without, all are at once. It concerns no kill.
	Turns []Turn
	Guard *evict.Guard
}

// Turn is containers of a pod that are asked to stop together, when those of
// the turns before have ended.
type Turn struct {
	// IDs are the containers'. One that no turn names is of the first.
	IDs []string
	// Latest is when they are asked although others have not ended, counted from
	// the beginning.
	Latest time.Duration
}

// Stage is how far an order has come.
type Stage uint8

// The stages, in the order in which they are reached. A stage may be skipped.
const (
	// Signalled: SIGKILL was sent, or the runtime was asked to stop.
	Signalled Stage = iota
	// Hardened: the grace period was cut short.
	Hardened
	// FirstGone and LastGone: the first process of the pod has gone; none of
	// its containers' processes is left.
	FirstGone
	LastGone
	// Refused: the order could not be carried out at all.
	Refused
	// Finished: the runtime knows, nothing more is to be done. Err is what
	// went wrong with that.
	Finished
)

// Progress tells that an order reached a stage.
type Progress struct {
	UID   string
	Stage Stage
	Time  time.Time
	// Processes is how many were signalled.
	Processes int
	Err       error
}

// Runtime is what an Actuator wants of a container runtime.
type Runtime interface {
	// StopContainer ends a container, at once where the grace is 0. One that
	// is gone already is no error.
	StopContainer(ctx context.Context, id string, grace time.Duration) error
	// StopSandbox ends a sandbox with what is left in it.
	StopSandbox(ctx context.Context, id string) error
}

// Actuator carries out orders.
type Actuator interface {
	// Evict begins with an order and returns when what is urgent is done: for
	// a hard one, when every process has been signalled.
	Evict(ctx context.Context, job Job)
	// Follow goes on where a Striker has struck the pod of an order: it waits for
	// its end, tells the runtime, and closes the Hold.
	Follow(ctx context.Context, order evict.Order, hold *Hold, strike Strike)
	// Harden ends the grace of a pod that is being evicted softly: it kills what
	// the job says is left of it, also where the soft eviction has ended.
	Harden(ctx context.Context, job Job)
}
