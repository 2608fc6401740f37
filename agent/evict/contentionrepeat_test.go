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
	l := contendedNode(t, true)
	for i, uid := range []string{"a", "b", "c"} {
		at := time.Duration(i+1) * 5 * time.Second
		wantVictims(t, "just before "+at.String(), l.step(at-time.Millisecond))
		o := l.step(at)
		wantVictims(t, at.String(), o, uid)
		if got := ranking(o.Ranking); len(got) != 3-i || got[0] != uid {
			t.Errorf("%v: ranking %v; want %d pods, %s first", at, got, 3-i, uid)
		}
		l.remove(uid)
	}
	wantVictims(t, "no pod left", l.step(20*time.Second))
	l.in.Contention = nil
	l.step(21 * time.Second)
	if len(l.state.ContentionEvictions) != 0 {
		t.Errorf("state.ContentionEvictions = %+v; want none after the stalls have ended", l.state.ContentionEvictions)
	}
}

// The contention of one cgroup does not change when a pod is evicted for that of
// another.
func TestContentionIsKeptPerCgroup(t *testing.T) {
	l := contendedNode(t, true)
	wantVictims(t, "5s", l.step(5*time.Second), "a")
	l.remove("a")
	l.in.Contention = append(l.in.Contention, Contention{Condition: signal.KubepodsMemoryContentionPressure, Since: start.Add(2 * time.Second)})
	wantVictims(t, "7s: the pods' cgroup", l.step(7*time.Second), "b")
	l.remove("b")
	wantVictims(t, "8s", l.step(8*time.Second))
	wantVictims(t, "10s: the first again", l.step(10*time.Second), "c")
}

// In dry run, too, a Step that evicts for a signal evicts none for contention.
func TestContentionWaitsInDryRun(t *testing.T) {
	l := contendedNode(t, true)
	l.in.DryRun = true
	l.observe(signal.MemoryAvailable, gi/2)
	wantVictims(t, "for the signal only", l.step(5*time.Second), "a")
}
