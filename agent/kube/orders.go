package kube

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"
)

// MaxOrders is the maximum number of orders at a time, as many as fences can be marked
// (agent/podfence).
const MaxOrders = 256

// EndedDelay is how long evictd waits for the processes of a pod that may run twice before the
// order reaches StageEnded.
const EndedDelay = 300 * time.Millisecond

// DefaultFenceTimeout is the default of OrdersOptions.FenceTimeout.
const DefaultFenceTimeout = time.Hour

// The errors of [Orders.Begin]. The pod can't be reported, so it must not be fenced.
var (
	// ErrTooManyOrders means that MaxOrders orders are pending.
	ErrTooManyOrders = errors.New("256 orders are pending, which is the maximum")
	// ErrForbidden means that the API server has refused to report the pod, see
	// [Orders.Forbidden].
	ErrForbidden = errors.New("the API server refuses to report the eviction of this pod")
	// ErrEnding means that the pod's last order has timed out and its fence is being lifted.
	ErrEnding = errors.New("the fence of the pod is being lifted")
)

// Eviction is the eviction of a pod that evictd-kube has to report.
type Eviction struct {
	UID, Namespace, Name string
	// Exclusive is why two instances of the pod must not run at the same time
	// ([Pod.Exclusive]); empty if they may.
	Exclusive string
	// Reason and Message are those of the pod's status. Message is cut at maxMessage bytes.
	Reason, Message string
	// Annotations are those of the event. They are left out if they take more than
	// maxAnnotations bytes.
	Annotations map[string]string
	// Decided is when the pod was chosen; zero means now. Only its milliseconds are used.
	Decided time.Time
	// Grace is the grace period of a soft eviction; 0 if the pod was killed. It is passed on in
	// whole seconds, at least 1.
	Grace time.Duration
}

// SavedOrder is an order as it is saved.
type SavedOrder struct {
	Order Order `json:"order"`
	// Began is when the order was made, and Killed when it reached StageKilled; zero if it did
	// not. Order.Decided is never converted to another clock, because evictd-kube recognizes by
	// it what it has written.
	Began  time.Time `json:"began"`
	Killed time.Time `json:"killed,omitzero"`
	// Answer is the last answer, or the first final one at Answered.
	Answer   Answer    `json:"answer,omitempty"`
	Why      string    `json:"why,omitempty"`
	Answered time.Time `json:"answered,omitzero"`
	// CgroupGone means that the pod's cgroup was removed.
	CgroupGone bool `json:"cgroupGone,omitempty"`
}

// OrdersOptions configure Orders.
type OrdersOptions struct {
	// FenceTimeout is how long an order waits for a final answer, and then for the removal of
	// the pod's cgroup; 0 means DefaultFenceTimeout.
	FenceTimeout time.Duration
	// Lift is called by Run when an order ends while the pod's cgroup may exist: the fence must
	// be lifted, because nothing else would end it. The order is pending until Lift returns.
	Lift func(uid, why string)
	// Save is called when the orders must be saved soon. It must not block.
	Save func()
	Log  *slog.Logger
}

// Orders are evictd's orders to evictd-kube. The methods are safe for concurrent use and never
// wait for evictd-kube or for I/O. The callbacks are called without the mutex.
type Orders struct {
	o  OrdersOptions
	mu sync.Mutex
}

// NewOrders returns Orders without any.
func NewOrders(o OrdersOptions) *Orders { return &Orders{o: o} }

// Restore loads the orders of an earlier evictd of this boot, before Run and the first
// session. Their times but Order.Decided are already converted to the present clock
// ([SavedOrder.EachTime]). It ignores orders that are not valid.
func (o *Orders) Restore(saved []SavedOrder, now time.Time) {}

// Saved returns the orders that are pending, the oldest first.
func (o *Orders) Saved() []SavedOrder { return nil }

// EachTime calls f with each time that is set and that moves with the wall clock.
func (s *SavedOrder) EachTime(f func(*time.Time)) {}

// Begin begins the order for an eviction and returns its ID, for the mark of the pod's fence.
// While an order for the UID is pending, it returns the ID of that one, and an eviction without
// Grace means that the pod was killed: StageStopping becomes StageKilled. It fails with
// ErrTooManyOrders, ErrForbidden, ErrEnding, or for an eviction that is not valid: then the pod
// can't be reported and must not be fenced.
func (o *Orders) Begin(e Eviction) (id string, err error) { return "", nil }

// Ended records that no process of the pod's containers is left.
func (o *Orders) Ended(uid string) {}

// Refused withdraws an order because no process of the pod was signalled. It does not call
// Lift: the caller lifts the fence if it has set one.
func (o *Orders) Refused(uid, why string) {}

// CgroupGone records that the pod's cgroup was removed, so that no process of the pod is left
// either. The order ends when its answer is final.
func (o *Orders) CgroupGone(uid string) {}

// Pending reports whether an order for the pod is pending.
func (o *Orders) Pending(uid string) bool { return false }

// Forbidden reports whether the API server has refused to report the eviction of the pod. It
// must not be evicted again while evictd runs.
func (o *Orders) Forbidden(uid string) bool { return false }

// Run carries out what depends on time, and calls Lift, until ctx ends.
func (o *Orders) Run(ctx context.Context) { <-ctx.Done() }

// OrdersStatus describes the orders.
type OrdersStatus struct {
	// Pending are the orders, the oldest first. Unanswered is how many of them have no final
	// answer.
	Pending    []PendingOrder
	Unanswered int
	// Forbidden is the number of pods that are not evicted because their report was forbidden.
	Forbidden int
	// These count since the start: orders that began, and of them those for a pod with an
	// earlier order (Revived), without room (Rejected), ended by the timeout (TimedOut), and
	// ended by lifting a fence for whatever reason (Lifted).
	Begun, Revived, Rejected, TimedOut, Lifted uint64
	// Answers counts the answers. An answer that repeats the one before counts once, except
	// AnswerAsserted: each is a report that the kubelet had undone.
	Answers map[Answer]uint64
	// Unknown counts the answers to orders that are not pending.
	Unknown uint64
}

// PendingOrder describes an order.
type PendingOrder struct {
	Order  Order
	Began  time.Time
	Answer Answer // "" before the first
	Why    string
	// CgroupGone means that only the answer is waited for.
	CgroupGone bool
}

// Status returns the present status.
func (o *Orders) Status() OrdersStatus { return OrdersStatus{} }
