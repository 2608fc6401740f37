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

	"github.com/evictd/evictd/agent/pollinterval"
	"github.com/evictd/evictd/kernel"
)

// run opens the lanes and runs them and polling until stop is called.
func (w *testSet) run(t *testing.T) (stop func()) {
	t.Helper()
	if err := w.Open(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	alarms := make(chan Alarm, 1)
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

func (w *testSet) want(t *testing.T, state State, reason string) {
	t.Helper()
	synctest.Wait()
	if got := w.status(); got.State != state || !strings.Contains(got.Reason, reason) {
		t.Errorf("lane is %s: %q; want %s: %q", got.State, got.Reason, state, reason)
	}
}

// wantChange checks that the lane has changed to a state.
func (w *testSet) wantChange(t *testing.T, state State, reason string) {
	t.Helper()
	synctest.Wait()
	for _, c := range w.changes {
		if c.State == state && strings.Contains(c.Reason, reason) {
			return
		}
	}
	t.Errorf("changes of the lane: %+v; want one to %s: %q", w.changes, state, reason)
}

func TestLaneStaysUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestSet(t, nil, Auto)
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
		if got := w.status(); got.Alarms != 20 || got.Missed != 0 || got.Reopened != 0 || len(w.waiter.alarms()) != 20 {
			t.Errorf("status %+v, %d alarms received; want 20 raised and received, none missed", got, len(w.waiter.alarms()))
		}
	})
}

// Polling sees a crossing without an alarm of the lane, even a short one.
func TestMissedAlarmDegradesLane(t *testing.T) {
	for _, lasts := range []time.Duration{200 * time.Millisecond, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			w := newTestSet(t, nil, Auto)
			w.memory = gib + gib/4 // near: polling reads every 100 ms
			stop := w.run(t)
			defer stop()
			time.Sleep(3 * time.Second)
			w.want(t, Up, "")
			w.setMemory(t, gib/2, false)
			time.AfterFunc(lasts, func() { w.setMemory(t, gib+gib/4, false) })
			time.Sleep(coveredPollInterval + alarmDeadline + 2*activeInterval)
			w.want(t, Degraded, "missed an alarm: polling saw the hard threshold on memory.available crossed")
			if got := w.status(); got.Missed != 1 {
				t.Errorf("missed %d; want 1", got.Missed)
			}
			// It is opened again, and the crossing counts only once.
			time.Sleep(minBackoff)
			w.want(t, Up, "")
			time.Sleep(time.Minute)
			w.want(t, Up, "")
			if got := w.status(); got.Missed != 1 || got.Reopened != 1 || w.lane.closes != 1 {
				t.Errorf("%v: missed %d, reopened %d, closed %d times; want 1 each", lasts, got.Missed, got.Reopened, w.lane.closes)
			}
		})
	}
}

// A lane need not raise an alarm for a threshold that was crossed when the lane was opened,
// or is crossed by less than the tolerance, or after an instant above it.
func TestNoAlarmExpected(t *testing.T) {
	for _, tc := range []struct {
		name  string
		first int64
		act   func(t *testing.T, w *testSet)
	}{
		{"low from the start", gib / 2, func(*testing.T, *testSet) {}},
		{"by less than the tolerance", 10 * gib, func(t *testing.T, w *testSet) {
			time.Sleep(3 * time.Second)
			w.setMemory(t, gib-mib/2, false)
		}},
		{"above for an instant", gib - 2*mib, func(t *testing.T, w *testSet) {
			for range 5 {
				time.Sleep(3 * time.Second)
				w.setMemory(t, gib+2*mib, false)
				time.Sleep(30 * time.Millisecond)
				w.setMemory(t, gib-2*mib, false)
			}
		}},
		{"not covered", 10 * gib, func(t *testing.T, w *testSet) {
			w.lane.uncovers.Store(true)
			time.Sleep(3 * time.Second)
			w.setMemory(t, gib/2, false)
		}},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newTestSet(t, nil, Auto)
			w.memory = tc.first
			stop := w.run(t)
			defer stop()
			tc.act(t, w)
			time.Sleep(10 * time.Second)
			if got := w.status(); got.State != Up || got.Missed != 0 {
				t.Errorf("%s: %+v; want it up", tc.name, got)
			}
		})
	}
}

func TestSamplingStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var stopped atomic.Bool
		w := newTestSet(t, &Fault{HideSamples: stopped.Load}, Auto)
		stop := w.run(t)
		defer stop()
		time.Sleep(10 * time.Second)
		w.want(t, Up, "")
		stopped.Store(true)
		time.Sleep(heartbeatTimeout + 2*idleInterval)
		w.wantChange(t, Degraded, "no sample for")
		stopped.Store(false)
		time.Sleep(minBackoff)
		w.want(t, Up, "")
		time.Sleep(time.Minute)
		w.want(t, Up, "")
	})
}

// Polling detects that the alarms of a lane are lost.
func TestLostAlarms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestSet(t, &Fault{DropAlarms: func() bool { return true }}, Auto)
		stop := w.run(t)
		defer stop()
		time.Sleep(3 * time.Second)
		w.setMemory(t, gib/2, true)
		time.Sleep(maxPollInterval + alarmDeadline + 2*activeInterval)
		w.wantChange(t, Degraded, "missed an alarm")
		if alarms := w.waiter.alarms(); len(alarms) != 0 {
			t.Errorf("alarms %v received; want none", alarms)
		}
	})
}

// A lane that can't be opened is tried again after 1 s, 2 s, and so on up to a minute,
// forever. A lane that is not available on this host is not tried again.
func TestBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		w := newTestSet(t, nil, Auto)
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
			t.Errorf("changes: %+v; want one, as the state did not change again", w.changes)
		}
		w.lane.mu.Lock()
		w.lane.openErr = nil
		w.lane.mu.Unlock()
		time.Sleep(maxBackoff)
		w.want(t, Up, "")
		// After maxBackoff without a fault the back-off starts again at minBackoff.
		time.Sleep(2 * maxBackoff)
		w.lane.mu.Lock()
		w.lane.reconcileErr = errors.New("broken")
		w.lane.mu.Unlock()
		time.Sleep(idleInterval)
		w.wantChange(t, Degraded, "broken")
		w.lane.mu.Lock()
		w.lane.reconcileErr = nil
		w.lane.mu.Unlock()
		time.Sleep(minBackoff)
		w.want(t, Up, "")
	})
	synctest.Test(t, func(t *testing.T) {
		w := newTestSet(t, nil, Auto)
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
		w := newTestSet(t, nil, Disabled)
		stop := w.run(t)
		time.Sleep(time.Minute)
		w.want(t, Off, "disabled")
		stop()
		if len(w.lane.opens) != 0 || w.lane.closes != 0 {
			t.Errorf("a disabled lane was opened %d, closed %d times; want 0, 0", len(w.lane.opens), w.lane.closes)
		}
	})
	w := newTestSet(t, &Fault{Open: func() error { return errors.New("no luck") }}, Required)
	const want = "notification.fake is require, but the lane is not available: no luck"
	if err := w.Open(); err == nil || err.Error() != want {
		t.Errorf("Open() = %v; want %s", err, want)
	}
	if err := newTestSet(t, nil, Required).Open(); err != nil {
		t.Errorf("Open() of an available lane = %v; want nil", err)
	}
}

// Polling is slower while a lane covers all thresholds, and fast as soon as it does not.
func TestPollingWhileCovered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var stopped atomic.Bool
		w := newTestSet(t, &Fault{HideSamples: stopped.Load}, Auto)
		w.memory = gib + 1<<20 // near the threshold
		stop := w.run(t)
		defer stop()
		time.Sleep(time.Second)
		if got := w.poll.Period(); got != coveredPollInterval {
			t.Errorf("period with a lane that is up = %v; want %v", got, coveredPollInterval)
		}
		stopped.Store(true)
		for left := heartbeatTimeout + 10*activeInterval; w.poll.Period() != minPollInterval; left -= minPollInterval {
			if left < 0 {
				t.Fatalf("period with a degraded lane = %v; want %v", w.poll.Period(), minPollInterval)
			}
			time.Sleep(minPollInterval)
		}
	})
}

// A Set that is woken up all the time reconciles once per minInterval.
func TestMinInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestSet(t, nil, Auto)
		stop := w.run(t)
		defer stop()
		time.Sleep(10 * time.Second)
		before := w.lane.reconciled()
		for range 2000 {
			w.notify()
			time.Sleep(time.Millisecond)
		}
		most := uint64(2*time.Second/minInterval) + 1
		if n := w.lane.reconciled() - before; n > most || n < most/2 {
			t.Errorf("%d reconciles in 2 s of notifications each millisecond; want %d to %d", n, most/2, most)
		}
		// A notification between two idle reconciles is handled at once.
		time.Sleep(idleInterval)
		time.Sleep(pollinterval.AlignedWait(time.Now(), idleInterval) + idleInterval/2)
		synctest.Wait()
		before = w.lane.reconciled()
		w.notify()
		synctest.Wait()
		if n := w.lane.reconciled() - before; n != 1 {
			t.Errorf("%d reconciles after a notification; want 1 at once", n)
		}
	})
}

// While idle, lanes reconcile each second, and look for slow changes every ten seconds. New
// thresholds, a signal near a threshold and alarms end that at once.
func TestIdleReconciles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestSet(t, nil, Auto)
		stop := w.run(t)
		defer stop()
		counts := func() (all, full int) {
			synctest.Wait()
			w.lane.mu.Lock()
			defer w.lane.mu.Unlock()
			return int(w.lane.ticks), w.lane.fullChecks
		}
		reconciles := func(pass time.Duration) (all, full int) {
			allBefore, fullBefore := counts()
			time.Sleep(pass)
			all, full = counts()
			return all - allBefore, full - fullBefore
		}
		time.Sleep(3 * time.Second)
		time.Sleep(pollinterval.AlignedWait(time.Now(), idleInterval) + idleInterval/2) // between two reconciles
		reads := w.reads.Load()
		if all, full := reconciles(time.Minute); all != 60 || full != 6 {
			t.Errorf("%d reconciles, %d of them full, in an idle minute; want 60 and 6", all, full)
		}
		if n := w.reads.Load() - reads; n != 6 {
			t.Errorf("%d readings besides those of polling; want 6, for the full reconciles", n)
		}
		if all, full := reconciles(3 * idleInterval); all != 3 || full != 0 {
			t.Errorf("%d reconciles, %d of them full, in the three seconds after; want 3 and none", all, full)
		}
		_, before := counts()
		w.Arm(thresholds(t, map[string]time.Duration{"1Gi": 0}))
		if _, after := counts(); after != before+1 {
			t.Errorf("%d full reconciles at once when thresholds were armed; want 1", after-before)
		}
		w.setMemory(t, gib+gib/4, false) // near, as polling sees
		time.Sleep(maxPollInterval + idleInterval)
		if all, full := reconciles(5 * time.Second); full != all || all < 49 {
			t.Errorf("%d reconciles, %d of them full, near a threshold; want all", all, full)
		}
		w.setMemory(t, 10*gib, false)
		time.Sleep(time.Minute)
		if err := w.lane.raise(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(idleInterval)
		if all, full := reconciles(activeAfterAlarm - 2*idleInterval); full != all || all < 29 {
			t.Errorf("%d reconciles, %d of them full, after an alarm; want all", all, full)
		}
	})
}

// The lane's own samples show a crossing that the tolerance hides from polling.
func TestMissedAlarmByOwnSamples(t *testing.T) {
	for _, raises := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newTestSet(t, nil, Auto)
			w.lane.tolerance = 2 * gib
			w.lane.sample = func() int64 {
				w.mu.Lock()
				defer w.mu.Unlock()
				return w.memory
			}
			stop := w.run(t)
			defer stop()
			time.Sleep(10 * time.Second)
			w.setMemory(t, gib/2, raises)
			time.AfterFunc(idleInterval, func() { w.setMemory(t, 10*gib, false) })
			time.Sleep(5 * time.Second)
			if raises {
				w.want(t, Up, "")
				return
			}
			w.wantChange(t, Degraded, "missed an alarm: its own sample saw the hard threshold on memory.available crossed")
			if got := w.status(); got.Missed != 1 {
				t.Errorf("missed %d; want 1", got.Missed)
			}
		})
	}
}

// A changed partial failure of a lane that is up is reported, at most once per
// reportInterval.
func TestPartialFailureChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestSet(t, nil, Auto)
		stop := w.run(t)
		defer stop()
		time.Sleep(2 * reportInterval)
		w.lane.setFailure("partly")
		time.Sleep(2 * idleInterval)
		w.wantChange(t, Up, "partly")
		before := len(w.changes)
		for i := range 120 {
			w.lane.setFailure(fmt.Sprint(i))
			time.Sleep(time.Second)
		}
		synctest.Wait()
		if n := len(w.changes) - before; n < 1 || n > 2 {
			t.Errorf("%d reports in two minutes; want one or two", n)
		}
	})
}
