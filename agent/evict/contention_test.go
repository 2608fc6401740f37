package evict

import (
	"slices"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/signal"
)

const systemStalls = signal.SystemMemoryContentionPressure

// contendedNode returns a node with three pods and no signal low. Stalls started when
// it did.
func contendedNode(t *testing.T, action bool) *timeline {
	tl := newTimeline(t, hard(signal.MemoryAvailable, "1Gi"))
	tl.in.Policy.Contention = ContentionPolicy{Sustained: 5 * time.Second, Evict: action}
	tl.in.Measured = true
	tl.in.Pods = []Pod{aPod("a", using(2*gi)), aPod("b", using(gi)), aPod("c", using(gi/2))}
	tl.observe(signal.MemoryAvailable, 4*gi)
	tl.in.Contention = []Contention{{Condition: systemStalls, Since: start}}
	return tl
}

func TestContentionSetsCondition(t *testing.T) {
	tl := contendedNode(t, false)
	if o := tl.step(4999 * time.Millisecond); len(o.Conditions) != 0 {
		t.Errorf("conditions before it was sustained = %v; want none", o.Conditions)
	}
	for _, at := range []time.Duration{5 * time.Second, time.Minute} {
		o := tl.step(at)
		wantVictims(t, at.String(), o)
		if !slices.Equal(o.Conditions, []signal.Condition{systemStalls}) {
			t.Errorf("conditions after %v = %v; want %s", at, o.Conditions, systemStalls)
		}
	}
	tl.in.Contention = nil
	if o := tl.step(6*time.Minute - time.Second); len(o.Conditions) != 1 {
		t.Errorf("conditions within the transition period = %v; want one", o.Conditions)
	}
	if o := tl.step(6 * time.Minute); len(o.Conditions) != 0 {
		t.Errorf("conditions after the transition period = %v; want none", o.Conditions)
	}
}

// One pod is evicted each time the stalls have been sustained, in the order of memory.
func TestContentionEvicts(t *testing.T) {
	tl := contendedNode(t, true)
	wantVictims(t, "4s", tl.step(4*time.Second))
	o := tl.step(5 * time.Second)
	wantVictims(t, "5s", o, "a")
	want := Order{
		UID: "a", Pod: "default/a", Cause: string(systemStalls), Hard: true, Grace: time.Second, Expected: 2 * gi, Reason: ReasonEvicted,
		Message: "The node was low on resource: memory. Tasks have stalled on it for 5s (SystemMemoryContentionPressure). ",
	}
	if got := o.Evict[0]; got.Annotations[starvedResource] != "memory" || got.Message != want.Message || got.Cause != want.Cause ||
		got.Hard != want.Hard || got.Grace != want.Grace || got.Expected != want.Expected || got.Reason != want.Reason {
		t.Errorf("order = %+v; want %+v", got, want)
	}
	tl.remove("a")
	wantVictims(t, "6s", tl.step(6*time.Second))
	wantVictims(t, "9.9s", tl.step(9900*time.Millisecond))
	wantVictims(t, "10s: stalls continue", tl.step(10*time.Second), "b")
	tl.remove("b")
	// The stalls end and start again, so they must be sustained again.
	tl.in.Contention = nil
	tl.step(11 * time.Second)
	tl.in.Contention = []Contention{{Condition: systemStalls, Since: start.Add(12 * time.Second)}}
	wantVictims(t, "16s", tl.step(16*time.Second))
	wantVictims(t, "17s", tl.step(17*time.Second), "c")
}

// No pod is evicted for contention while a victim is in flight, whatever its cause, or
// before the pods are listed.
func TestContentionWaits(t *testing.T) {
	tl := contendedNode(t, true)
	tl.observe(signal.MemoryAvailable, gi/2)
	o := tl.step(5 * time.Second)
	wantVictims(t, "for the signal", o, "a")
	if o.Evict[0].Cause != "memory.available" {
		t.Errorf("cause = %s; want the signal first", o.Evict[0].Cause)
	}
	wantVictims(t, "a is in flight", tl.step(5500*time.Millisecond))
	tl.remove("a")
	tl.observe(signal.MemoryAvailable, 4*gi)
	wantVictims(t, "a is gone", tl.step(5600*time.Millisecond), "b")

	tl = contendedNode(t, true)
	tl.in.Pods, tl.in.PodsUnknown = nil, true
	wantVictims(t, "pods not listed", tl.step(5*time.Second))
	if len(tl.state.ContentionEvictions) != 0 {
		t.Errorf("state.ContentionEvictions = %v; want none before a pod could be chosen", tl.state.ContentionEvictions)
	}
}

// A pod that is refused holds back no eviction for contention.
func TestContentionIgnoresRefusals(t *testing.T) {
	tl := contendedNode(t, true)
	tl.in.Policy.RefuseArrivals = true
	tl.state.Conditions = []ConditionTimer{{Condition: signal.MemoryPressure, Since: start, LastSeen: start}}
	tl.in.Pods = append(tl.in.Pods, aPod("new", ofKubelet, withPriority(0), func(p *Pod) { p.QoS, p.Arrived = BestEffort, start.Add(4*time.Second) }))
	wantVictims(t, "it is refused", tl.step(4500*time.Millisecond), "new")
	wantVictims(t, "it is in flight", tl.step(5*time.Second), "a")
}

func TestContentionInDryRun(t *testing.T) {
	tl := contendedNode(t, true)
	tl.in.DryRun = true
	wantVictims(t, "5s", tl.step(5*time.Second), "a")
	if got, want := tl.state.DryRunVictims[0].Cause, string(tl.in.Contention[0].Condition); got != want {
		t.Errorf("cause of the dry-run victim = %q; want %q", got, want)
	}
	wantVictims(t, "8s", tl.step(8*time.Second))
	wantVictims(t, "10s: a counts as gone and is reported once", tl.step(10*time.Second), "b")
	tl.in.Contention = nil
	tl.step(11 * time.Second)
	if len(tl.state.DryRunVictims) != 0 {
		t.Errorf("dry-run victims = %v; want none after the episode", tl.state.DryRunVictims)
	}
}

func TestContentionOfTwoCgroups(t *testing.T) {
	tl := contendedNode(t, true)
	tl.in.Contention = append(tl.in.Contention, Contention{Condition: signal.KubepodsMemoryContentionPressure, Since: start})
	o := tl.step(5 * time.Second)
	wantVictims(t, "one pod is enough for both", o, "a")
	if len(o.Conditions) != 2 {
		t.Errorf("conditions = %v; want both", o.Conditions)
	}
}

func TestContentionWithoutPolicy(t *testing.T) {
	tl := contendedNode(t, true)
	tl.in.Policy.Contention = ContentionPolicy{}
	if o := tl.step(time.Hour); len(o.Evict) != 0 || len(o.Conditions) != 0 {
		t.Errorf("evictions %v, conditions %v; want none", victims(o), o.Conditions)
	}
}
