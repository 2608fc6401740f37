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

// generator creates random nodes. It uses few different values, so that pods are often
// equal, and small amounts, so that thresholds are often met.
type generator struct{ *rand.Rand }

func (g generator) oneIn(of int) bool { return g.IntN(of) == 0 }

func (g generator) quantity(most int64) *resource.Quantity {
	return resource.NewQuantity(g.Int64N(most), resource.BinarySI)
}

func (g generator) pod(i int) Pod {
	p := aPod(fmt.Sprintf("p%02d", i))
	p.HasStats = !g.oneIn(6)
	p.Static, p.Mirror, p.Kubelet = g.oneIn(20), g.oneIn(20), g.oneIn(5)
	if g.oneIn(2) {
		p.Priority = new([]int32{-1, 0, 1, 2_000_000_000}[g.IntN(4)])
	}
	if g.oneIn(15) {
		p.ProtectedReason = "exempt by its source"
	}
	if g.oneIn(8) {
		p.Ending, p.EndsBy = true, start.Add(time.Duration(g.IntN(60))*time.Second)
	}
	if p.Kubelet && g.oneIn(2) {
		p.Unreportable = "no facts"
	}
	if p.Kubelet && g.oneIn(2) {
		g.arrive(&p)
	}
	if g.oneIn(3) {
		p.TerminationGraceSeconds = new(g.Int64N(5))
	}
	p.Containers = make([]Container, g.IntN(3))
	for j := range p.Containers {
		r := &p.Containers[j].Resources
		p.Containers[j].Name = fmt.Sprint("c", j)
		if g.oneIn(2) {
			r.Requests = Amounts{Memory: g.quantity(4), EphemeralStorage: g.quantity(4)}
		}
		if g.oneIn(8) {
			r.Limits.EphemeralStorage = g.quantity(6)
		}
	}
	if g.oneIn(4) {
		v := Volume{Name: "v", Type: EmptyDir}
		if g.oneIn(3) {
			v.SizeLimit = g.quantity(4)
		}
		p.Volumes = []Volume{v}
	}
	if g.oneIn(8) {
		p.Resources.Requests.Memory = g.quantity(4)
	}
	g.setUsage(&p)
	return p
}

// arrive makes the pod one that came to the node when the test did, mostly a BestEffort one.
func (g generator) arrive(p *Pod) {
	p.Arrived, p.QoS = start.Add(time.Duration(g.IntN(8000))*time.Millisecond), BestEffort
	if g.oneIn(4) {
		p.QoS = Burstable
	}
}

// arrivals returns pods of which no container has started.
func (g generator) arrivals() (arrivals []Pod) {
	for i := range g.IntN(2 * maxRefusals) {
		p := g.pod(100 + i)
		p.Kubelet, p.Ending, p.HasStats, p.Usage = true, false, false, PodUsage{}
		g.arrive(&p)
		arrivals = append(arrivals, p)
	}
	return arrivals
}

// kubeletHard returns hard thresholds of a kubelet.
func (g generator) kubeletHard() (kubelet []Threshold) {
	for _, s := range signal.All() {
		if g.oneIn(4) {
			kubelet = append(kubelet, hard(s, fmt.Sprint(1+g.IntN(8))))
		}
	}
	return kubelet
}

// setUsage sets the pod's usage to random values.
func (g generator) setUsage(p *Pod) {
	p.Usage = PodUsage{Memory: g.Int64N(6), PIDs: g.Int64N(6)}
	p.Usage.Freeable = g.Int64N(p.Usage.Memory + 1)
	for i := range p.Containers {
		p.Containers[i].Usage = ContainerUsage{Memory: g.Int64N(4), Rootfs: g.Int64N(4), Logs: g.Int64N(3), Inodes: g.Int64N(4), ImagesBytes: g.Int64N(3)}
	}
	for i := range p.Volumes {
		p.Volumes[i].Used, p.Volumes[i].Inodes = g.Int64N(6), g.Int64N(6)
	}
}

func (g generator) policy() *Policy {
	var configured []signal.Threshold
	for _, grace := range []time.Duration{0, 2 * time.Second} {
		for _, s := range signal.All() {
			if !g.oneIn(2) {
				continue
			}
			th := soft(s, fmt.Sprint(1+g.IntN(8)), grace)
			if g.oneIn(2) {
				th = th.reclaiming(fmt.Sprint(g.IntN(4)))
			}
			configured = append(configured, th.Threshold)
		}
	}
	layout := Layout(g.IntN(3))
	return &Policy{
		Thresholds: WithDerived(configured, layout, g.oneIn(2)), Layout: layout, TransitionPeriod: 3 * time.Second,
		MaxPodGraceSeconds: g.Int64N(4) - 1, MaxVictims: 1 + g.IntN(3), SettleTimeout: time.Second, ProtectUnknownPriority: g.oneIn(2), ProtectUnreportable: g.oneIn(2),
		RefuseArrivals: g.oneIn(2),
	}
}

// changeNode changes a node before its next Step.
func (g generator) changeNode(in *Inputs) {
	for i := range in.Observations {
		switch o := &in.Observations[i]; g.IntN(6) {
		case 0:
			*o = signal.Observation{Status: signal.Unreadable}
		case 1, 2:
			*o = signal.Observation{Status: signal.Observed, Available: g.Int64N(16) - 1, Capacity: 16, Cache: g.Int64N(3) * int64(g.IntN(2))}
		}
	}
	in.Pods = slices.DeleteFunc(in.Pods, func(Pod) bool { return g.oneIn(10) })
	for i := range in.Pods {
		if g.oneIn(3) {
			g.setUsage(&in.Pods[i])
		}
		if g.oneIn(10) {
			in.Pods[i].LastStart++
		}
	}
	in.ReclaimStalled, in.PodsReclaimStalled = g.oneIn(3), g.oneIn(3)
}

func TestProperties(t *testing.T) {
	refused := 0
	for seed := range uint64(300) {
		g := generator{rand.New(rand.NewPCG(seed, 1))}
		tl := newTimeline(t)
		tl.in.Policy = g.policy()
		tl.in.Measured, tl.in.DryRun = g.oneIn(2), g.oneIn(3)
		tl.in.KubeletHard = g.kubeletHard()
		for i := range g.IntN(12) {
			tl.in.Pods = append(tl.in.Pods, g.pod(i))
		}
		at := time.Duration(0)
		for step := range 8 {
			g.changeNode(&tl.in)
			tl.in.Arrivals = g.arrivals()
			at += time.Duration(g.IntN(1500)) * time.Millisecond
			var outcomes []Outcome
			if tl.state.Reclaim != nil && g.oneIn(2) {
				outcomes = append(outcomes, Outcome{})
			}
			before, pods := tl.state.Clone(), tl.in.Pods
			if tl.in.PodsUnknown = g.oneIn(10); tl.in.PodsUnknown {
				tl.in.Pods = nil
			}
			orders := tl.step(at, outcomes...)
			where := fmt.Sprintf("seed %d, step %d", seed, step)
			checkOrders(t, where, tl, &before, &orders)
			checkRefusals(t, where, tl, &before, &orders)
			checkLeftToKubelet(t, where, tl, &orders)
			refused += len(orders.Refuse)
			checkPermuted(t, where, g, tl, &before, start.Add(at), &orders)
			if tl.in.PodsUnknown && (len(tl.state.Victims) < len(before.Victims) || tl.in.DryRun && len(tl.state.DryRunVictims) < len(before.DryRunVictims)) {
				t.Errorf("%s: a victim was removed while the pods were not listed", where)
			}
			tl.in.Pods = pods
			if t.Failed() {
				return
			}
		}
	}
	if refused == 0 {
		t.Error("no pod was refused")
	}
}

// checkRefusals expects that only BestEffort pods are refused that may be and that have come since
// the node has MemoryPressure, and no more of them than the limit.
func checkRefusals(t *testing.T, where string, tl *timeline, before *State, o *Orders) {
	t.Helper()
	since := tl.state.conditionSince(signal.MemoryPressure)
	check := func(pod *Pod) {
		if pod.QoS != BestEffort || pod.Critical() || pod.ProtectedReason != "" || since.IsZero() || !pod.Arrived.After(since) || !tl.in.Policy.RefuseArrivals {
			t.Errorf("%s: %s is refused; it came at %v, MemoryPressure at %v", where, pod.UID, pod.Arrived, since)
		}
	}
	for _, e := range o.Evict {
		if e.Cause == CauseAdmission {
			check(tl.pod(e.UID))
		}
	}
	seen := map[string]bool{}
	for _, e := range o.Refuse {
		i := slices.IndexFunc(tl.in.Arrivals, func(p Pod) bool { return p.UID == e.UID })
		if i < 0 || seen[e.UID] {
			t.Fatalf("%s: %s is refused twice, or is no arrival", where, e.UID)
		}
		seen[e.UID] = true
		check(&tl.in.Arrivals[i])
	}
	if n := len(tl.state.Refusals) - len(before.Refusals); n > maxRefusals {
		t.Errorf("%s: %d pods are refused; want at most %d", where, n, maxRefusals)
	}
}

// conditionSince returns since when a condition is published; zero if it never was.
func (s *State) conditionSince(c signal.Condition) (since time.Time) {
	for i := range s.Conditions {
		if s.Conditions[i].Condition == c {
			since = s.Conditions[i].Since
		}
	}
	return since
}

// checkLeftToKubelet expects no order for a threshold on which the kubelet acts first.
func checkLeftToKubelet(t *testing.T, where string, tl *timeline, o *Orders) {
	t.Helper()
	if o.ActedOn != nil && o.ActedOn.EvictedFirst(tl.in.KubeletHard, &tl.in.Observations[o.ActedOn.Signal]) != nil {
		t.Errorf("%s: acted on %s, which is left to the kubelet", where, o.ActedOn.Signal)
	}
}

func isLimit(cause string) bool {
	_, isSignal := signal.Parse(cause)
	return !isSignal
}

// stillInFlight reports whether the pod was ordered to be evicted and must not be
// ordered again: it is not stuck, and the order did not fail.
func stillInFlight(s *State, pod *Pod) bool {
	v := s.victim(pod.UID)
	return v != nil && pod.LastStart == v.LastStart && (v.Status == Unsettled || v.Status == Settled)
}

// checkOrders checks the properties of the orders of one Step.
//
// Complexity: one property after the other, each with its own conditions.
//
//gocyclo:ignore
func checkOrders(t *testing.T, where string, tl *timeline, before *State, o *Orders) {
	t.Helper()
	policy := tl.in.Policy
	seen := map[string]bool{}
	var bySignal []Order
	for _, e := range o.Evict {
		pod := tl.pod(e.UID)
		switch {
		case seen[e.UID]:
			t.Errorf("%s: %s is ordered twice", where, e.UID)
		case pod.Critical() || pod.ProtectedReason != "":
			t.Errorf("%s: %s is exempt and was chosen", where, e.UID)
		case stillInFlight(before, pod):
			t.Errorf("%s: %s is being evicted and was chosen", where, e.UID)
		case e.Grace < time.Second, e.Hard && e.Grace != time.Second:
			t.Errorf("%s: %s has a grace period of %v; want 1s if hard, else at least 1s", where, e.UID, e.Grace)
		}
		seen[e.UID] = true
		if !isLimit(e.Cause) {
			bySignal = append(bySignal, e)
		}
	}
	if o.Reclaim != nil && len(bySignal) > 0 {
		t.Errorf("%s: reclaim and evictions for a signal in one Step", where)
	}
	unique := map[string]bool{}
	for _, v := range tl.state.DryRunVictims {
		if unique[v.UID] {
			t.Errorf("%s: %s is a dry-run victim twice", where, v.UID)
		}
		unique[v.UID] = true
	}
	unique = map[string]bool{}
	for _, v := range tl.state.Victims {
		if unique[v.UID] {
			t.Errorf("%s: %s is a victim twice", where, v.UID)
		}
		unique[v.UID] = true
	}
	if len(bySignal) == 0 {
		checkHardMemoryActs(t, where, tl, before, o)
		return
	}

	s, _ := signal.Parse(bySignal[0].Cause)
	if len(bySignal) > policy.MaxVictims || len(bySignal) > len(o.Ranking) {
		t.Fatalf("%s: %d victims of %d ranked, at most %d", where, len(bySignal), len(o.Ranking), policy.MaxVictims)
	}
	var sum int64
	for i, e := range bySignal {
		if e.UID != o.Ranking[i].UID {
			t.Errorf("%s: victims %v; want a prefix of the ranking %v", where, victims(*o), ranking(o.Ranking))
		}
		if e.Cause != bySignal[0].Cause {
			t.Errorf("%s: victims for %s and %s in one Step", where, e.Cause, bySignal[0].Cause)
		}
		if i > 0 && (sum >= e.Deficit || e.Futile) {
			t.Errorf("%s: victim %d was chosen although %d of %d are covered, futile %t", where, i, sum, e.Deficit, e.Futile)
		}
		sum += e.Expected
	}
	for i, last := 0, o.Ranking[len(bySignal)-1]; i < len(o.Ranking); i++ {
		r := o.Ranking[i]
		pod := &tl.in.Pods[r.Index()]
		if pod.UID != r.UID {
			t.Errorf("%s: Index() of %s is the index of %s", where, r.UID, pod.UID)
		}
		chosen := &tl.in.Pods[last.Index()]
		over := func(p *Pod) bool { return p.usage(s, policy.Layout) > p.Request(s.Resource()) }
		if i >= len(bySignal) && s != signal.PIDAvailable && !s.IsInodes() && over(pod) && !over(chosen) {
			t.Errorf("%s: %s is within its request of %s and is evicted before %s, which exceeds its own", where, chosen.UID, s.Resource(), pod.UID)
		}
	}
}

// checkHardMemoryActs expects a victim if a hard memory threshold is met, a pod is
// eligible and nothing was done about it before. Pods that end without evictd may cover it.
func checkHardMemoryActs(t *testing.T, where string, tl *timeline, before *State, o *Orders) {
	t.Helper()
	if len(before.Victims)+len(before.Backoffs)+len(before.DryRunVictims)+len(o.Evict) > 0 ||
		slices.ContainsFunc(tl.state.Timers, func(t Timer) bool { return !t.Covered.IsZero() }) {
		return
	}
	ranked, _ := tl.in.Policy.Rank(tl.in.Pods, signal.MemoryAvailable, &tl.state, start.Add(time.Hour))
	for _, th := range tl.in.Policy.Thresholds {
		seen := tl.in.Observations[th.Signal]
		if th.Signal.IsMemory() && th.Hard() && seen.Cache == 0 && seen.Below(th.Value.Amount(0)) && len(ranked) > 0 && len(before.Revivals) == 0 {
			t.Errorf("%s: %s is %d, below %s, and no pod is evicted", where, th.Signal, seen.Available, th.Value)
		}
	}
}

// withoutIndex ignores a pod's index in the inputs.
var withoutIndex = cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".index" }, cmp.Ignore())

// checkPermuted expects the same result for the same pods in another order.
func checkPermuted(t *testing.T, where string, g generator, tl *timeline, before *State, now time.Time, want *Orders) {
	t.Helper()
	in := tl.in
	in.Pods = slices.Clone(in.Pods)
	g.Shuffle(len(in.Pods), func(i, j int) { in.Pods[i], in.Pods[j] = in.Pods[j], in.Pods[i] })
	state, orders := Step(*before, in, now)
	if diff := cmp.Diff(tl.state, state, emptyIsNil, readings); diff != "" {
		t.Errorf("%s: the state depends on the order of pods (-want +got):\n%s", where, diff)
	}
	if diff := cmp.Diff(*want, orders, quantities, unexported, emptyIsNil, withoutIndex); diff != "" {
		t.Errorf("%s: the orders depend on the order of pods (-want +got):\n%s", where, diff)
	}
}
