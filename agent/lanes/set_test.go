package lanes

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/evictd/evictd/agent/pace"
	"github.com/evictd/evictd/kernel"
)

// run opens the world's lanes and runs them, and polling, until the test's end.
func (w *world) run(t *testing.T) (stop func()) {
	t.Helper()
	if err := w.Open(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	alarms := make(chan Raise, 1)
	go w.poll.Run(ctx, alarms)
	go w.Set.Run(ctx)
	return func() {
		cancel()
		synctest.Wait()
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}
}

func (w *world) want(t *testing.T, state State, why string) {
	t.Helper()
	synctest.Wait()
	if got := w.status(); got.State != state || !strings.Contains(got.Why, why) {
		t.Errorf("lane is %s: %q; want %s: %q", got.State, got.Why, state, why)
	}
}

// wantChange checks that the lane has come into a state once.
func (w *world) wantChange(t *testing.T, state State, why string) {
	t.Helper()
	synctest.Wait()
	for _, c := range w.changes {
		if c.State == state && strings.Contains(c.Why, why) {
			return
		}
	}
	t.Errorf("changes of the lane: %+v; want one to %s: %q", w.changes, state, why)
}

func TestLaneThatRaisesStaysUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil, Auto)
		stop := w.run(t)
		defer stop()
		for range 20 {
			time.Sleep(2 * time.Second)
			w.setMemory(t, gib/2, true)
			time.Sleep(300 * time.Millisecond)
			w.setMemory(t, 10*gib, false)
		}
		time.Sleep(5 * time.Second)
		w.want(t, Up, "")
		if got := w.status(); got.Raised != 20 || got.Missed != 0 || got.Reopened != 0 || len(w.ear.alarms()) != 20 {
			t.Errorf("status %+v, %d alarms heard; want 20 raised and heard, none missed", got, len(w.ear.alarms()))
		}
	})
}

// Polling sees a crossing that the lane did not raise, however short it was.
func TestLaneThatMissesIsDegraded(t *testing.T) {
	for _, lasts := range []time.Duration{200 * time.Millisecond, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, nil, Auto)
			w.memory = gib + gib/4 // where polling looks every 100 ms
			stop := w.run(t)
			defer stop()
			time.Sleep(3 * time.Second)
			w.want(t, Up, "")
			w.setMemory(t, gib/2, false)
			time.AfterFunc(lasts, func() { w.setMemory(t, gib+gib/4, false) })
			time.Sleep(attended + patience + 2*busyTurn)
			w.want(t, Degraded, "polling saw the hard threshold on memory.available crossed")
			if got := w.status(); got.Missed != 1 {
				t.Errorf("missed %d; want 1", got.Missed)
			}
			// It gets another chance, and one crossing is held against it once.
			time.Sleep(firstBack)
			w.want(t, Up, "")
			time.Sleep(time.Minute)
			w.want(t, Up, "")
			if got := w.status(); got.Missed != 1 || got.Reopened != 1 || w.lane.closes != 1 {
				t.Errorf("%v: missed %d, reopened %d, closed %d times; want 1 each", lasts, got.Missed, got.Reopened, w.lane.closes)
			}
		})
	}
}

// What was crossed when the lane came up, or dips only just below the mark, or is
// above it only for an instant, is no lane's fault.
func TestWhatNoLaneHasToRaise(t *testing.T) {
	for _, tc := range []struct {
		name  string
		first int64
		play  func(t *testing.T, w *world)
	}{
		{"low from the start", gib / 2, func(*testing.T, *world) {}},
		{"by less than the slack", 10 * gib, func(t *testing.T, w *world) {
			time.Sleep(3 * time.Second)
			w.setMemory(t, gib-mib/2, false)
		}},
		{"above for an instant", gib - 2*mib, func(t *testing.T, w *world) {
			for range 5 {
				time.Sleep(3 * time.Second)
				w.setMemory(t, gib+2*mib, false)
				time.Sleep(30 * time.Millisecond)
				w.setMemory(t, gib-2*mib, false)
			}
		}},
		{"not covered", 10 * gib, func(t *testing.T, w *world) {
			w.lane.uncovers.Store(true)
			time.Sleep(3 * time.Second)
			w.setMemory(t, gib/2, false)
		}},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, nil, Auto)
			w.memory = tc.first
			stop := w.run(t)
			defer stop()
			tc.play(t, w)
			time.Sleep(10 * time.Second)
			if got := w.status(); got.State != Up || got.Missed != 0 {
				t.Errorf("%s: %+v; want it up", tc.name, got)
			}
		})
	}
}

func TestHeartThatStandsStill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var still atomic.Bool
		w := newWorld(t, &Fault{Still: still.Load}, Auto)
		stop := w.run(t)
		defer stop()
		time.Sleep(10 * time.Second)
		w.want(t, Up, "")
		still.Store(true)
		time.Sleep(mostStill + 2*calmTurn)
		w.wantChange(t, Degraded, "its heart has stood still for")
		still.Store(false)
		time.Sleep(firstBack)
		w.want(t, Up, "")
		time.Sleep(time.Minute)
		w.want(t, Up, "")
	})
}

// A lane whose alarms are not heard is found out by polling.
func TestDeafLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, &Fault{Deaf: func() bool { return true }}, Auto)
		stop := w.run(t)
		defer stop()
		time.Sleep(3 * time.Second)
		w.setMemory(t, gib/2, true)
		time.Sleep(longest + patience + 2*busyTurn)
		w.wantChange(t, Degraded, "this lane did not raise")
		if heard := w.ear.alarms(); len(heard) != 0 {
			t.Errorf("heard %v of a deaf lane; want nothing", heard)
		}
	})
}

// A lane that can't be opened is tried again after 1 s, 2 s, and so on up to a
// minute, for ever; one that can't be had here is not.
func TestBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		w := newWorld(t, nil, Auto)
		w.lane.openErr = errors.New("busy")
		stop := w.run(t)
		defer stop()
		time.Sleep(200 * time.Second)
		w.want(t, Degraded, "busy")
		var at []string
		for _, o := range w.lane.opens {
			at = append(at, fmt.Sprint(o.Sub(start)))
		}
		if got, want := strings.Join(at, " "), "0s 1s 3s 7s 15s 31s 1m3s 2m3s 3m3s"; got != want {
			t.Errorf("opened at %s; want %s", got, want)
		}
		if len(w.changes) != 1 {
			t.Errorf("changes: %+v; want one, as nothing has changed since", w.changes)
		}
		w.lane.mu.Lock()
		w.lane.openErr = nil
		w.lane.mu.Unlock()
		time.Sleep(longestBack)
		w.want(t, Up, "")
		// After a long time without a fault the back-off begins anew.
		time.Sleep(2 * longestBack)
		w.lane.mu.Lock()
		w.lane.tendErr = errors.New("broken")
		w.lane.mu.Unlock()
		time.Sleep(calmTurn)
		w.wantChange(t, Degraded, "broken")
		w.lane.mu.Lock()
		w.lane.tendErr = nil
		w.lane.mu.Unlock()
		time.Sleep(firstBack)
		w.want(t, Up, "")
	})
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil, Auto)
		w.lane.openErr = fmt.Errorf("open: %w", kernel.ErrUnavailable)
		stop := w.run(t)
		defer stop()
		time.Sleep(time.Hour)
		w.want(t, Unavailable, "not available on this kernel")
		if len(w.lane.opens) != 1 {
			t.Errorf("opened %d times; want once", len(w.lane.opens))
		}
	})
}

func TestModes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil, Disabled)
		stop := w.run(t)
		time.Sleep(time.Minute)
		w.want(t, Off, "switched off")
		stop()
		if len(w.lane.opens) != 0 || w.lane.closes != 0 {
			t.Errorf("a lane that is off was opened %d, closed %d times; want 0, 0", len(w.lane.opens), w.lane.closes)
		}
	})
	w := newWorld(t, &Fault{Open: func() error { return errors.New("no luck") }}, Required)
	const want = "notification.fake is require, but the lane can't be had: no luck"
	if err := w.Open(); err == nil || err.Error() != want {
		t.Errorf("Open() = %v; want %s", err, want)
	}
	if err := newWorld(t, nil, Required).Open(); err != nil {
		t.Errorf("Open() of a lane that is there = %v; want nil", err)
	}
}

// While a lane sees to all marks polling is at ease, and at once on its toes when
// it does not.
func TestPollingIsAtEaseWhileOthersWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var still atomic.Bool
		w := newWorld(t, &Fault{Still: still.Load}, Auto)
		w.memory = gib + 1<<20 // near the mark
		stop := w.run(t)
		defer stop()
		time.Sleep(time.Second)
		if got := w.poll.Period(); got != attended {
			t.Errorf("period beside a lane that is up = %v; want %v", got, attended)
		}
		still.Store(true)
		for left := mostStill + 10*busyTurn; w.poll.Period() != shortest; left -= shortest {
			if left < 0 {
				t.Fatalf("period beside a degraded lane = %v; want %v", w.poll.Period(), shortest)
			}
			time.Sleep(shortest)
		}
	})
}

// However often it is woken up, the watch does not look all the time.
func TestWatchThatIsWokenOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil, Auto)
		stop := w.run(t)
		defer stop()
		time.Sleep(10 * time.Second)
		before := w.lane.tended()
		for range 2000 {
			w.poke()
			time.Sleep(time.Millisecond)
		}
		most := uint64(2*time.Second/leastTurn) + 1
		if n := w.lane.tended() - before; n > most || n < most/2 {
			t.Errorf("%d looks in 2 s of waking up each millisecond; want %d to %d", n, most/2, most)
		}
		// One call after a quiet time, between two turns, is answered at once.
		time.Sleep(calmTurn)
		time.Sleep(pace.Together(time.Now(), calmTurn) + calmTurn/2)
		synctest.Wait()
		before = w.lane.tended()
		w.poke()
		synctest.Wait()
		if n := w.lane.tended() - before; n != 1 {
			t.Errorf("%d looks on being woken up; want 1 at once", n)
		}
	})
}

// In calm what moves slowly is looked at every ten seconds, with all else each
// second. Thresholds, nearness and alarms end that at once.
func TestCalmTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil, Auto)
		stop := w.run(t)
		defer stop()
		counts := func() (all, thorough int) {
			synctest.Wait()
			w.lane.mu.Lock()
			defer w.lane.mu.Unlock()
			return int(w.lane.ticks), w.lane.thorough
		}
		turns := func(pass time.Duration) (all, thorough int) {
			allBefore, thoroughBefore := counts()
			time.Sleep(pass)
			all, thorough = counts()
			return all - allBefore, thorough - thoroughBefore
		}
		time.Sleep(3 * time.Second)
		time.Sleep(pace.Together(time.Now(), calmTurn) + calmTurn/2) // between two turns
		reads := w.reads.Load()
		if all, thorough := turns(time.Minute); all != 60 || thorough != 6 {
			t.Errorf("%d turns, %d of them thorough, in a minute of calm; want 60 and 6", all, thorough)
		}
		if n := w.reads.Load() - reads; n != 6 {
			t.Errorf("%d readings beside those of polling; want 6, for the thorough turns", n)
		}
		if all, thorough := turns(3 * calmTurn); all != 3 || thorough != 0 {
			t.Errorf("%d turns, %d of them thorough, in the three seconds after; want 3 and none", all, thorough)
		}
		_, before := counts()
		w.Arm(thresholds(t, map[string]time.Duration{"1Gi": 0}))
		if _, after := counts(); after != before+1 {
			t.Errorf("%d thorough turns at once when thresholds were armed; want 1", after-before)
		}
		w.setMemory(t, gib+gib/4, false) // near, as polling sees
		time.Sleep(longest + calmTurn)
		if all, thorough := turns(5 * time.Second); thorough != all || all < 49 {
			t.Errorf("%d turns, %d of them thorough, near a mark; want all", all, thorough)
		}
		w.setMemory(t, 10*gib, false)
		time.Sleep(time.Minute)
		if err := w.lane.raise(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(calmTurn)
		if all, thorough := turns(busyFor - 2*calmTurn); thorough != all || all < 29 {
			t.Errorf("%d turns, %d of them thorough, after an alarm; want all", all, thorough)
		}
	})
}

// A lane whose slack hides a crossing from polling is held against its own figures.
func TestLaneThatMissesByItsOwnFigures(t *testing.T) {
	for _, raises := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, nil, Auto)
			w.lane.slack = 2 * gib
			w.lane.own = func() int64 {
				w.mu.Lock()
				defer w.mu.Unlock()
				return w.memory
			}
			stop := w.run(t)
			defer stop()
			time.Sleep(10 * time.Second)
			w.setMemory(t, gib/2, raises)
			time.AfterFunc(calmTurn, func() { w.setMemory(t, 10*gib, false) })
			time.Sleep(5 * time.Second)
			if raises {
				w.want(t, Up, "")
				return
			}
			w.wantChange(t, Degraded, "its own sample saw the hard threshold on memory.available crossed")
			if got := w.status(); got.Missed != 1 {
				t.Errorf("missed %d; want 1", got.Missed)
			}
		})
	}
}

// A note that changes while a lane is up is told, but not all the time.
func TestNoteThatChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil, Auto)
		stop := w.run(t)
		defer stop()
		time.Sleep(2 * tellEach)
		w.lane.setNote("in part")
		time.Sleep(2 * calmTurn)
		w.wantChange(t, Up, "in part")
		before := len(w.changes)
		for i := range 120 {
			w.lane.setNote(fmt.Sprint(i))
			time.Sleep(time.Second)
		}
		synctest.Wait()
		if n := len(w.changes) - before; n < 1 || n > 2 {
			t.Errorf("%d notes told in two minutes; want one or two", n)
		}
	})
}
