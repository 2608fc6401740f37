package evict

import (
	"testing"
	"time"

	"github.com/evictd/evictd/agent/signal"
)

// restarted returns a state with one victim from before a restart, and the inputs of a
// node that is still low.
func restarted(t *testing.T, status VictimStatus) (State, Inputs) {
	t.Helper()
	value, err := signal.ParseThreshold("1Gi")
	if err != nil {
		t.Fatal(err)
	}
	hard := signal.Threshold{Signal: signal.MemoryAvailable, Value: value}
	policy := &Policy{
		Thresholds:       []Threshold{{Threshold: hard}},
		TransitionPeriod: 5 * time.Minute, MaxVictims: 3, SettleTimeout: time.Second,
	}
	state := State{Victims: []Victim{{
		UID: "hog", Pod: "default/hog", Cause: "memory.available", Decided: start, Due: start,
		Expected: 2 * gi, Lowest: 2 * gi, ProgressAt: start, Status: status,
	}}}
	in := Inputs{Policy: policy, Measured: true}
	in.Observations[signal.MemoryAvailable] = signal.Observation{Status: signal.Observed, Available: gi / 2, Capacity: 10 * gi, Time: start}
	return state, in
}

// Until the pods are listed after a restart, victims are not considered gone.
func TestUnlistedKeepsVictims(t *testing.T) {
	state, in := restarted(t, Unsettled)
	in.PodsUnknown = true
	state, orders := Step(state, in, start.Add(100*time.Millisecond))
	if len(state.Victims) != 1 || len(orders.Evict) != 0 {
		t.Fatalf("before the first list: victims %v, evictions %v; want the victim kept and none", state.Victims, orders.Evict)
	}
	in.PodsUnknown = false
	in.Pods = []Pod{aPod("hog", using(2*gi)), aPod("next", using(gi))}
	state, orders = Step(state, in, start.Add(200*time.Millisecond))
	if len(state.Victims) != 1 || len(orders.Evict) != 0 {
		t.Fatalf("with the list: victims %v, evictions %v; want the victim to cover the deficit", state.Victims, orders.Evict)
	}
	in.Pods = in.Pods[1:]
	state, orders = Step(state, in, start.Add(300*time.Millisecond))
	if len(orders.Evict) != 1 || orders.Evict[0].UID != "next" {
		t.Fatalf("without it: victims %v, evictions %v; want the next pod evicted", state.Victims, orders.Evict)
	}
}

// A dry-run victim is not reported again after a restart either.
func TestUnlistedKeepsDryRunVictims(t *testing.T) {
	state, in := restarted(t, Unsettled)
	state.Victims = nil
	state.DryRunVictims = []DryRunVictim{{UID: "hog", Signal: signal.MemoryAvailable}}
	in.DryRun, in.PodsUnknown = true, true
	state, _ = Step(state, in, start)
	in.PodsUnknown = false
	in.Pods = []Pod{aPod("hog", using(2*gi)), aPod("next", using(gi))}
	_, orders := Step(state, in, start.Add(time.Second))
	if len(orders.Evict) != 0 {
		t.Errorf("evictions = %v; want none", orders.Evict)
	}
}

// A stuck pod is chosen again after stuckRetryAfter.
func TestStuckIsRetried(t *testing.T) {
	state, in := restarted(t, Stuck)
	in.Pods = []Pod{aPod("hog", using(2*gi))}
	state, orders := Step(state, in, start.Add(stuckRetryAfter-time.Millisecond))
	if len(orders.Evict) != 0 {
		t.Fatalf("evictions before %v = %v; want none", stuckRetryAfter, orders.Evict)
	}
	_, orders = Step(state, in, start.Add(stuckRetryAfter))
	if len(orders.Evict) != 1 || orders.Evict[0].UID != "hog" {
		t.Errorf("evictions after %v = %v; want the pod evicted again", stuckRetryAfter, orders.Evict)
	}
}
