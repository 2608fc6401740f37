package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/agent/fence/device"
)

// errNotLeading is why nothing more is done: this process was stopped, with its machine or by a slow API server.
var errNotLeading = errors.New("this controller may not be the leader any more")

// maxResults bounds the results of a node that are kept.
const maxResults = 64

// order is an act with all that is checked before it.
type order struct {
	node   string
	fence  string // UID
	intent fence.Intent
	method fence.Method
	target fence.Target
	// lease is the renewTime that the decision was made with.
	lease time.Time
}

// use is one use of the device of a method: an act, or a reading.
type use struct {
	node   string
	fence  string // UID
	method *fence.Method
	// id is that of the intent, or of the reading.
	id string
	// check returns why an act that has not begun must no longer begin; nil for a reading.
	check func(context.Context) error
}

// executor carries out acts and readings in goroutines of this process. For a node there is at most one act in flight,
// and for a device at most one act or reading: many BMCs have one session. Results are kept until they are consumed.
type executor struct {
	// open returns the device of a use.
	open func(context.Context, *use) (device.Device, error)
	// jobs runs the agents that do not run in this process; nil if there is no API server.
	jobs *jobs
	// check reads again, just before the act, what the decision was made with. An error is why the act is not done.
	check func(context.Context, *order) error
	// objects carries out an action on objects of the cluster.
	objects func(context.Context, *order) (fence.OutcomeKind, error)
	// done is called when a result is there.
	done func(node string)
	// holds reads the lease of leader election, and returns an error unless this controller has it. leads reports,
	// without a request, whether the lease was renewed in time.
	holds func(context.Context) error
	leads func() bool
	// stopTimeout bounds the wait for what is in flight at the end.
	stopTimeout time.Duration
	metrics     *metrics
	log         *slog.Logger
	// ctx ends with the leadership.
	ctx    context.Context
	cancel context.CancelFunc

	running sync.WaitGroup
	mu      sync.Mutex
	stopped bool // nothing begins any more
	nodes   map[string]*work
	devices map[string]*deviceUse
}

// work is what is in flight for a node, and the results that are not yet consumed.
type work struct {
	fence    string // UID
	act      string // id of the intent in flight
	adopted  string // id of the intent whose Job was adopted last
	reading  map[string]bool
	outcomes []fence.Outcome
	readings []fence.Reading
}

// newExecutor returns an executor whose acts and readings end with ctx. The caller sets open, check and done.
func newExecutor(ctx context.Context, m *metrics, log *slog.Logger) *executor {
	ctx, cancel := context.WithCancel(ctx)
	return &executor{
		metrics: m, log: log, ctx: ctx, cancel: cancel, stopTimeout: longestStop,
		holds: func(context.Context) error { return nil }, leads: func() bool { return true },
		nodes: make(map[string]*work), devices: make(map[string]*deviceUse),
	}
}

// Start implements manager.Runnable. It ends all acts and readings when ctx ends.
func (e *executor) Start(ctx context.Context) error {
	<-ctx.Done()
	if !e.stop() {
		e.log.Warn("a power device has not answered; the controller ends without its answer")
	}
	return nil
}

// stop ends all acts and readings at once, and waits for them, but no longer than another controller waits before it
// may become the leader. It reports whether all have ended.
func (e *executor) stop() bool {
	e.mu.Lock()
	e.stopped = true
	e.mu.Unlock()
	e.cancel()
	ended := make(chan struct{})
	go func() {
		e.running.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return true
	case <-time.After(e.stopTimeout):
		return false
	}
}

// begin calls f in a goroutine, unless the executor has been stopped.
func (e *executor) begin(f func()) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stopped {
		return false
	}
	e.running.Go(f)
	return true
}

func (e *executor) work(node string) *work {
	w := e.nodes[node]
	if w == nil {
		w = &work{reading: make(map[string]bool)}
		e.nodes[node] = w
	}
	return w
}

// pending returns the results for a fence, and the id of the intent in flight. Results for another fence are dropped.
func (e *executor) pending(node, uid string) (outcomes []fence.Outcome, readings []fence.Reading, inFlight string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	w := e.work(node)
	if w.fence != uid {
		w.fence, w.outcomes, w.readings = uid, nil, nil
	}
	return slices.Clone(w.outcomes), slices.Clone(w.readings), w.act
}

// consumed removes the oldest results, after a state that has them was accepted.
func (e *executor) consumed(node string, outcomes, readings int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	w := e.work(node)
	w.outcomes = slices.Delete(w.outcomes, 0, min(outcomes, len(w.outcomes)))
	w.readings = slices.Delete(w.readings, 0, min(readings, len(w.readings)))
}

// act starts an act. Its outcome is a result, also if it is refused.
func (e *executor) act(o *order) {
	e.mu.Lock()
	w := e.work(o.node)
	busy := w.act
	if busy == "" {
		w.act = o.intent.ID
	}
	e.mu.Unlock()
	if busy != "" {
		e.finish(o, fence.Refused, "act "+busy+" is in flight", false)
		return
	}
	if !e.begin(func() {
		kind, message := e.carryOut(o)
		e.finish(o, kind, message, true)
	}) {
		e.finish(o, fence.Refused, "the controller ends", true)
	}
}

func (e *executor) finish(o *order, kind fence.OutcomeKind, message string, ours bool) {
	e.log.Info("act ended", "node", o.node, "intent", o.intent.ID, "method", o.method.Name, "action", o.intent.Action,
		"outcome", kind, "message", message)
	e.metrics.act(o.intent.Action, o.method.Executor, kind).Inc()
	e.mu.Lock()
	w := e.work(o.node)
	if ours {
		w.act = ""
	}
	if w.fence == o.fence && len(w.outcomes) < maxResults {
		w.outcomes = append(w.outcomes, fence.Outcome{
			Intent: o.intent.ID, Kind: kind, Message: message, Ended: metav1.NowMicro(),
		})
	}
	e.mu.Unlock()
	e.done(o.node)
}

// carryOut does an act. It never starts after the deadline of the intent.
func (e *executor) carryOut(o *order) (fence.OutcomeKind, string) {
	ctx, cancel := context.WithDeadline(e.ctx, o.intent.Deadline.Time)
	defer cancel()
	if o.intent.Action.OnObjects() {
		return e.carryOutOnObjects(ctx, o)
	}
	release, err := e.acquire(ctx, o.method.Device)
	if err != nil {
		return fence.Refused, fmt.Sprintf("device %s is in use: %v", o.method.Device, err)
	}
	var d device.Device
	err = e.bounded(ctx, release, func() (err error) {
		if d, err = e.open(ctx, e.use(o)); err != nil {
			return err
		}
		return e.identify(ctx, d, o)
	})
	if refusal := (*identityError)(nil); errors.As(err, &refusal) {
		return fence.Refused, err.Error()
	} else if err != nil {
		return fence.Failed, fmt.Sprintf("nothing was sent: %v", err)
	}
	if release, err = e.acquire(ctx, o.method.Device); err != nil {
		return fence.Refused, fmt.Sprintf("device %s is in use: %v", o.method.Device, err)
	}
	if err := e.permit(ctx, o); err != nil {
		release()
		return fence.Refused, err.Error()
	}
	// The timers of a process that was stopped may not have fired yet.
	if ctx.Err() != nil || !time.Now().Before(o.intent.Deadline.Time) {
		release()
		return fence.Refused, "the deadline passed before the act"
	}
	if !e.leads() {
		release()
		return fence.Refused, errNotLeading.Error()
	}
	call := d.Off
	if o.intent.Action == fence.On {
		call = d.On
	}
	return outcome(e.bounded(ctx, release, func() error { return call(ctx) }))
}

// permit reads all that an act depends on. The lease is the last: if it was deleted, another controller may become the
// leader at any time, and this one learns of it only when it renews the lease.
func (e *executor) permit(ctx context.Context, o *order) error {
	if err := e.check(ctx, o); err != nil {
		return err
	}
	return e.holds(ctx)
}

// use returns the use of a device by an act.
func (e *executor) use(o *order) *use {
	return &use{o.node, o.fence, &o.method, o.intent.ID, func(ctx context.Context) error { return e.check(ctx, o) }}
}

// outcome returns the outcome of an act that a device ended with an error, or without.
func outcome(err error) (fence.OutcomeKind, string) {
	switch {
	case err == nil:
		return fence.Succeeded, ""
	case errors.Is(err, device.ErrRefused):
		return fence.Failed, err.Error()
	}
	return fence.Unknown, err.Error()
}

// adopt takes the outcome of an act from the Job that a controller before this one created for it. It creates none: an
// act whose Job is not found is waited for until its deadline, and is unknown then.
func (e *executor) adopt(o *order) {
	e.mu.Lock()
	w := e.work(o.node)
	again := w.adopted == o.intent.ID
	w.adopted = o.intent.ID
	e.mu.Unlock()
	if again {
		return
	}
	// The clocks of the two controllers may differ.
	until := time.Now().Add(o.intent.Deadline.Sub(o.intent.Issued.Time))
	if o.intent.Deadline.After(until) {
		until = o.intent.Deadline.Time
	}
	e.begin(func() {
		ctx, cancel := context.WithDeadline(e.ctx, until)
		defer cancel()
		release, err := e.acquire(ctx, o.method.Device)
		if err != nil {
			return
		}
		defer release()
		e.log.Info("looking for the Job of an act that another controller began", "node", o.node, "intent", o.intent.ID)
		report, found, err := e.jobs.adopt(e.ctx, e.use(o), until.Add(-cleanupDelay))
		if !found {
			return
		}
		if err == nil {
			err = reportError(report)
		}
		kind, message := outcome(err)
		e.finish(o, kind, message, false)
	})
}

// carryOutOnObjects does an act that needs no device.
func (e *executor) carryOutOnObjects(ctx context.Context, o *order) (kind fence.OutcomeKind, message string) {
	if err := e.permit(ctx, o); err != nil {
		return fence.Refused, err.Error()
	}
	if !e.leads() {
		return fence.Refused, errNotLeading.Error()
	}
	kind = fence.Unknown
	err := recovered(func() (err error) {
		kind, err = e.objects(ctx, o)
		return err
	})
	if err != nil {
		return kind, err.Error()
	}
	return kind, ""
}

// identityError says that a device switches another machine, or that its UUID does not show which.
type identityError struct{ device, node string }

func (e *identityError) Error() string {
	return fmt.Sprintf("the device's UUID %q does not match systemUUID %q of the Node: correct the device's address, "+
		"or set identity=none if the device has no UUID of the machine", e.device, e.node)
}

// identify returns an error unless the device switches the machine of the node.
func (e *executor) identify(ctx context.Context, d device.Device, o *order) error {
	if o.method.Identity == fence.CheckNone {
		return nil
	}
	uuid, err := d.UUID(ctx)
	if err != nil {
		return fmt.Errorf("read UUID of device %s: %w", o.method.Device, err)
	}
	if fence.SameMachine(uuid, o.target.SystemUUID) != fence.Yes {
		return &identityError{uuid, o.target.SystemUUID}
	}
	return nil
}

// prune removes the results of nodes that are not present, and for which nothing is in flight.
func (e *executor) prune(present map[string]bool) {
	if e.jobs != nil {
		e.jobs.prune(present)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for node, w := range e.nodes {
		if !present[node] && w.act == "" && len(w.reading) == 0 {
			delete(e.nodes, node)
		}
	}
}
