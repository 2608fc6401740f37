package cluster

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/evictd/evictd/agent/kube"
)

const (
	// maxInFlight bounds the requests of the Reporter at a time, maxEventsInFlight those of them
	// that create events, and maxSlowInFlight those that have more time than writeTimeout.
	maxInFlight, maxEventsInFlight, maxSlowInFlight = 10, 2, 5
	// checkInterval is the time between two checks of the rights.
	checkInterval = 5 * time.Minute
	// forbiddenDelay is the default of Reporter.ForbiddenDelay.
	forbiddenDelay = 30 * time.Second
	// recoveryDelay bounds the time until requests are repeated that had no answer, after the
	// API server has answered another one.
	recoveryDelay = 200 * time.Millisecond
	// drainInterval is the time between two looks whether all orders are withdrawn.
	drainInterval = 50 * time.Millisecond
	// rightsDeadline bounds the time that the first list waits for the first answer about the
	// rights, and the first of the delays between attempts to get it.
	rightsDeadline, firstCheckDelay = time.Second, 100 * time.Millisecond
)

// answers takes the answers to orders and to the states of the Node. [kube.Feed] implements it.
type answers interface {
	Report(r *kube.Report)
	CannotReport(why string)
	ReportNode(r *kube.NodeReport)
}

// Reporter carries out evictd's orders to report evictions to the API server, and writes its
// conditions and taints to the Node object. It implements [kube.OrderHandler] and
// [kube.NodeHandler].
type Reporter struct {
	// ForbiddenDelay is how long the API server must answer 403, or a right be missing that was
	// there, until that counts, and the first time between two checks while a right is missing.
	// NewReporter sets it to 30 s. It may be changed before Run.
	ForbiddenDelay time.Duration

	node    string
	answers answers
	log     *slog.Logger
	wake    chan struct{}

	mu sync.Mutex
	// launch runs a request on a goroutine of its own; nil while Run does not run.
	launch func(started, *connection)
	// connection is the present connection; nil before the first.
	connection *connection
	pods       map[string]podState // of the node's pods, by UID
	tasks      map[string]*task    // by the IDs of the orders
	nodes      nodeWriter          // of the Node object
	number     uint64              // of the last order
	events     []queuedEvent
	inFlight   int
	// eventsInFlight are those of inFlight that create events.
	eventsInFlight int
	slowInFlight   int       // those of inFlight that have more time than writeTimeout
	eventForbidden bool      // whether it was logged that events are forbidden
	nodeEventAfter time.Time // when the next event on the node may be emitted
	unreachable    bool      // whether the last request had no answer
	answered       time.Time // when the API server last answered a request, also with a failure
	checking       bool      // whether the rights are being checked
	checkAfter     time.Time // when they are checked next
	// forbiddenCheckAfter is when a 403 may next cause a check.
	forbiddenCheckAfter time.Time
	// checkDelay is the delay after the last failed check, 0 after another one, and checked is
	// closed when the first one has not failed.
	checkDelay time.Duration
	checked    chan struct{}
	// mayReport is set if evictd knows that evictions can be reported, missing is why they
	// can't, as it was logged, and missingSince is since when.
	mayReport    bool
	missing      string
	missingSince time.Time
}

// connection is a client, and reload, which reads its configuration again if only that can end
// an error.
type connection struct {
	*client
	reload func(error)
}

// NewReporter returns a Reporter for the pods of a node. Its answers go to a [kube.Feed].
func NewReporter(node string, answers answers, log *slog.Logger) *Reporter {
	return &Reporter{ForbiddenDelay: forbiddenDelay, node: node, answers: answers, log: log, wake: make(chan struct{}, 1), checked: make(chan struct{}), pods: map[string]podState{}, tasks: map[string]*task{}, nodes: newNodeWriter()}
}

// Reset implements kube.OrderHandler. What was done for an order is found in its pod again.
func (r *Reporter) Reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id := range r.tasks {
		r.withdraw(id)
	}
}

// Order implements kube.OrderHandler.
func (r *Reporter) Order(o *kube.Order) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.tasks[o.ID]
	if t == nil {
		r.number++
		now := time.Now()
		t = &task{number: r.number, announced: map[string]bool{}, arrived: now}
		if o.Taint != "" {
			r.nodes.verify = now.Add(-taintTrust)
		}
		t.ctx, t.cancel = context.WithCancel(context.Background())
		r.tasks[o.ID] = t
	} else if t.answer != "" {
		r.answers.Report(&kube.Report{ID: o.ID, Answer: t.answer, Why: t.why})
	}
	t.order = *o
	r.notify() // for what is due later
	if r.launch != nil {
		r.startDue(time.Now()) // without the time until Run runs
	}
}

// Withdraw implements kube.OrderHandler.
func (r *Reporter) Withdraw(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.tasks[id]
	if t == nil {
		return
	}
	r.withdraw(id)
	if s, ok := r.pods[t.order.UID]; ok {
		r.keep(t.order.UID, s) // unless the pod has completed
	}
}

// withdraw ends an order and its requests in flight. The API server does not commit a write
// whose request is cancelled before etcd has it. One that is paused reads the cancellation after
// the request.
func (r *Reporter) withdraw(id string) {
	if t := r.tasks[id]; t != nil {
		t.cancel()
		delete(r.tasks, id)
		r.keepTaint(t, time.Now())
	}
}

// Drain waits until evictd has withdrawn all orders and its last state is written to the Node, or
// ctx ends. evictd and evictd-kube are stopped at the same time, and evictd then waits for its last
// reports. An evictd that goes on maintains its conditions, and is waited for as well: it can't be
// known that it does not stop.
func (r *Reporter) Drain(ctx context.Context) {
	looks := 0 // the first one may be before the answer to evictd was sent
	for ticker := time.NewTicker(drainInterval); ; {
		r.mu.Lock()
		if looks++; len(r.tasks) > 0 || !r.settled() {
			looks = 0
		}
		waiting := looks == 1 && r.nodes.state != nil
		r.mu.Unlock()
		if looks > 0 && !waiting {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (r *Reporter) notify() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Run carries out orders until ctx ends.
func (r *Reporter) Run(ctx context.Context) {
	var requests sync.WaitGroup
	defer requests.Wait()
	r.setLaunch(func(f started, c *connection) { requests.Go(func() { f(ctx, c) }) })
	defer r.setLaunch(nil)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		r.mu.Lock()
		now := time.Now()
		next := r.startDue(now)
		r.mu.Unlock()
		timer.Reset(next.Sub(now))
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		case <-timer.C:
		}
	}
}

func (r *Reporter) setLaunch(launch func(started, *connection)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.launch = launch
}

// startDue starts the requests that are due, and returns when others may be. mu must be locked, and Run run.
func (r *Reporter) startDue(now time.Time) (next time.Time) {
	list, next := r.schedule(now)
	for _, f := range list {
		r.launch(f, r.connection)
	}
	return next
}

// connected makes c the connection for all further requests.
func (r *Reporter) connected(c *client, reload func(error)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	r.connection, r.checkAfter = &connection{c, reload}, now
	r.recovered(now)
	r.notify()
}

// awaitRights waits until the rights are known for the first time, but not long: facts do not
// depend on them. evictd uses the last statement about them, after the complete list.
func (r *Reporter) awaitRights(ctx context.Context) {
	select {
	case <-r.checked:
	case <-ctx.Done():
	case <-time.After(rightsDeadline):
	}
}

// observe takes the state of a pod of the node from the watch.
func (r *Reporter) observe(p *corev1.Pod) {
	s := stateOf(p)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.keep(string(p.UID), s)
	r.notify()
}

// keep keeps a state of a pod unless a newer one is known: answers and events of the watch
// overtake each other. Without an order about it, the state of a completed pod is not kept, nor
// one for which there is no room: the pod is read if an order comes.
func (r *Reporter) keep(uid string, s podState) {
	known, ok := r.pods[uid]
	switch {
	case ok && s.olderThan(&known):
	case s.completed() && !r.ordered(uid):
		delete(r.pods, uid)
	case ok, len(r.pods) < maxStates, r.ordered(uid):
		r.pods[uid] = s
	}
}

// ordered reports whether there is an order about a pod.
func (r *Reporter) ordered(uid string) bool {
	for _, t := range r.tasks {
		if t.order.UID == uid {
			return true
		}
	}
	return false
}

// replace takes the states of all pods of the node. The pod of an order that is not among them
// is read by itself: the list may be older than the order. All events that are newer than the
// list follow.
func (r *Reporter) replace(pods map[string]*listed) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pods = make(map[string]podState, min(len(pods), maxStates))
	for uid, p := range pods {
		r.keep(uid, p.state)
	}
	r.notify()
}

// gone records that a pod has left the API.
func (r *Reporter) gone(uid string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	last, known := r.pods[uid]
	delete(r.pods, uid)
	now := time.Now()
	for _, t := range r.tasks {
		if t.order.UID == uid {
			if known {
				t.noteShown(&last)
			}
			r.left(t, now)
		}
	}
	r.notify()
}

// left ends an order whose pod is not in the API any more. If its eviction was reported, that
// remains the answer.
func (r *Reporter) left(t *task, now time.Time) {
	a := action{answer: kube.AnswerGone, ended: true}
	switch {
	case t.written > 0, t.shown:
		a.answer = kube.AnswerReported
	case t.deletion != "":
		a.answer = t.deletion
	}
	r.apply(t, a, now)
}

// listening records that the API server has accepted a list or a watch.
func (r *Reporter) listening() {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	r.noteAnswer(nil, now)
	r.recovered(now)
}

// noteAnswer records the end of a request, if the API server has answered it.
func (r *Reporter) noteAnswer(err error, now time.Time) {
	var answer apierrors.APIStatus
	if err == nil || errors.As(err, &answer) {
		r.answered = now
	}
}

// recovered lets the requests that had no answer be repeated soon, because the API server has
// carried out another request. Events of the watch do not show that: an overloaded API server
// sends them and answers no writes.
func (r *Reporter) recovered(now time.Time) {
	if !r.unreachable {
		return
	}
	r.unreachable = false
	r.nodes.recovered(now)
	for _, t := range r.tasks {
		if soon := now.Add(rand.N(recoveryDelay)); t.unreachable && soon.Before(t.notBefore) {
			t.notBefore = soon
		}
	}
	r.notify()
}
