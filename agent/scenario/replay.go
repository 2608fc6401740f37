package scenario

import (
	"math"
	"slices"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
)

// start is the time at which every scenario begins. Only differences matter.
var start = time.Unix(0, 0).UTC()

// replay is a scenario under way.
type replay struct {
	*Scenario
	state    evict.State
	observed signal.Observations
	stalled  bool      // reclaim does
	running  []*member // in the order of the file
	joined   int64
}

// member is a pod that runs.
type member struct {
	*pod
	// returns is when, in a closed loop, the memory of an evicted pod comes
	// back; nil while it was not evicted.
	returns *time.Time
}

func (s *Scenario) begin() *replay {
	r := &replay{Scenario: s}
	for i := range r.observed {
		if c := s.capacity[i]; c != nil {
			r.observed[i].Capacity = *c
		}
	}
	r.join(s.pods)
	return r
}

// join lets pods run from now on. Each is a new one even where another of its
// name and UID was there before, in this very step, which LastStart tells.
func (r *replay) join(pods []pod) {
	for i := range pods {
		r.joined++
		p := pods[i].clone()
		p.LastStart = r.joined
		r.running = append(r.running, &member{pod: p})
	}
}

// step applies one step and decides on it.
func (r *replay) step(st *step) Step {
	now := start.Add(st.at)
	r.running = slices.DeleteFunc(r.running, func(m *member) bool { return slices.Contains(st.gone, m.Key()) })
	r.join(st.add)
	for _, m := range r.running {
		if usage, ok := st.usage[m.Key()]; ok {
			usage.apply(m.pod)
		}
	}
	r.observe(st.signals, every)
	for s, cache := range st.cache {
		r.observed[s].Cache = int64(cache)
	}
	if st.stalled != nil {
		r.stalled = *st.stalled
	}
	in := evict.Inputs{Policy: r.policy, Pods: r.pods(now), ReclaimStalled: r.stalled}
	r.computeMemory(in.Pods)

	out := newStep(st.at)
	for first := true; ; first = false {
		in.Observations = r.observed
		state, orders := evict.Step(r.state, in, now)
		r.state = state
		r.follow(&orders, now)
		out.add(&orders, first)
		if orders.Reclaim == nil {
			break
		}
		r.observe(st.after[orders.Reclaim.Kind], signal.Signal.IsDisk)
		in.Outcomes = []evict.Outcome{{}} // of the reclaim
	}
	// Whatever else the reclaims changed waits for the next step: one signal
	// is acted upon in each.
	for _, kind := range out.Reclaim {
		r.observe(st.after[kind], func(s signal.Signal) bool { return !s.IsDisk() })
	}
	out.join(r.Scenario, st)
	return out
}

// every accepts all signals.
func every(signal.Signal) bool { return true }

// observe takes in new values of the signals that are wanted.
func (r *replay) observe(values signals, wanted func(signal.Signal) bool) {
	for s, available := range values {
		if !wanted(s) || r.closedLoop != nil && s.IsMemory() {
			continue
		}
		o := &r.observed[s]
		if available == nil {
			o.Status, o.Available = signal.Unreadable, 0
			continue
		}
		o.Status, o.Available = signal.Observed, int64(*available)
	}
}

// pods returns what runs as a decision sees it.
func (r *replay) pods(now time.Time) []evict.Pod {
	pods := make([]evict.Pod, len(r.running))
	for i, m := range r.running {
		pods[i] = m.settle(m.returns != nil && !now.Before(*m.returns))
	}
	return pods
}

// computeMemory sets the memory signals of a closed loop.
func (r *replay) computeMemory(pods []evict.Pod) {
	loop := r.closedLoop
	if loop == nil {
		return
	}
	var used int64
	for i := range pods {
		used = saturatingAdd(used, pods[i].Usage.Memory)
	}
	set := func(s signal.Signal, available int64) {
		r.observed[s].Status, r.observed[s].Available = signal.Observed, max(0, available)
	}
	set(signal.MemoryAvailable, loop.memory-saturatingAdd(used, loop.system))
	set(signal.AllocatableMemoryAvailable, loop.allocatable-used)
}

// follow notes when the memory of those that were ordered to go comes back in
// a closed loop: at once, or at the end of a soft eviction's grace.
func (r *replay) follow(orders *evict.Orders, now time.Time) {
	due := func(uid string, at time.Time) {
		for _, m := range r.running {
			if m.UID == uid {
				m.returns = &at
			}
		}
	}
	if r.closedLoop == nil {
		return
	}
	for _, uid := range orders.Harden {
		due(uid, now)
	}
	for i := range orders.Evict {
		o := &orders.Evict[i]
		if o.Hard {
			due(o.UID, now)
		} else {
			due(o.UID, now.Add(o.Grace))
		}
	}
}

// saturatingAdd adds amounts that are not negative without running over.
func saturatingAdd(a, b int64) int64 {
	if b > math.MaxInt64-a {
		return math.MaxInt64
	}
	return a + b
}
