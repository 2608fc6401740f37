package evict

import (
	"testing"
	"time"

	"github.com/evictd/evictd/agent/signal"
)

// While stalls continue, one pod is evicted each time they have been sustained again,
// also the third time. Each decision has its ranking. Once the stalls have ended, no
// state of them is left.
func TestContentionRepeats(t *testing.T) {
	tl := contendedNode(t, true)
	for i, uid := range []string{"a", "b", "c"} {
		at := time.Duration(i+1) * 5 * time.Second
		wantVictims(t, "just before "+at.String(), tl.step(at-time.Millisecond))
		o := tl.step(at)
		wantVictims(t, at.String(), o, uid)
		if got := ranking(o.Ranking); len(got) != 3-i || got[0] != uid {
			t.Errorf("%v: ranking %v; want %d pods, %s first", at, got, 3-i, uid)
		}
		tl.remove(uid)
	}
	wantVictims(t, "no pod left", tl.step(20*time.Second))
	tl.in.Contention = nil
	tl.step(21 * time.Second)
	if len(tl.state.ContentionEvictions) != 0 {
		t.Errorf("state.ContentionEvictions = %+v; want none after the stalls have ended", tl.state.ContentionEvictions)
	}
}

// The contention of one cgroup does not change when a pod is evicted for that of
// another.
func TestContentionIsKeptPerCgroup(t *testing.T) {
	tl := contendedNode(t, true)
	wantVictims(t, "5s", tl.step(5*time.Second), "a")
	tl.remove("a")
	tl.in.Contention = append(tl.in.Contention, Contention{Condition: signal.KubepodsMemoryContentionPressure, Since: start.Add(2 * time.Second)})
	wantVictims(t, "7s: the pods' cgroup", tl.step(7*time.Second), "b")
	tl.remove("b")
	wantVictims(t, "8s", tl.step(8*time.Second))
	wantVictims(t, "10s: the first again", tl.step(10*time.Second), "c")
}

// In dry run, too, a Step that evicts for a signal evicts none for contention.
func TestContentionWaitsInDryRun(t *testing.T) {
	tl := contendedNode(t, true)
	tl.in.DryRun = true
	tl.observe(signal.MemoryAvailable, gi/2)
	wantVictims(t, "for the signal only", tl.step(5*time.Second), "a")
}
