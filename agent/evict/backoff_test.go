package evict

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/signal"
)

func TestFutile(t *testing.T) {
	tl := shortOfMemory(t, gi, 10*mi, 9*mi, 8*mi, 7*mi, 6*mi)
	o := tl.step(0)
	wantVictims(t, "0s", o, "a")
	if !o.Evict[0].Futile {
		t.Error("0s: order's Futile = false; want true")
	}
	want := []Futility{{Signal: signal.MemoryAvailable, Deficit: gi, Coverage: 40 * mi, Until: start.Add(time.Second)}}
	if diff := cmp.Diff(want, o.Futile); diff != "" {
		t.Errorf("0s: futile (-want +got):\n%s", diff)
	}
	// The back-off doubles from one victim to the next.
	for _, tt := range []struct {
		at     time.Duration
		victim string
	}{{time.Second, "b"}, {3 * time.Second, "c"}, {7 * time.Second, "d"}} {
		early := tl.step(tt.at - time.Millisecond)
		wantVictims(t, "just before "+tt.at.String(), early)
		if len(early.Ranking) != 0 {
			t.Errorf("just before %v: ranking %v; want none", tt.at, ranking(early.Ranking))
		}
		wantVictims(t, tt.at.String(), tl.step(tt.at), tt.victim)
	}
	// It ends with the first Step in which no threshold of the signal is met, whatever
	// other signals are.
	tl.in.Policy.Thresholds = append(tl.in.Policy.Thresholds, soft(signal.PIDAvailable, "100", time.Hour))
	tl.observe(signal.PIDAvailable, 0)
	tl.observe(signal.MemoryAvailable, 10*gi)
	wantVictims(t, "8s", tl.step(8*time.Second))
	tl.observe(signal.MemoryAvailable, 0)
	o = tl.step(9 * time.Second)
	wantVictims(t, "9s", o, "e")
	if got := o.Futile[0].Until; !got.Equal(start.Add(10 * time.Second)) {
		t.Errorf("9s: back-off until %v; want 1s, the minimum", got.Sub(start))
	}
}

func TestLongestBackoff(t *testing.T) {
	tl := shortOfMemory(t, gi)
	var last time.Duration
	for i := range 12 {
		tl.in.Pods = append(tl.in.Pods, aPod(fmt.Sprint("p", i), using(mi)))
		o := tl.step(last)
		if len(o.Evict) != 1 {
			t.Fatalf("victim %d at %v: %v", i, last, victims(o))
		}
		wait := o.Futile[0].Until.Sub(start) - last
		if want := min(time.Second<<i, time.Minute); wait != want {
			t.Errorf("back-off %d = %v; want %v", i, wait, want)
		}
		last += wait
	}
}

// A futile signal does not delay other signals.
func TestFutileSignalDoesNotBlock(t *testing.T) {
	tl := shortOfMemory(t, gi, mi, mi)
	tl.in.Policy.Thresholds = append(tl.in.Policy.Thresholds, hard(signal.PIDAvailable, "100"))
	tl.pod("b").Usage.PIDs = 200
	wantVictims(t, "0s", tl.step(0), "a")
	tl.observe(signal.PIDAvailable, 0)
	o := tl.step(time.Millisecond)
	wantVictims(t, "1ms", o, "b")
	if got := o.Evict[0].Cause; got != "pid.available" {
		t.Errorf("1ms: cause = %s; want pid.available", got)
	}
}

// The back-off of a soft threshold does not delay a hard one, which starts its own.
func TestFutileSoftDoesNotBlockHard(t *testing.T) {
	tl := newTimeline(t, soft(signal.MemoryAvailable, "4Gi", time.Second), hard(signal.MemoryAvailable, "1Gi"))
	for _, uid := range []string{"a", "b", "c", "d"} {
		tl.in.Pods = append(tl.in.Pods, aPod(uid, using(100*mi), withGrace(600)))
	}
	tl.in.Policy.MaxPodGraceSeconds = 600
	tl.observe(signal.MemoryAvailable, 2*gi)
	tl.step(0)
	wantVictims(t, "1s", tl.step(time.Second), "a")
	tl.observe(signal.MemoryAvailable, 0)
	o := tl.step(1100 * time.Millisecond)
	wantVictims(t, "1.1s", o, "b")
	if want := start.Add(2100 * time.Millisecond); len(o.Futile) != 1 || !o.Futile[0].Until.Equal(want) {
		t.Errorf("1.1s: futile %+v; want until %v", o.Futile, want)
	}
	wantVictims(t, "1.2s", tl.step(1200*time.Millisecond))
}

func TestTwoStuckAreFutile(t *testing.T) {
	tl := shortOfMemory(t, 100*mi, 200*mi, 200*mi, 200*mi, 200*mi)
	tl.in.Measured = true
	wantVictims(t, "0s", tl.step(0), "a")
	o := tl.step(time.Second)
	wantVictims(t, "a is stuck and no longer counts", o, "b")
	if o.Evict[0].Futile {
		t.Error("futile = true with one stuck victim; want false")
	}
	o = tl.step(2 * time.Second)
	wantVictims(t, "b is stuck too", o, "c")
	if !o.Evict[0].Futile || len(o.Futile) != 1 {
		t.Errorf("order %+v, futile %+v; want both futile", o.Evict[0], o.Futile)
	}
	tl.remove("a")
	tl.remove("b")
	o = tl.step(3 * time.Second)
	wantVictims(t, "c is stuck, the others are gone", o, "d")
	if !o.Evict[0].Futile {
		t.Error("futile = false after three victims in a row freed nothing; want true")
	}
}

func TestPoorReturnsAreFutile(t *testing.T) {
	for _, tt := range []struct {
		returned int64 // of 200 MiB, by each
		want     bool
	}{{99 * mi, true}, {100 * mi, false}} {
		tl := shortOfMemory(t, 50*mi, 200*mi, 200*mi, 200*mi, 200*mi)
		tl.in.Measured = true
		o := tl.step(0)
		for i, name := range []string{"a", "b", "c"} {
			at := time.Duration(i) * 1500 * time.Millisecond
			wantVictims(t, at.String(), o, name)
			if o.Evict[0].Futile {
				t.Errorf("%s: futile = true after fewer than three victims; want false", name)
			}
			tl.setFreeable(name, 200*mi-tt.returned)
			wantVictims(t, "the rest of "+name+" covers the deficit", tl.step(at+500*time.Millisecond))
			o = tl.step(at + 1500*time.Millisecond)
			if got := tl.status(name); got != Stuck {
				t.Errorf("%s is %s; want %s", name, got, Stuck)
			}
			tl.remove(name)
		}
		wantVictims(t, "the fourth", o, "d")
		if got := o.Evict[0].Futile; got != tt.want {
			t.Errorf("three victims that free %d MiB of 200: futile = %t; want %t", tt.returned/mi, got, tt.want)
		}
	}
}

func TestFailedOrder(t *testing.T) {
	tl := shortOfMemory(t, 100*mi, 200*mi, 150*mi)
	tl.in.Measured = true
	wantVictims(t, "0s", tl.step(0), "a")
	o := tl.step(100*time.Millisecond, Outcome{UID: "a", Err: errors.New("no such cgroup")})
	wantVictims(t, "the next pod is evicted instead", o, "b")
	if diff := cmp.Diff([]Exempt{{Pod: "default/a", UID: "a", Reason: ReasonTerminating}}, o.Exempt); diff != "" {
		t.Errorf("exempt (-want +got):\n%s", diff)
	}
	tl.remove("b")
	wantVictims(t, "10.099s", tl.step(10099*time.Millisecond))
	wantVictims(t, "10.1s", tl.step(10100*time.Millisecond), "a")
	// An outcome without an error is no failure, and that of an unknown pod is ignored.
	tl.step(10200*time.Millisecond, Outcome{UID: "a"}, Outcome{UID: "unknown", Err: errors.New("x")})
	if got := tl.status("a"); got != Unsettled {
		t.Errorf("status = %s; want %s", got, Unsettled)
	}
}

func TestRevived(t *testing.T) {
	tl := shortOfMemory(t, 100*mi, 200*mi)
	tl.pod("a").Kubelet = true
	at, start := time.Duration(0), int64(1)
	for _, backoff := range []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second} {
		tl.pod("a").LastStart = start
		wantVictims(t, at.String(), tl.step(at), "a")
		pods := tl.in.Pods
		tl.remove("a")
		tl.step(at + time.Millisecond)
		tl.in.Pods = pods
		start++
		tl.pod("a").LastStart = start
		at += 2 * time.Millisecond
		o := tl.step(at)
		wantVictims(t, "started again", o)
		if diff := cmp.Diff([]string{"a"}, o.Revived); diff != "" {
			t.Errorf("revived (-want +got):\n%s", diff)
		}
		if len(o.Exempt) != 1 || o.Exempt[0].Reason != ReasonProtected {
			t.Errorf("exempt = %+v; want a protected", o.Exempt)
		}
		o = tl.step(at + backoff - time.Nanosecond)
		wantVictims(t, "just before the back-off ends", o)
		if len(o.Revived) != 0 {
			t.Errorf("revived = %v a second time; want none", o.Revived)
		}
		at += backoff
	}
	wantVictims(t, "after the back-off", tl.step(at), "a")
	tl.remove("a")
	tl.step(at + time.Hour)
	if tl.step(at + 2*time.Hour); len(tl.state.Revivals) != 0 {
		t.Errorf("revivals = %+v; want none after 2h", tl.state.Revivals)
	}
}

// The pod is started again before a Step observes that it is gone.
func TestRevivedBetweenSteps(t *testing.T) {
	tl := shortOfMemory(t, 100*mi, 200*mi)
	tl.pod("a").Kubelet, tl.pod("a").LastStart = true, 1
	tl.step(0)
	tl.pod("a").LastStart = 2
	if diff := cmp.Diff([]string{"a"}, tl.step(time.Second).Revived); diff != "" {
		t.Errorf("revived (-want +got):\n%s", diff)
	}
}
