package evict

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/evictd/evictd/agent/signal"
)

// chance makes nodes at random: few values, so that pods are often equal, and
// few bytes, so that thresholds are often met.
type chance struct{ *rand.Rand }

func (c chance) one(of int) bool { return c.IntN(of) == 0 }

func (c chance) quantity(most int64) *resource.Quantity {
	return resource.NewQuantity(c.Int64N(most), resource.BinarySI)
}

func (c chance) pod(i int) Pod {
	p := aPod(fmt.Sprintf("p%02d", i))
	p.HasStats = !c.one(6)
	p.Static, p.Mirror, p.Kubelet = c.one(20), c.one(20), c.one(5)
	if c.one(2) {
		p.Priority = new([]int32{-1, 0, 1, 2_000_000_000}[c.IntN(4)])
	}
	if c.one(15) {
		p.Spared = "left alone"
	}
	if c.one(3) {
		p.TerminationGraceSeconds = new(c.Int64N(5))
	}
	p.Containers = make([]Container, c.IntN(3))
	for j := range p.Containers {
		r := &p.Containers[j].Resources
		p.Containers[j].Name = fmt.Sprint("c", j)
		if c.one(2) {
			r.Requests = Amounts{Memory: c.quantity(4), EphemeralStorage: c.quantity(4)}
		}
		if c.one(8) {
			r.Limits.EphemeralStorage = c.quantity(6)
		}
	}
	if c.one(4) {
		v := Volume{Name: "v", Type: EmptyDir}
		if c.one(3) {
			v.SizeLimit = c.quantity(4)
		}
		p.Volumes = []Volume{v}
	}
	if c.one(8) {
		p.Resources.Requests.Memory = c.quantity(4)
	}
	c.use(&p)
	return p
}

// use changes what the pod uses.
func (c chance) use(p *Pod) {
	p.Usage = PodUsage{Memory: c.Int64N(6), PIDs: c.Int64N(6)}
	p.Usage.Freeable = c.Int64N(p.Usage.Memory + 1)
	for i := range p.Containers {
		p.Containers[i].Usage = ContainerUsage{Memory: c.Int64N(4), Rootfs: c.Int64N(4), Logs: c.Int64N(3), Inodes: c.Int64N(4), ImagesBytes: c.Int64N(3)}
	}
	for i := range p.Volumes {
		p.Volumes[i].Used, p.Volumes[i].Inodes = c.Int64N(6), c.Int64N(6)
	}
}

func (c chance) policy() *Policy {
	var configured []signal.Threshold
	for _, grace := range []time.Duration{0, 2 * time.Second} {
		for _, s := range signal.All() {
			if !c.one(2) {
				continue
			}
			th := soft(s, fmt.Sprint(1+c.IntN(8)), grace)
			if c.one(2) {
				th = th.reclaiming(fmt.Sprint(c.IntN(4)))
			}
			configured = append(configured, th.Threshold)
		}
	}
	layout := Layout(c.IntN(3))
	return &Policy{
		Thresholds: WithCopies(configured, layout, c.one(2)), Layout: layout, TransitionPeriod: 3 * time.Second,
		MaxPodGraceSeconds: c.Int64N(4) - 1, MaxVictims: 1 + c.IntN(3), SettleTimeout: time.Second, SpareUnknownPriority: c.one(2),
	}
}

// change moves a node on to its next step.
func (c chance) change(in *Inputs) {
	for i := range in.Observations {
		switch o := &in.Observations[i]; c.IntN(6) {
		case 0:
			*o = signal.Observation{Status: signal.Unreadable}
		case 1, 2:
			*o = signal.Observation{Status: signal.Observed, Available: c.Int64N(16) - 1, Capacity: 16, Cache: c.Int64N(3) * int64(c.IntN(2))}
		}
	}
	in.Pods = slices.DeleteFunc(in.Pods, func(Pod) bool { return c.one(10) })
	for i := range in.Pods {
		if c.one(3) {
			c.use(&in.Pods[i])
		}
		if c.one(10) {
			in.Pods[i].LastStart++
		}
	}
	in.ReclaimStalled, in.PodsReclaimStalled = c.one(3), c.one(3)
}

func TestProperties(t *testing.T) {
	for seed := range uint64(300) {
		c := chance{rand.New(rand.NewPCG(seed, 1))}
		l := newTimeline(t)
		l.in.Policy = c.policy()
		l.in.Measured, l.in.DryRun = c.one(2), c.one(3)
		for i := range c.IntN(12) {
			l.in.Pods = append(l.in.Pods, c.pod(i))
		}
		at := time.Duration(0)
		for step := range 8 {
			c.change(&l.in)
			at += time.Duration(c.IntN(1500)) * time.Millisecond
			var outcomes []Outcome
			if l.state.Reclaim != nil && l.state.Reclaim.Waiting && c.one(2) {
				outcomes = append(outcomes, Outcome{})
			}
			before, pods := l.state.Clone(), l.in.Pods
			if l.in.Unlisted = c.one(10); l.in.Unlisted {
				l.in.Pods = nil
			}
			orders := l.step(at, outcomes...)
			where := fmt.Sprintf("seed %d, step %d", seed, step)
			checkOrders(t, where, l, &before, &orders)
			checkPermuted(t, where, c, l, &before, begin.Add(at), &orders)
			if l.in.Unlisted && (len(l.state.Victims) < len(before.Victims) || l.in.DryRun && len(l.state.Pretended) < len(before.Pretended)) {
				t.Errorf("%s: a victim is forgotten before it is known what runs", where)
			}
			l.in.Pods = pods
			if t.Failed() {
				return
			}
		}
	}
}

func isLimit(cause string) bool {
	_, isSignal := signal.Parse(cause)
	return !isSignal
}

// onItsWay reports whether the pod was ordered to go and nothing speaks for
// ordering it again: it did not get stuck, and the order did not fail.
func onItsWay(s *State, pod *Pod) bool {
	v := s.victim(pod.UID)
	return v != nil && pod.LastStart == v.LastStart && (v.Status == Unsettled || v.Status == Settled)
}

// checkOrders checks the properties of the orders of one step.
//
// Complexity: one property after the other, each with conditions of its own.
//
//gocyclo:ignore
func checkOrders(t *testing.T, where string, l *timeline, before *State, o *Orders) {
	t.Helper()
	policy := l.in.Policy
	named := map[string]bool{}
	var bySignal []Order
	for _, e := range o.Evict {
		pod := l.pod(e.UID)
		switch {
		case named[e.UID]:
			t.Errorf("%s: %s is named twice", where, e.UID)
		case pod.Critical() || pod.Spared != "":
			t.Errorf("%s: %s is exempt and was chosen", where, e.UID)
		case onItsWay(before, pod):
			t.Errorf("%s: %s is on its way out and was chosen", where, e.UID)
		case e.Grace < time.Second, e.Hard && e.Grace != time.Second:
			t.Errorf("%s: %s has a grace of %v", where, e.UID, e.Grace)
		}
		named[e.UID] = true
		if !isLimit(e.Cause) {
			bySignal = append(bySignal, e)
		}
	}
	if o.Reclaim != nil && len(bySignal) > 0 {
		t.Errorf("%s: a reclaim and evictions for a signal in one step", where)
	}
	unique := map[string]bool{}
	for _, p := range l.state.Pretended {
		if unique[p.UID] {
			t.Errorf("%s: %s would be evicted twice in an episode", where, p.UID)
		}
		unique[p.UID] = true
	}
	unique = map[string]bool{}
	for _, v := range l.state.Victims {
		if unique[v.UID] {
			t.Errorf("%s: %s is in the books twice", where, v.UID)
		}
		unique[v.UID] = true
	}
	if len(bySignal) == 0 {
		checkMemoryDoesNotWait(t, where, l, before, o)
		return
	}

	s, _ := signal.Parse(bySignal[0].Cause)
	if len(bySignal) > policy.MaxVictims || len(bySignal) > len(o.Ranking) {
		t.Fatalf("%s: %d victims of %d ranked, at most %d", where, len(bySignal), len(o.Ranking), policy.MaxVictims)
	}
	var sum int64
	for i, e := range bySignal {
		if e.UID != o.Ranking[i].UID {
			t.Errorf("%s: victims %v are no prefix of the ranking %v", where, victims(*o), ranking(o.Ranking))
		}
		if e.Cause != bySignal[0].Cause {
			t.Errorf("%s: victims for %s and %s in one step", where, e.Cause, bySignal[0].Cause)
		}
		if i > 0 && (sum >= e.Deficit || e.Futile) {
			t.Errorf("%s: victim %d, though %d of %d are covered, futile %t", where, i, sum, e.Deficit, e.Futile)
		}
		sum += e.Expected
	}
	for i, last := 0, o.Ranking[len(bySignal)-1]; i < len(o.Ranking); i++ {
		r := o.Ranking[i]
		pod := &l.in.Pods[r.Index()]
		if pod.UID != r.UID {
			t.Errorf("%s: index of %s is that of %s", where, r.UID, pod.UID)
		}
		chosen := &l.in.Pods[last.Index()]
		over := func(p *Pod) bool { return p.usage(s, policy.Layout) > p.Request(s.Resource()) }
		if i >= len(bySignal) && s != signal.PIDAvailable && !s.IsInodes() && over(pod) && !over(chosen) {
			t.Errorf("%s: %s is within its request of %s and goes before %s, which exceeds its own", where, chosen.UID, s.Resource(), pod.UID)
		}
	}
}

// checkMemoryDoesNotWait expects a victim, or all pods exempt, where a hard
// threshold of memory is met and nothing was done about it yet.
func checkMemoryDoesNotWait(t *testing.T, where string, l *timeline, before *State, o *Orders) {
	t.Helper()
	if len(before.Victims)+len(before.Futile)+len(before.Pretended)+len(o.Evict) > 0 {
		return
	}
	ranked, _ := l.in.Policy.Rank(l.in.Pods, signal.MemoryAvailable, &l.state, begin.Add(time.Hour))
	for _, th := range l.in.Policy.Thresholds {
		seen := l.in.Observations[th.Signal]
		if th.Signal.IsMemory() && th.Hard() && seen.Cache == 0 && seen.Below(th.Value.Amount(0)) && len(ranked) > 0 && len(before.Revivals) == 0 {
			t.Errorf("%s: %s is %d, below %s, and nobody goes", where, th.Signal, seen.Available, th.Value)
		}
	}
}

// withoutIndex ignores where a pod stood in the input.
var withoutIndex = cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".index" }, cmp.Ignore())

// checkPermuted expects the same of the same pods in another order.
func checkPermuted(t *testing.T, where string, c chance, l *timeline, before *State, now time.Time, want *Orders) {
	t.Helper()
	in := l.in
	in.Pods = slices.Clone(in.Pods)
	c.Shuffle(len(in.Pods), func(i, j int) { in.Pods[i], in.Pods[j] = in.Pods[j], in.Pods[i] })
	state, orders := Step(*before, in, now)
	if diff := cmp.Diff(l.state, state, emptyIsNil, readings); diff != "" {
		t.Errorf("%s: the state depends on the order of pods (-want +got):\n%s", where, diff)
	}
	if diff := cmp.Diff(*want, orders, quantities, unexported, emptyIsNil, withoutIndex); diff != "" {
		t.Errorf("%s: the orders depend on the order of pods (-want +got):\n%s", where, diff)
	}
}
