package affinity

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"runtime/debug"
	"slices"
	"sync"
	"time"
	"unique"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/evictd/evictd/agent/affinity"
	"github.com/evictd/evictd/agent/affinity/settings"
)

const (
	// The time between two iterations is restFactor times that of the first one, within limits: they need at most a
	// fifth of a core, however many pods violate.
	restFactor, minInterval, maxInterval = 4, 200 * time.Millisecond, 5 * time.Second
	// panicInterval is the time to the next iteration after one that panicked.
	panicInterval = time.Minute
	// maxReads bounds the workloads that are read in an iteration, and readers those at the same time.
	maxReads, readers = 50, 8
	// readInterval is when workloads are read again that are needed and have not changed visibly.
	readInterval = 30 * time.Second
	// unknownInterval is when the next iteration is due while a workload is unknown that is needed.
	unknownInterval = time.Second
	// senders bounds the evictions that are checked and sent at the same time. Step orders no more, so that none waits.
	senders = 16
	// invalidInterval is that of the events of an annotation that does not parse, and maxInvalidEvents bounds those of
	// all in an invalidPeriod.
	invalidInterval, maxInvalidEvents, invalidPeriod = time.Hour, 60, time.Minute
)

// loop observes, calls Step and carries its orders out. All its fields but those of config belong to one goroutine.
type loop struct {
	index     *index
	workloads *workloads
	evictor   *evictor
	metrics   *metrics
	event     Event
	fenced    func(context.Context) (map[string]bool, error)
	log       *slog.Logger
	wake      chan struct{} // has room for one

	mu      sync.Mutex
	setting affinity.Config

	state    affinity.State
	outcomes []affinity.Outcome
	pending  []*order
	// resume is when the next iteration may begin.
	resume time.Time
	// invalid has the time of the last event by pod.
	invalid map[types.UID]time.Time
	// invalidEvents counts the events of the invalidPeriod that began at invalidSince.
	invalidSince  time.Time
	invalidEvents int
	storm         string
}

// notify has the next iteration begin soon. It never blocks.
func (l *loop) notify() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// config returns the configuration that applies now.
func (l *loop) config() affinity.Config {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.setting
}

func (l *loop) setConfig(c affinity.Config) {
	l.mu.Lock()
	l.setting = c
	l.mu.Unlock()
	l.index.setEnforceIgnored(c.EnforceIgnored)
	l.notify()
}

// run runs until ctx ends, and returns when no eviction is in flight any more.
func (l *loop) run(ctx context.Context) {
	orders, ended := make(chan *order), make(chan affinity.Outcome)
	var sending sync.WaitGroup
	defer sending.Wait()
	for range senders {
		sending.Go(func() { l.send(ctx, orders, ended) })
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		var next *order
		var out chan<- *order // nil: nothing is sent
		if len(l.pending) > 0 {
			next, out = l.pending[0], orders
		}
		select {
		case <-ctx.Done():
			return
		case out <- next:
			l.pending = l.pending[1:]
		case o := <-ended:
			l.outcomes = append(l.outcomes, o)
			timer.Reset(time.Until(l.resume))
		case <-l.wake:
			timer.Reset(time.Until(l.resume))
		case <-timer.C:
			if wake := l.guarded(ctx, time.Now()); !wake.IsZero() {
				timer.Reset(max(time.Until(l.resume), time.Until(wake)))
			}
		}
	}
}

// guarded calls iterate, and sets when the next iteration may begin. A panic ends this iteration only: the process also
// fences nodes. What was not decided on is decided on later.
func (l *loop) guarded(ctx context.Context, now time.Time) (wake time.Time) {
	defer func() {
		if p := recover(); p != nil {
			l.log.Error("deciding on node affinity panicked; it goes on later", "panic", p, "interval_seconds", panicInterval.Seconds(),
				"stack", string(debug.Stack()))
			l.resume = time.Now().Add(panicInterval)
			wake = l.resume
		}
	}()
	wake = l.iterate(ctx, now)
	end := time.Now()
	l.resume = end.Add(min(maxInterval, max(minInterval, restFactor*end.Sub(now))))
	return wake
}

// send carries orders out until ctx ends.
func (l *loop) send(ctx context.Context, orders <-chan *order, ended chan<- affinity.Outcome) {
	for {
		select {
		case <-ctx.Done():
			return
		case o := <-orders:
			select {
			case ended <- l.evictor.evict(ctx, o):
			case <-ctx.Done():
				return
			}
		}
	}
}

// iterate decides once, and returns when the next iteration is due, zero if nothing is.
func (l *loop) iterate(ctx context.Context, now time.Time) time.Time {
	list, invalid, nodes := l.index.violations()
	wake := l.reportInvalid(invalid, now)
	if len(list) == 0 && len(l.state.Violations) == 0 && len(l.outcomes) == 0 {
		l.metrics.set(&l.state)
		return wake
	}
	slices.SortFunc(list, func(a, b violation) int { return cmp.Or(a.since.Compare(b.since), cmp.Compare(a.UID, b.UID)) })
	config := l.config()
	in := affinity.Inputs{Config: config, Outcomes: l.outcomes, Nodes: l.nodes(ctx, nodes)}
	due := l.due(list, config, now)
	l.read(ctx, due, now)
	if len(due) > 0 {
		wake = earlier(wake, now.Add(readInterval))
	}
	in.Present = l.index.present(l.state.Flights())
	used := l.addPods(&in, list, due, now)
	for i := range l.outcomes {
		l.ended(&l.outcomes[i])
	}
	var orders affinity.Orders
	l.state, orders = affinity.Step(l.state, in, time.Now())
	l.outcomes = nil
	l.carryOut(orders, nodes)
	for _, v := range l.state.Violations {
		if v.Held == affinity.HoldWorkloadUnknown {
			wake = earlier(wake, now.Add(unknownInterval))
			break
		}
	}
	l.metrics.set(&l.state)
	l.reportStorm()
	l.workloads.forget(now, used)
	return earlier(wake, orders.Wake)
}

// earlier returns the first of two times. Zero is none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// due returns the violations for which the next decision may need the workload, oldest first: what was checked before
// held none of them back, or what did is over by now.
func (l *loop) due(list []violation, config affinity.Config, now time.Time) []violation {
	var due []violation
	for _, v := range list {
		known, ok := l.state.Violations[v.UID]
		if !ok || v.owner == noOwner || v.mirror || v.completed || v.terminating || v.daemonSet() {
			continue
		}
		switch known.Held {
		case "", affinity.HoldNodeStale, affinity.HoldWorkloadInFlight, affinity.HoldWorkloadNotReady, affinity.HoldWorkloadUnknown, affinity.HoldNodeInFlight,
			affinity.HoldRate, affinity.HoldLoop, affinity.HoldRefused, affinity.HoldDryRun:
			due = append(due, v)
		case affinity.HoldDebounce:
			if now.Sub(known.Since) >= config.Debounce {
				due = append(due, v)
			}
		}
	}
	return due
}

// read reads the workloads of violations that are not known or no longer up to date: at most maxReads, those first that
// were read the longest ago, so that workloads that can't be read or evicted keep no other waiting. In dry run, those of
// pods that would be evicted are read once.
func (l *loop) read(ctx context.Context, due []violation, now time.Time) {
	type need struct {
		owner owner
		at    time.Time
	}
	var needs []need
	begun := make(map[owner]bool)
	for _, v := range due {
		o := v.owner.Value()
		top, r, at, needed := l.workloads.cached(o, now)
		if !needed || begun[top] || r != nil && l.state.Violations[v.UID].Held == affinity.HoldDryRun {
			continue
		}
		begun[top] = true
		needs = append(needs, need{o, at})
	}
	slices.SortStableFunc(needs, func(a, b need) int { return a.at.Compare(b.at) })
	var reading sync.WaitGroup
	defer reading.Wait()
	slots := make(chan struct{}, readers)
	for _, n := range needs[:min(len(needs), maxReads)] {
		slots <- struct{}{}
		reading.Go(func() {
			defer func() { <-slots }()
			l.workloads.refresh(ctx, n.owner)
		})
	}
}

// addPods adds the violations, and the workloads of those that are due. It returns the controllers of all.
func (l *loop) addPods(in *affinity.Inputs, list, due []violation, now time.Time) (used map[owner]bool) {
	needed := make(map[*pod]bool, len(due))
	for _, v := range due {
		needed[v.pod] = true
	}
	type controller struct {
		workload  string
		replicas  *replicas
		daemonSet bool
	}
	controllers := make(map[unique.Handle[owner]]controller)
	used = make(map[owner]bool)
	in.Workloads = make(map[string]affinity.Workload)
	in.Violating = make([]affinity.Pod, len(list))
	for i, v := range list {
		c, known := controllers[v.owner]
		if !known && v.owner != noOwner {
			o := v.owner.Value()
			top, r, _, _ := l.workloads.cached(o, now)
			c = controller{top.workload(), r, v.daemonSet()}
			controllers[v.owner], used[o] = c, true
		}
		if _, there := in.Workloads[c.workload]; c.replicas != nil && needed[v.pod] && !there {
			in.Workloads[c.workload] = workloadFacts(c.replicas, l.index.readyOf(v.Namespace, c.replicas.controllers), v.labels)
		}
		in.Violating[i] = affinity.Pod{
			PodKey: v.PodKey, Node: v.node, Since: v.since, Created: v.created, Bound: v.bound, AtBinding: v.atBinding, Own: v.own, Requirement: v.shape.requirement,
			Verdict: v.verdict, Tolerations: v.shape.tolerations, Workload: c.workload, Mirror: v.mirror, DaemonSet: c.daemonSet,
			Completed: v.completed, Terminating: v.terminating, EvictBare: v.evictBare, GenerateName: v.generateName,
		}
	}
	return used
}

// nodes returns the facts of all nodes. Without knowledge of the fences, all count as fenced.
func (l *loop) nodes(ctx context.Context, nodes []*corev1.Node) []affinity.Node {
	fenced, err := l.fenced(ctx)
	if err != nil {
		l.log.Warn("could not list the fences; no pod is evicted until they can be listed", "error", err)
	}
	slices.SortFunc(nodes, func(a, b *corev1.Node) int { return cmp.Compare(a.Name, b.Name) })
	out := make([]affinity.Node, len(nodes))
	for i, n := range nodes {
		out[i] = affinity.NodeOf(n, err != nil || fenced[n.Name])
	}
	return out
}

// ended logs and counts an eviction that has ended.
func (l *loop) ended(o *affinity.Outcome) {
	v := l.state.Violations[o.Pod]
	l.metrics.ended(o, v.Since)
	level := slog.LevelInfo
	switch o.Kind {
	case affinity.ManyBudgets, affinity.Forbidden, affinity.RequestError:
		level = slog.LevelWarn
	}
	l.log.Log(context.Background(), level, "eviction of a pod that violates its node affinity has ended", "pod", v.Pod.Namespace+"/"+v.Pod.Name,
		"uid", o.Pod, "result", o.Kind, "message", o.Message)
}

// carryOut reports events and queues evictions.
func (l *loop) carryOut(orders affinity.Orders, nodes []*corev1.Node) {
	for _, e := range orders.Events {
		l.report(e.Pod, e.Warning, e.Reason, e.Message)
	}
	if len(orders.Evict) == 0 {
		return
	}
	uids := make(map[string]types.UID, len(nodes))
	for _, n := range nodes {
		uids[n.Name] = n.UID
	}
	for _, e := range orders.Evict {
		l.log.Info("evicting pod that violates its node affinity", "pod", e.Pod.Namespace+"/"+e.Pod.Name, "uid", e.Pod.UID, "node", e.Pod.Node,
			"workload", e.Pod.Workload)
		l.pending = append(l.pending, &order{e, uids[e.Pod.Node], time.Now().Add(maxWait)})
	}
}

// report writes an event of a pod and a line of the log.
func (l *loop) report(key affinity.PodKey, warning bool, reason, message string) {
	l.log.Info("node affinity of a pod", "pod", key.Namespace+"/"+key.Name, "uid", key.UID, "reason", reason, "message", message)
	l.event(reference(key), warning, reason, "EnforceNodeAffinity", message)
}

// reference returns an object that stands for a pod in events.
func reference(key affinity.PodKey) runtime.Object {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, UID: key.UID}}
}

// reportStorm logs that a storm has begun or ended.
func (l *loop) reportStorm() {
	if l.state.Storm == l.storm {
		return
	}
	l.storm = l.state.Storm
	if l.storm == "" {
		l.log.Info("storm of affinity violations has ended")
		return
	}
	l.log.Warn("storm of affinity violations: on too many nodes at once, or a label is gone from all nodes; its pods are not evicted until it ends, "+
		"or until storm_confirmed in ConfigMap "+settings.Name+" has its id", "storm", l.storm)
}

// reportInvalid reports annotations that do not parse, each once in an interval, and returns when the next is due.
func (l *loop) reportInvalid(list []*pod, now time.Time) (wake time.Time) {
	l.metrics.invalid.Set(float64(len(list)))
	slices.SortFunc(list, func(a, b *pod) int { return cmp.Compare(a.UID, b.UID) })
	there := make(map[types.UID]bool, len(list))
	if now.Sub(l.invalidSince) >= invalidPeriod {
		l.invalidSince, l.invalidEvents = now, 0
	}
	for _, p := range list {
		there[p.UID] = true
		last, ok := l.invalid[p.UID]
		if due := last.Add(invalidInterval); ok && now.Before(due) {
			wake = earlier(wake, due)
			continue
		}
		if l.invalidEvents == maxInvalidEvents {
			wake = earlier(wake, l.invalidSince.Add(invalidPeriod))
			continue
		}
		l.invalidEvents++
		l.report(p.PodKey, true, affinity.EventInvalid, fmt.Sprintf("annotation %s does not parse and is not enforced: %s", affinity.Annotation, p.shape.err))
		l.invalid[p.UID] = now
		wake = earlier(wake, now.Add(invalidInterval))
	}
	maps.DeleteFunc(l.invalid, func(uid types.UID, _ time.Time) bool { return !there[uid] })
	return wake
}
