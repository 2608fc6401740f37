package kube

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"
)

// MaxOrders is the maximum number of orders at a time, as many as fences can be marked
// (agent/podfence).
const MaxOrders = 256

// maxRefusals is the maximum number of orders for pods that had not started. While the API server
// does not answer, a tenant can have as many pods refused as it creates; the rest is for evictions.
const maxRefusals = MaxOrders / 4

// EndedDelay is how long evictd waits for the processes of a pod that may run twice before the
// order reaches StageEnded.
const EndedDelay = 300 * time.Millisecond

// DefaultFenceTimeout is the default of OrdersOptions.FenceTimeout.
const DefaultFenceTimeout = time.Hour

// The errors of [Orders.Begin]. The pod can't be reported, so it must not be fenced.
var (
	// ErrTooManyOrders means that MaxOrders orders are pending, and ErrTooManyRefusals that
	// maxRefusals are, of pods that had not started.
	ErrTooManyOrders   = fmt.Errorf("%d orders to evictd-kube are pending, which is the maximum", MaxOrders)
	ErrTooManyRefusals = fmt.Errorf("%d orders to evictd-kube for pods that had not started are pending, which is the maximum", maxRefusals)
	// ErrForbidden means that the API server has refused to report the pod, see
	// [Orders.Forbidden].
	ErrForbidden = errors.New("the API server refuses to report the eviction of this pod")
	// ErrEnding means that the pod's last order has timed out and its fence is being lifted.
	ErrEnding = errors.New("the fence of the pod is being lifted")
	// ErrStopping means that Stop was called.
	ErrStopping = errors.New("evictd stops")
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
	// Decided is when the pod was chosen, the same in each call of Begin for one eviction; zero
	// means now. Only its milliseconds are used.
	Decided time.Time
	// LastStart is when the newest container that is killed was created, in nanoseconds since 1970 by the
	// runtime's clock, which may have been set back since; 0 if that is not known.
	LastStart int64
	// NotStarted is set if no container of the pod has run, so that nothing was killed: the order
	// begins with StageEnded.
	NotStarted bool
	// Grace is the grace period of a soft eviction; 0 if the pod was killed. It is passed on in
	// whole seconds, at least 1.
	Grace time.Duration
	// Taint is the key of the taint that the node must have before the pod is reported Failed
	// ([TaintFor]); empty for none.
	Taint string
}

// OrdersOptions configure Orders. All but FenceTimeout must be set.
type OrdersOptions struct {
	// FenceTimeout is how long an order waits for a final answer, and then for the removal of
	// the pod's cgroup; 0 means DefaultFenceTimeout.
	FenceTimeout time.Duration
	// Lift is called by Run when an order ends while the pod's cgroup may exist: the fence must
	// be lifted, because nothing else would end it. The order is withdrawn before, and pending
	// until Lift returns. An order can end before its fence is set: after that the caller looks
	// at Pending.
	Lift func(uid, why string)
	// Answered is called with the final answer to an order, for the pod's record; may be nil. It
	// must not block.
	Answered func(uid string, answer Answer, at time.Time)
	// Save is called when the orders must be saved soon. It must not block.
	Save func()
	Log  *slog.Logger
}

// Orders are evictd's orders to evictd-kube. The methods are safe for concurrent use and never
// wait for evictd-kube or for I/O. The callbacks are called without the mutex.
type Orders struct {
	o        OrdersOptions
	wake     chan struct{} // Run has to look at the orders
	answered chan struct{} // an order has a final answer, or has ended

	mu        sync.Mutex
	byUID     map[string]*pending
	byID      map[string]*pending
	forbidden uidSet // whose report was forbidden
	session   *outbox
	stopping  bool
	counts    OrdersStatus // the counters only

	// What the holder of the mutex has caused, for unlock.
	urgent          *outbox // whose messages are written at once
	changed         bool
	finals          []finalAnswer
	events          []event
	delayed, lifted LogLimiter
}

// finalAnswer is the final answer to the order for a pod.
type finalAnswer struct {
	uid    string
	answer Answer
	at     time.Time
}

// event is a line of the log.
type event struct {
	level   slog.Level
	message string
	args    []any
}

// NewOrders returns Orders without any.
func NewOrders(o OrdersOptions) *Orders {
	if o.FenceTimeout <= 0 {
		o.FenceTimeout = DefaultFenceTimeout
	}
	return &Orders{
		o: o, wake: make(chan struct{}, 1), answered: make(chan struct{}, 1),
		byUID: map[string]*pending{}, byID: map[string]*pending{}, counts: OrdersStatus{Answers: map[Answer]uint64{}},
	}
}

// unlock unlocks the mutex, and then passes on, saves and logs what was caused while it was locked.
func (o *Orders) unlock() {
	urgent, changed, finals, events := o.urgent, o.changed, o.finals, o.events
	o.urgent, o.changed, o.finals, o.events = nil, false, nil, nil
	o.mu.Unlock()
	if urgent != nil {
		urgent.writeNow()
	}
	if o.o.Answered != nil {
		for _, a := range finals {
			o.o.Answered(a.uid, a.answer, a.at)
		}
	}
	if changed {
		o.o.Save()
	}
	for _, e := range events {
		o.o.Log.Log(context.Background(), e.level, e.message, e.args...)
	}
}

func (o *Orders) log(level slog.Level, message string, args ...any) {
	o.events = append(o.events, event{level, message, args})
}

// Begin begins the order for an eviction and returns its ID, for the mark of the pod's fence.
// While an order for the UID is pending, it returns the ID of that one, and an eviction without
// Grace means that the pod was killed: StageStopping becomes StageKilled, and so does StageEnded
// of a pod that must not run twice and has no final answer: the processes that were killed now
// have not ended. But an eviction that was decided later, after Ended or CgroupGone, is that of a
// pod that runs again: its order has another ID and replaces the one before. Begin fails with
// ErrTooManyOrders, ErrTooManyRefusals, ErrForbidden, ErrEnding or ErrStopping, and for an eviction
// that is not valid: then the pod can't be reported and must not be fenced.
func (o *Orders) Begin(e Eviction) (id string, err error) {
	now := time.Now()
	order, err := e.order(now)
	if err != nil {
		return "", err
	}
	o.mu.Lock()
	defer o.unlock()
	before := o.byUID[e.UID]
	switch {
	case o.forbidden.has(e.UID):
		return "", ErrForbidden
	case o.stopping:
		return "", ErrStopping
	case before == nil:
	case before.lift != "":
		return "", ErrEnding
	case before.Ended && order.Decided.After(before.Order.Decided) && !e.Decided.IsZero():
		o.finish(before)
	default:
		if order.Stage == StageKilled && before.killable() {
			o.advance(before, StageKilled, now)
			before.noteKill(now, e.LastStart)
			before.Ended = false
			o.notify()
		} else if order.Stage == StageKilled {
			before.KilledAt, o.changed = max(before.KilledAt, now.UnixNano(), e.LastStart), true // the report is not postponed
		}
		return before.Order.ID, nil
	}
	if err := o.full(e.NotStarted); err != nil {
		o.counts.Rejected++
		return "", err
	}
	order.ID = rand.Text()
	p := &pending{SavedOrder: SavedOrder{Order: *order, Began: now, Ended: e.NotStarted}}
	if order.Stage == StageKilled {
		p.noteKill(now, e.LastStart)
	}
	o.counts.Begun++
	o.byUID[e.UID], o.byID[order.ID] = p, p
	o.changed = true
	o.send(p)
	o.notify()
	return order.ID, nil
}

// full returns why there can't be another order; nil if there can.
func (o *Orders) full(notStarted bool) error {
	if len(o.byUID) == MaxOrders {
		return ErrTooManyOrders
	}
	refusals := 0
	for _, p := range o.byUID {
		if p.notStarted() {
			refusals++
		}
	}
	if notStarted && refusals >= maxRefusals {
		return ErrTooManyRefusals
	}
	return nil
}

// order returns the order for an eviction, without its ID.
func (e *Eviction) order(now time.Time) (*Order, error) {
	order := &Order{
		UID: e.UID, Namespace: e.Namespace, Name: e.Name, Exclusive: e.Exclusive, Stage: StageKilled,
		Reason: e.Reason, Message: printableUpTo(e.Message, maxMessage), Decided: e.Decided, Taint: e.Taint,
	}
	if order.Decided.IsZero() {
		order.Decided = now
	}
	order.Decided = order.Decided.Round(0).UTC().Truncate(time.Millisecond)
	if e.NotStarted {
		order.Stage = StageEnded
	} else if e.Grace > 0 {
		order.Stage, order.GraceSeconds = StageStopping, max(1, int64(e.Grace/time.Second))
	}
	if sizeOf(e.Annotations) <= maxAnnotations {
		order.Annotations = maps.Clone(e.Annotations)
	}
	return order, order.check()
}

// Ended records that no process of the pod's containers is left.
func (o *Orders) Ended(uid string) {
	now := time.Now()
	o.mu.Lock()
	defer o.unlock()
	if p := o.byUID[uid]; p != nil {
		o.end(p, now)
	}
}

// Fenced records that the pod has a fence. The order has it from its next stage on.
func (o *Orders) Fenced(uid string) {
	o.mu.Lock()
	defer o.unlock()
	if p := o.byUID[uid]; p != nil && !p.Order.Fenced {
		p.Order.Fenced, o.changed = true, true
	}
}

// Refused withdraws an order because the pod was not evicted: no process was signalled, or the
// caller gave up. It does not call Lift: the caller lifts the fence if it has set one.
func (o *Orders) Refused(uid, why string) {
	o.mu.Lock()
	defer o.unlock()
	p := o.byUID[uid]
	if p == nil || p.lift != "" {
		return
	}
	o.finish(p)
	o.log(slog.LevelWarn, "eviction is not reported to the API server, its order is withdrawn", "pod", p.Order.key(), "reason", why)
}

// CgroupGone records that the pod's cgroup was removed, so that no process of the pod is left
// either. The order ends when its answer is final.
func (o *Orders) CgroupGone(uid string) {
	now := time.Now()
	o.mu.Lock()
	defer o.unlock()
	p := o.byUID[uid]
	if p == nil || p.CgroupGone {
		return
	}
	p.CgroupGone, o.changed = true, true
	o.end(p, now)
	if p.Answer.final() && p.lift == "" {
		o.finish(p)
	}
}

// Pending reports whether an order for the pod is pending.
func (o *Orders) Pending(uid string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.byUID[uid] != nil
}

// Answer returns the last answer to the pod's order. pending is false if it has none.
func (o *Orders) Answer(uid string) (answer Answer, pending bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if p := o.byUID[uid]; p != nil {
		return p.Answer, true
	}
	return "", false
}

// Forbidden reports whether the API server has refused to report the eviction of the pod. It
// must not be evicted again until evictd-kube says that it can report again after it could not,
// or evictd restarts.
func (o *Orders) Forbidden(uid string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.forbidden.has(uid)
}

// allow forgets which pods' reports were forbidden, because the cause may have been removed.
func (o *Orders) allow() {
	o.mu.Lock()
	defer o.unlock()
	if n := len(o.forbidden.order); n > 0 {
		o.log(slog.LevelInfo, "evictd-kube can report evictions again; pods whose report was refused before are no longer exempt", "pods", n)
	}
	o.forbidden = uidSet{}
}

// Run carries out what depends on time, and calls Lift, until ctx ends.
func (o *Orders) Run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		lifts, next := o.due(time.Now())
		for _, p := range lifts {
			o.o.Lift(p.Order.UID, p.lift)
			o.endLifted(p)
		}
		if len(lifts) > 0 {
			continue // Lift took some time
		}
		timer.Reset(next)
		select {
		case <-ctx.Done():
			return
		case <-o.wake:
		case <-timer.C:
		}
	}
}

// Stop waits until all orders have a final answer or ctx ends, withdraws all orders and waits
// up to flushTimeout until the session has sent that. Once it is called no order begins. After it
// the fences can be lifted: evictd-kube sends no request to report a pod as Failed that its kubelet
// may start again, but one that the API server has received may still take effect. Run and the
// session have to go on.
func (o *Orders) Stop(ctx context.Context) {
	for o.unanswered() > 0 {
		select {
		case <-o.answered:
			continue
		case <-ctx.Done():
		}
		break
	}
	if session := o.withdrawAll(); session != nil {
		session.flush()
	}
}

// unanswered returns how many orders have no final answer. From then on no order begins.
func (o *Orders) unanswered() (n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.stopping = true
	for _, p := range o.byUID {
		if !p.Answer.final() {
			n++
		}
	}
	return n
}

// withdrawAll ends all orders, except those whose fence is being lifted, and returns the session.
func (o *Orders) withdrawAll() *outbox {
	o.mu.Lock()
	defer o.unlock()
	for _, p := range o.byUID {
		if p.lift == "" {
			o.finish(p)
		}
	}
	return o.session
}

// notify makes Run look at the orders.
func (o *Orders) notify() { wakeUp(o.wake) }

// wakeUp wakes the receiver of a channel with room for one value.
func wakeUp(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
