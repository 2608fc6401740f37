package evict

import (
	"testing"
	"time"

	"github.com/evictd/evictd/agent/signal"
)

// ending makes a pod end without evictd, within a time after start.
func ending(within time.Duration) option {
	return func(p *Pod) { p.Ending, p.EndsBy = true, start.Add(within) }
}

// What another pod in termination frees is not taken from a further pod, but a hard threshold
// waits for it only for the settle timeout.
func TestEndingPodCovers(t *testing.T) {
	tl := shortOfMemory(t, 300*mi, 300*mi, 300*mi)
	ending(time.Hour)(tl.pod("b"))
	wantVictims(t, "0s", tl.step(0))
	wantVictims(t, "999ms", tl.step(999*time.Millisecond))
	tl.observe(signal.MemoryAvailable, 10*gi-301*mi)
	o := tl.step(999 * time.Millisecond)
	wantVictims(t, "a deficit that it does not cover", o, "a", "b")
	if o.Evict[0].Deficit != 301*mi {
		t.Errorf("deficit %d; want all of it", o.Evict[0].Deficit)
	}
}

// A pod that ends does not count as coming back in the decision that evicts it.
func TestEndingPodCountsOnce(t *testing.T) {
	tl := shortOfMemory(t, 500*mi, 300*mi, 300*mi, 300*mi)
	ending(time.Hour)(tl.pod("a"))
	wantVictims(t, "a ranks first", tl.step(0), "a", "b")
	table := shortOfMemory(t, 300*mi, 300*mi, 300*mi, 300*mi)
	ending(time.Hour)(table.pod("a"))
	wantVictims(t, "a covers", table.step(0))
	decide := NewTable(&table.in, &table.state, start)
	table.observe(signal.MemoryAvailable, 10*gi-500*mi)
	if v := decide.Decide(&table.in.Observations, start); v.N != 2 || v.Deficit != 500*mi {
		t.Errorf("Decide() = %+v; want a and b for all of the deficit", v)
	}
}

// After the settle timeout a pod that ends covers nothing.
func TestEndingPodSettleTimeout(t *testing.T) {
	tl := shortOfMemory(t, 300*mi, 300*mi, 300*mi)
	ending(time.Hour)(tl.pod("b"))
	wantVictims(t, "0s", tl.step(0))
	wantVictims(t, "1s", tl.step(time.Second), "a")
}

func TestEndingPodFrees(t *testing.T) {
	tl := shortOfMemory(t, 300*mi, 300*mi, 300*mi)
	ending(time.Hour)(tl.pod("b"))
	tl.observe(signal.MemoryAvailable, 20*gi)
	tl.step(0)
	tl.observe(signal.MemoryAvailable, 10*gi-300*mi)
	wantVictims(t, "it was seen 900ms ago", tl.step(900*time.Millisecond))
	tl.remove("b")
	tl.observe(signal.MemoryAvailable, 10*gi)
	wantVictims(t, "it has gone", tl.step(950*time.Millisecond))
	if len(tl.state.Ending) > 0 || len(tl.state.Timers) > 0 {
		t.Errorf("state %+v; want nothing of the pod and of the crossing", tl.state)
	}
}

// A pod that has been ending for longer than the settle timeout is ranked as any other.
func TestEndingPodIsRanked(t *testing.T) {
	tl := shortOfMemory(t, 300*mi, 300*mi, 200*mi)
	ending(time.Hour)(tl.pod("a"))
	tl.observe(signal.MemoryAvailable, 20*gi)
	tl.step(0)
	tl.observe(signal.MemoryAvailable, 10*gi-300*mi)
	wantVictims(t, "2s", tl.step(2*time.Second), "a")
}

// Pods that are deleted one after the other hold back a hard threshold no longer than one of them.
func TestEndingPodsDoNotHoldBack(t *testing.T) {
	tl := shortOfMemory(t, 300*mi, 300*mi, 300*mi, 300*mi, 300*mi)
	for i, uid := range []string{"b", "c"} {
		ending(time.Hour)(tl.pod(uid))
		wantVictims(t, uid, tl.step(time.Duration(i)*900*time.Millisecond))
	}
	ending(time.Hour)(tl.pod("d"))
	wantVictims(t, "after the settle timeout", tl.step(1100*time.Millisecond), "a")
	tl.observe(signal.MemoryAvailable, 20*gi)
	tl.step(1200 * time.Millisecond)
	tl.observe(signal.MemoryAvailable, 10*gi-300*mi)
	ending(time.Hour)(tl.pod("d"))
	wantVictims(t, "in the next crossing", tl.step(1300*time.Millisecond))
}

// Below half of a hard threshold, nothing is waited for.
func TestEndingPodDoesNotCoverHalf(t *testing.T) {
	tl := shortOfMemory(t, 5*gi, gi, 8*gi)
	ending(time.Second)(tl.pod("b"))
	wantVictims(t, "half is left", tl.step(0))
	tl.observe(signal.MemoryAvailable, 5*gi-1)
	wantVictims(t, "less is left", tl.step(time.Millisecond), "b")
}

// A pod in termination is no victim of a soft threshold, and counts, until its grace period ends
// if that is no longer than a victim's. Then it is ranked as any other, with what is left of a
// victim's grace period.
func TestEndingPodSoft(t *testing.T) {
	for _, tt := range []struct {
		name     string
		limit    int64 // of the grace period, seconds
		within   time.Duration
		until    time.Duration // no victim before
		settings func(*Pod)
		grace    time.Duration // of the pod as a victim
	}{
		{"within the limit", 20, 20 * time.Second, 21 * time.Second, nil, MinGrace},
		{"beyond the limit", 20, 21 * time.Second, 0, nil, 20 * time.Second},
		{"without a limit", -1, 30 * time.Second, 31 * time.Second, nil, MinGrace},
		{"longer, without a limit", -1, time.Hour, 0, nil, DefaultGrace},
		{"overdue", 20, -time.Minute, 0, nil, MinGrace},
		{"unknown end", 20, 0, 2 * time.Second, func(p *Pod) { p.EndsBy = time.Time{} }, 18 * time.Second},
	} {
		tl := newTimeline(t, soft(signal.MemoryAvailable, "10Gi", 0))
		tl.in.Policy.Thresholds[0].Grace = time.Nanosecond
		tl.in.Policy.MaxPodGraceSeconds = tt.limit
		tl.in.Pods = []Pod{aPod("a", using(300*mi)), aPod("b", using(400*mi), ending(tt.within-time.Nanosecond))}
		if tt.settings != nil {
			tt.settings(&tl.in.Pods[1])
		}
		tl.observe(signal.MemoryAvailable, 20*gi)
		tl.step(-1)
		tl.observe(signal.MemoryAvailable, 10*gi-300*mi)
		tl.step(-1) // the grace period of the threshold begins
		for at := time.Duration(0); at < tt.until; at += 500 * time.Millisecond {
			wantVictims(t, tt.name, tl.step(at))
		}
		o := tl.step(tt.until)
		wantVictims(t, tt.name+" at its end", o, "b")
		if got := o.Evict[0].Grace; got > tt.grace || got < tt.grace-time.Microsecond {
			t.Errorf("%s: grace period %v; want %v", tt.name, got, tt.grace)
		}
	}
}

// While a pod that ends counts, another pod is evicted for what it does not cover.
func TestEndingPodIsExemptFromSoft(t *testing.T) {
	tl := newTimeline(t, soft(signal.MemoryAvailable, "10Gi", time.Nanosecond))
	tl.in.Policy.MaxPodGraceSeconds = 20
	tl.in.Pods = []Pod{aPod("a", using(300*mi)), aPod("b", using(400*mi), ending(20*time.Second))}
	tl.observe(signal.MemoryAvailable, 10*gi-500*mi)
	tl.step(0)
	o := tl.step(time.Second)
	wantVictims(t, "1s", o, "a")
	if len(o.Exempt) != 1 || o.Exempt[0].UID != "b" || o.Exempt[0].Reason != ReasonTerminating || o.Evict[0].Deficit != 100*mi {
		t.Errorf("exempt %+v, deficit %d; want b, and what b does not cover", o.Exempt, o.Evict[0].Deficit)
	}
}

// Pods that are deleted one after the other hold back a soft threshold for one grace period.
func TestEndingPodsDoNotHoldBackSoft(t *testing.T) {
	tl := newTimeline(t, soft(signal.MemoryAvailable, "10Gi", time.Nanosecond))
	tl.in.Policy.MaxPodGraceSeconds = 20
	tl.in.Pods = []Pod{aPod("a", using(300*mi))}
	tl.observe(signal.MemoryAvailable, 10*gi-300*mi)
	tl.step(-1)
	for at := time.Duration(0); at < 21*time.Second; at += 10 * time.Second {
		tl.in.Pods = append(tl.in.Pods, aPod("b"+at.String(), using(300*mi), ending(at+20*time.Second)))
		wantVictims(t, at.String(), tl.step(at))
	}
	wantVictims(t, "22s", tl.step(22*time.Second), "a")
}

// A pod that was killed counts as a victim alone.
func TestEndingVictimCountsOnce(t *testing.T) {
	tl := shortOfMemory(t, 300*mi, 300*mi, 300*mi)
	wantVictims(t, "0s", tl.step(0), "a")
	ending(time.Hour)(tl.pod("a"))
	tl.observe(signal.MemoryAvailable, 10*gi-600*mi)
	wantVictims(t, "it is being deleted", tl.step(time.Millisecond), "b")
}

// The hot path decides the same between two steps.
func TestTableEndingPod(t *testing.T) {
	tl := nodeWithPods(t, 300, 300, 300)
	ending(time.Hour)(tl.pod("p1"))
	tl.step(0)
	table := NewTable(&tl.in, &tl.state, start)
	decide := func(available int64, at time.Duration) Verdict {
		tl.observe(signal.MemoryAvailable, available)
		return table.Decide(&tl.in.Observations, start.Add(at))
	}
	if v := decide(800*mi, 500*time.Millisecond); v.Reason != Covered {
		t.Errorf("Decide() = %+v; want that the deficit is covered", v)
	}
	if allocations := testing.AllocsPerRun(100, func() { decide(800*mi, 600*time.Millisecond) }); allocations > 0 {
		t.Errorf("%v allocations in Decide(); want none", allocations)
	}
	if !table.AwaitsEnding() {
		t.Error("AwaitsEnding() = false; want true")
	}
	if v := decide(700*mi, 700*time.Millisecond); v.N != 2 || v.Deficit != 324*mi {
		t.Errorf("Decide() = %+v; want two victims for what p1 does not cover", v)
	}
	if v := decide(500*mi, 700*time.Millisecond); v.N != 2 {
		t.Errorf("Decide() below half of the threshold = %+v; want two victims", v)
	}
	if v := decide(800*mi, time.Second); v.N != 1 || v.Deficit != 224*mi {
		t.Errorf("Decide() after the settle timeout = %+v; want p0", v)
	}
	if decide(800*mi, 1500*time.Millisecond); table.AwaitsEnding() {
		t.Error("AwaitsEnding() = true after the settle timeout; want false")
	}
}
