package affinity

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// minWake is the least time to the next call.
	minWake = time.Millisecond
	// soon is when Step is called again for work that it left.
	soon = time.Second
	// maxRequests bounds the evictions that have no outcome.
	maxRequests = 16
	// ratePeriod is what Config.PerMinute counts in.
	ratePeriod = time.Minute
)

// candidate is a pod that violates, during one call of Step.
type candidate struct {
	pod *Pod
	// node is nil if there is none of that name.
	node *Node
	v    Violation
	// backoff is that of the pod's workload, nil if nothing is remembered of it.
	backoff *Backoff
	fit     *fit
	// storm is the one that holds the pod back, and stormKey its key in State.Storms.
	storm    *Storm
	stormKey string
	// current says that the node's labels are not out of date.
	current bool
}

// run is one call of Step.
type run struct {
	s      State
	in     *Inputs
	now    time.Time
	orders Orders
	// candidates are the pods that violate, oldest first.
	candidates []*candidate
	// nodes are those of Inputs, by name.
	nodes     map[string]*Node
	workloads map[string]*Backoff
	// busyNodes and busyWorkloads have an eviction in flight.
	busyNodes, busyWorkloads map[string]bool
	// requests counts evictions without an outcome.
	requests int
	// notReady are the workloads of pods that are held because of their replicas.
	notReady map[string]bool
	// wouldEvict says that an eviction was left out in dry run.
	wouldEvict bool
}

// Step returns the state after the inputs, and the orders that follow. The controller calls it when the pods that
// violate, a node or a workload changed, when an eviction ended, and at Wake. Each outcome is an input once. Step does
// not change s, and its orders don't depend on the order of the inputs.
func Step(s State, in Inputs, now time.Time) (State, Orders) {
	r := run{s: s, in: &in, now: now, notReady: map[string]bool{}}
	r.begin()
	r.observe()
	r.takeOutcomes()
	r.settleDoubts()
	r.endFlights()
	r.findLoops()
	r.findStorms()
	open := r.checkPod()
	r.compare(open)
	for _, c := range open {
		r.decide(c)
	}
	r.report()
	return r.finish()
}

// begin copies what Step changes, and indexes the nodes.
func (r *run) begin() {
	if r.s.Began.IsZero() {
		r.s.Began = r.now
	}
	r.nodes = make(map[string]*Node, len(r.in.Nodes))
	for i := range r.in.Nodes {
		if n := &r.in.Nodes[i]; n.Object != nil {
			r.nodes[n.Object.Name] = n
		}
	}
	r.workloads = make(map[string]*Backoff, len(r.s.Workloads))
	for key, b := range r.s.Workloads {
		r.workloads[key] = &b
	}
	kept := slices.IndexFunc(r.s.Evicted, func(t time.Time) bool { return t.After(r.now.Add(-ratePeriod)) })
	if kept < 0 {
		kept = len(r.s.Evicted)
	}
	r.s.Evicted = slices.Clone(r.s.Evicted[kept:])
	if r.now.Sub(r.s.EventsSince) >= eventPeriod {
		r.s.EventsSince, r.s.Events = r.now, 0
	}
}

// observe makes the candidates. A pod that no longer violates, or does on another node, is forgotten.
func (r *run) observe() {
	all := make([]candidate, len(r.in.Violating))
	r.candidates = make([]*candidate, len(all))
	for i := range r.in.Violating {
		p, c := &r.in.Violating[i], &all[i]
		v, known := r.s.Violations[p.UID]
		if since := p.Since; !known || v.Node != p.Node || since.After(v.Since) {
			if since.IsZero() || since.After(r.now) {
				since = r.now
			}
			v = Violation{Pod: p.PodKey, Node: p.Node, Since: since, Steady: since, TerminatingSince: v.TerminatingSince}
		}
		if p.Terminating && v.TerminatingSince.IsZero() {
			v.TerminatingSince = r.now
		}
		c.pod, c.node, c.v = p, r.nodes[p.Node], v
		r.candidates[i] = c
	}
	slices.SortFunc(r.candidates, func(a, b *candidate) int {
		return cmp.Or(a.v.Since.Compare(b.v.Since), strings.Compare(string(a.pod.UID), string(b.pod.UID)))
	})
}

// order orders the eviction of a pod, or in dry run reports it. In dry run the pod counts as gone from then on.
func (r *run) order(c *candidate) {
	key := slot(c.pod)
	r.busyNodes[c.pod.Node], r.busyWorkloads[key] = true, true
	if !r.in.Config.Enforce {
		c.v.WouldEvict, c.v.Held, r.wouldEvict = true, HoldDryRun, true
		r.s.Evicted = append(r.s.Evicted, r.now)
		r.event(c.v.Pod, false, EventWouldEvict, fmt.Sprintf("would evict pod from node %s: %s", c.pod.Node, reasons(c.pod)))
		return
	}
	id := fmt.Sprintf("%s-%d", c.pod.UID, r.now.UnixNano())
	c.v.InFlight, c.v.Held = id, ""
	b := r.backoff(c)
	b.InFlight, b.ID, b.OrderedAt, b.Accepted, b.Node = c.pod.UID, id, r.now, false, c.pod.Node
	b.Replaced = !b.Began.IsZero() && !c.pod.Created.Before(b.Began.Add(-clockSkew))
	b.DoubtedAt = time.Time{}
	b.Pod, b.Binding = c.pod.PodKey, binding(c.pod)
	r.requests++
	r.wake(r.now.Add(outcomeTimeout))
	r.orders.Evict = append(r.orders.Evict, Eviction{ID: id, Pod: *c.pod, Since: c.v.Since})
}

// finish returns the new state.
func (r *run) finish() (State, Orders) {
	r.s.Violations = make(map[types.UID]Violation, len(r.candidates))
	for _, c := range r.candidates {
		r.s.Violations[c.pod.UID] = c.v
	}
	r.s.Workloads = r.keptWorkloads()
	if w := r.orders.Wake; !w.IsZero() && w.Before(r.now.Add(minWake)) {
		r.orders.Wake = r.now.Add(minWake)
	}
	return r.s, r.orders
}

// wake has Step called at t at the latest.
func (r *run) wake(t time.Time) {
	if r.orders.Wake.IsZero() || t.Before(r.orders.Wake) {
		r.orders.Wake = t
	}
}

// waiting reports whether t is still to come, and wakes then.
func (r *run) waiting(t time.Time) bool {
	if !r.now.Before(t) {
		return false
	}
	r.wake(t)
	return true
}
