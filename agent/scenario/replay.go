package scenario

import (
	"math"
	"slices"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
)

// start is when every scenario starts. Only differences matter.
var start = time.Unix(0, 0).UTC()

// replay is the state of a replay.
type replay struct {
	*Scenario
	state    evict.State
	observed signal.Observations
	stalled  bool          // reclaim stalls
	running  []*runningPod // in the order of the file
	starts   int64         // counts pods; the source of LastStart
}

// runningPod is a pod that runs.
type runningPod struct {
	*pod
	// returns is when the memory of an evicted pod is freed in a closed loop; nil if it
	// was not evicted.
	returns *time.Time
}

func (s *Scenario) begin() *replay {
	r := &replay{Scenario: s}
	for i := range r.observed {
		if c := s.capacity[i]; c != nil {
			r.observed[i].Capacity = *c
		}
	}
	r.addPods(s.pods)
	return r
}

// addPods adds running pods. A new LastStart distinguishes each from an earlier pod
// with the same name and UID, even if that one was removed in the same step.
func (r *replay) addPods(pods []pod) {
	for i := range pods {
		r.starts++
		p := pods[i].clone()
		p.LastStart = r.starts
		r.running = append(r.running, &runningPod{pod: p})
	}
}

// step applies one step and decides on it.
func (r *replay) step(st *step) Step {
	now := start.Add(st.at)
	r.running = slices.DeleteFunc(r.running, func(m *runningPod) bool { return slices.Contains(st.gone, m.Key()) })
	r.addPods(st.add)
	for _, m := range r.running {
		if usage, ok := st.usage[m.Key()]; ok {
			usage.apply(m.pod)
		}
	}
	r.delete(st.deleted, now)
	r.observe(st.signals, allSignals)
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
		r.scheduleReturns(&orders, now)
		out.add(&orders, first)
		if orders.Reclaim == nil {
			break
		}
		r.observe(st.after[orders.Reclaim.Kind], signal.Signal.IsDisk)
		in.Outcomes = []evict.Outcome{{}} // of the reclaim
	}
	// The reclaims' effects on other signals apply from the next step, because each
	// step acts on one signal.
	for _, kind := range out.Reclaim {
		r.observe(st.after[kind], func(s signal.Signal) bool { return !s.IsDisk() })
	}
	out.describePods(r.Scenario, st)
	return out
}

// delete deletes pods with their grace periods, not by evictd. In a closed loop their memory is
// freed at the end of that.
func (r *replay) delete(deleted map[string]instant, now time.Time) {
	for _, m := range r.running {
		grace, ok := deleted[m.Key()]
		if !ok {
			continue
		}
		m.Ending, m.EndsBy = true, now.Add(time.Duration(grace))
		if r.closedLoop != nil && (m.returns == nil || m.EndsBy.Before(*m.returns)) {
			returns := m.EndsBy
			m.returns = &returns
		}
	}
}

// allSignals accepts all signals.
func allSignals(signal.Signal) bool { return true }

// observe sets new values of the wanted signals.
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

// pods returns the running pods as evict.Pods.
func (r *replay) pods(now time.Time) []evict.Pod {
	pods := make([]evict.Pod, len(r.running))
	for i, m := range r.running {
		pods[i] = m.evictPod(m.returns != nil && !now.Before(*m.returns))
	}
	return pods
}

// computeMemory computes the memory signals of a closed loop.
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

// scheduleReturns sets when the memory of evicted pods is freed in a closed loop: at
// once, or at the end of a soft eviction's grace period.
func (r *replay) scheduleReturns(orders *evict.Orders, now time.Time) {
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
	for _, uid := range orders.Escalate {
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

// saturatingAdd returns a + b, at most math.MaxInt64. Neither may be negative.
func saturatingAdd(a, b int64) int64 {
	if b > math.MaxInt64-a {
		return math.MaxInt64
	}
	return a + b
}
