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
func (ts *testSet) run(t *testing.T) (stop func()) {
	t.Helper()
	if err := ts.Open(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	alarms := make(chan Alarm, 1)
	go ts.poll.Run(ctx, alarms)
	go ts.Set.Run(ctx)
	return func() {
		cancel()
		synctest.Wait()
		if err := ts.Close(); err != nil {
			t.Error(err)
		}
	}
}

func (ts *testSet) want(t *testing.T, state State, reason string) {
	t.Helper()
	synctest.Wait()
	if got := ts.status(); got.State != state || !strings.Contains(got.Reason, reason) {
		t.Errorf("lane is %s: %q; want %s: %q", got.State, got.Reason, state, reason)
	}
}

// wantChange checks that the lane has changed to a state.
func (ts *testSet) wantChange(t *testing.T, state State, reason string) {
	t.Helper()
	synctest.Wait()
	for _, c := range ts.changes {
		if c.State == state && strings.Contains(c.Reason, reason) {
			return
		}
	}
	t.Errorf("changes of the lane: %+v; want one to %s: %q", ts.changes, state, reason)
}

func TestLaneStaysUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ts := newTestSet(t, nil, Auto)
		stop := ts.run(t)
		defer stop()
		for range 20 {
			time.Sleep(2 * time.Second)
			ts.setMemory(t, gib/2, true)
			time.Sleep(300 * time.Millisecond)
			ts.setMemory(t, 10*gib, false)
		}
		time.Sleep(5 * time.Second)
		ts.want(t, Up, "")
		if got := ts.status(); got.Alarms != 20 || got.Missed != 0 || got.Reopened != 0 || len(ts.waiter.alarms()) != 20 {
			t.Errorf("status %+v, %d alarms received; want 20 raised and received, none missed", got, len(ts.waiter.alarms()))
		}
	})
}

// Polling sees a crossing without an alarm of the lane, even a short one.
func TestMissedAlarmDegradesLane(t *testing.T) {
	for _, lasts := range []time.Duration{200 * time.Millisecond, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			ts := newTestSet(t, nil, Auto)
			ts.memory = gib + gib/4 // near: polling reads every 100 ms
			stop := ts.run(t)
			defer stop()
			time.Sleep(3 * time.Second)
			ts.want(t, Up, "")
			ts.setMemory(t, gib/2, false)
			time.AfterFunc(lasts, func() { ts.setMemory(t, gib+gib/4, false) })
			time.Sleep(coveredPollInterval + alarmDeadline + 2*activeInterval)
			ts.want(t, Degraded, "missed an alarm: polling saw the hard threshold on memory.available crossed")
			if got := ts.status(); got.Missed != 1 {
				t.Errorf("missed %d; want 1", got.Missed)
			}
			// It is opened again, and the crossing counts only once.
			time.Sleep(minBackoff)
			ts.want(t, Up, "")
			time.Sleep(time.Minute)
			ts.want(t, Up, "")
			if got := ts.status(); got.Missed != 1 || got.Reopened != 1 || ts.lane.closes != 1 {
				t.Errorf("%v: missed %d, reopened %d, closed %d times; want 1 each", lasts, got.Missed, got.Reopened, ts.lane.closes)
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
		act   func(t *testing.T, ts *testSet)
	}{
		{"low from the start", gib / 2, func(*testing.T, *testSet) {}},
		{"by less than the tolerance", 10 * gib, func(t *testing.T, ts *testSet) {
			time.Sleep(3 * time.Second)
			ts.setMemory(t, gib-mib/2, false)
		}},
		{"above for an instant", gib - 2*mib, func(t *testing.T, ts *testSet) {
			for range 5 {
				time.Sleep(3 * time.Second)
				ts.setMemory(t, gib+2*mib, false)
				time.Sleep(30 * time.Millisecond)
				ts.setMemory(t, gib-2*mib, false)
			}
		}},
		{"not covered", 10 * gib, func(t *testing.T, ts *testSet) {
			ts.lane.uncovers.Store(true)
			time.Sleep(3 * time.Second)
			ts.setMemory(t, gib/2, false)
		}},
	} {
		synctest.Test(t, func(t *testing.T) {
			ts := newTestSet(t, nil, Auto)
			ts.memory = tc.first
			stop := ts.run(t)
			defer stop()
			tc.act(t, ts)
			time.Sleep(10 * time.Second)
			if got := ts.status(); got.State != Up || got.Missed != 0 {
				t.Errorf("%s: %+v; want it up", tc.name, got)
			}
		})
	}
}

func TestSamplingStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var stopped atomic.Bool
		ts := newTestSet(t, &Fault{HideSamples: stopped.Load}, Auto)
		stop := ts.run(t)
		defer stop()
		time.Sleep(10 * time.Second)
		ts.want(t, Up, "")
		stopped.Store(true)
		time.Sleep(heartbeatTimeout + 2*idleInterval)
		ts.wantChange(t, Degraded, "no sample for")
		stopped.Store(false)
		time.Sleep(minBackoff)
		ts.want(t, Up, "")
		time.Sleep(time.Minute)
		ts.want(t, Up, "")
	})
}

// Polling detects that the alarms of a lane are lost.
func TestLostAlarms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ts := newTestSet(t, &Fault{DropAlarms: func() bool { return true }}, Auto)
		stop := ts.run(t)
		defer stop()
		time.Sleep(3 * time.Second)
		ts.setMemory(t, gib/2, true)
		time.Sleep(maxPollInterval + alarmDeadline + 2*activeInterval)
		ts.wantChange(t, Degraded, "missed an alarm")
		if alarms := ts.waiter.alarms(); len(alarms) != 0 {
			t.Errorf("alarms %v received; want none", alarms)
		}
	})
}

// A lane that can't be opened is tried again after 1 s, 2 s, and so on up to a minute,
// forever. A lane that is not available on this host is not tried again.
func TestBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		ts := newTestSet(t, nil, Auto)
		ts.lane.openErr = errors.New("busy")
		stop := ts.run(t)
		defer stop()
		time.Sleep(200 * time.Second)
		ts.want(t, Degraded, "busy")
		var at []string
		for _, o := range ts.lane.opens {
			at = append(at, fmt.Sprint(o.Sub(start)))
		}
		if got, want := strings.Join(at, " "), "0s 1s 3s 7s 15s 31s 1m3s 2m3s 3m3s"; got != want {
			t.Errorf("opened at %s; want %s", got, want)
		}
		if len(ts.changes) != 1 {
			t.Errorf("changes: %+v; want one, as the state did not change again", ts.changes)
		}
		ts.lane.mu.Lock()
		ts.lane.openErr = nil
		ts.lane.mu.Unlock()
		time.Sleep(maxBackoff)
		ts.want(t, Up, "")
		// After maxBackoff without a fault the back-off starts again at minBackoff.
		time.Sleep(2 * maxBackoff)
		ts.lane.mu.Lock()
		ts.lane.reconcileErr = errors.New("broken")
		ts.lane.mu.Unlock()
		time.Sleep(idleInterval)
		ts.wantChange(t, Degraded, "broken")
		ts.lane.mu.Lock()
		ts.lane.reconcileErr = nil
		ts.lane.mu.Unlock()
		time.Sleep(minBackoff)
		ts.want(t, Up, "")
	})
	synctest.Test(t, func(t *testing.T) {
		ts := newTestSet(t, nil, Auto)
		ts.lane.openErr = fmt.Errorf("open: %w", kernel.ErrUnavailable)
		stop := ts.run(t)
		defer stop()
		time.Sleep(time.Hour)
		ts.want(t, Unavailable, "not available on this kernel")
		if len(ts.lane.opens) != 1 {
			t.Errorf("opened %d times; want once", len(ts.lane.opens))
		}
	})
}

func TestModes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ts := newTestSet(t, nil, Disabled)
		stop := ts.run(t)
		time.Sleep(time.Minute)
		ts.want(t, Off, "disabled")
		stop()
		if len(ts.lane.opens) != 0 || ts.lane.closes != 0 {
			t.Errorf("a disabled lane was opened %d, closed %d times; want 0, 0", len(ts.lane.opens), ts.lane.closes)
		}
	})
	ts := newTestSet(t, &Fault{Open: func() error { return errors.New("no luck") }}, Required)
	const want = "notification.fake is require, but the lane is not available: no luck"
	if err := ts.Open(); err == nil || err.Error() != want {
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
		ts := newTestSet(t, &Fault{HideSamples: stopped.Load}, Auto)
		ts.memory = gib + 1<<20 // near the threshold
		stop := ts.run(t)
		defer stop()
		time.Sleep(time.Second)
		if got := ts.poll.Period(); got != coveredPollInterval {
			t.Errorf("period with a lane that is up = %v; want %v", got, coveredPollInterval)
		}
		stopped.Store(true)
		for left := heartbeatTimeout + 10*activeInterval; ts.poll.Period() != minPollInterval; left -= minPollInterval {
			if left < 0 {
				t.Fatalf("period with a degraded lane = %v; want %v", ts.poll.Period(), minPollInterval)
			}
			time.Sleep(minPollInterval)
		}
	})
}

// A Set that is woken up all the time reconciles once per minInterval.
func TestMinInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ts := newTestSet(t, nil, Auto)
		stop := ts.run(t)
		defer stop()
		time.Sleep(10 * time.Second)
		before := ts.lane.reconciled()
		for range 2000 {
			ts.notify()
			time.Sleep(time.Millisecond)
		}
		most := uint64(2*time.Second/minInterval) + 1
		if n := ts.lane.reconciled() - before; n > most || n < most/2 {
			t.Errorf("%d reconciles in 2 s of notifications each millisecond; want %d to %d", n, most/2, most)
		}
		// A notification between two idle reconciles is handled at once.
		time.Sleep(idleInterval)
		time.Sleep(pollinterval.AlignedWait(time.Now(), idleInterval) + idleInterval/2)
		synctest.Wait()
		before = ts.lane.reconciled()
		ts.notify()
		synctest.Wait()
		if n := ts.lane.reconciled() - before; n != 1 {
			t.Errorf("%d reconciles after a notification; want 1 at once", n)
		}
	})
}

// While idle, lanes reconcile each second, and look for slow changes every ten seconds. New
// thresholds, a signal near a threshold and alarms end that at once.
func TestIdleReconciles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ts := newTestSet(t, nil, Auto)
		stop := ts.run(t)
		defer stop()
		counts := func() (all, full int) {
			synctest.Wait()
			ts.lane.mu.Lock()
			defer ts.lane.mu.Unlock()
			return int(ts.lane.ticks), ts.lane.fullChecks
		}
		reconciles := func(pass time.Duration) (all, full int) {
			allBefore, fullBefore := counts()
			time.Sleep(pass)
			all, full = counts()
			return all - allBefore, full - fullBefore
		}
		time.Sleep(3 * time.Second)
		time.Sleep(pollinterval.AlignedWait(time.Now(), idleInterval) + idleInterval/2) // between two reconciles
		reads := ts.reads.Load()
		if all, full := reconciles(time.Minute); all != 60 || full != 6 {
			t.Errorf("%d reconciles, %d of them full, in an idle minute; want 60 and 6", all, full)
		}
		if n := ts.reads.Load() - reads; n != 6 {
			t.Errorf("%d readings besides those of polling; want 6, for the full reconciles", n)
		}
		if all, full := reconciles(3 * idleInterval); all != 3 || full != 0 {
			t.Errorf("%d reconciles, %d of them full, in the three seconds after; want 3 and none", all, full)
		}
		_, before := counts()
		ts.Arm(thresholds(t, map[string]time.Duration{"1Gi": 0}))
		if _, after := counts(); after != before+1 {
			t.Errorf("%d full reconciles at once when thresholds were armed; want 1", after-before)
		}
		ts.setMemory(t, gib+gib/4, false) // near, as polling sees
		time.Sleep(maxPollInterval + idleInterval)
		if all, full := reconciles(5 * time.Second); full != all || all < 49 {
			t.Errorf("%d reconciles, %d of them full, near a threshold; want all", all, full)
		}
		ts.setMemory(t, 10*gib, false)
		time.Sleep(time.Minute)
		if err := ts.lane.raise(); err != nil {
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
			ts := newTestSet(t, nil, Auto)
			ts.lane.tolerance = 2 * gib
			ts.lane.sample = func() int64 {
				ts.mu.Lock()
				defer ts.mu.Unlock()
				return ts.memory
			}
			stop := ts.run(t)
			defer stop()
			time.Sleep(10 * time.Second)
			ts.setMemory(t, gib/2, raises)
			time.AfterFunc(idleInterval, func() { ts.setMemory(t, 10*gib, false) })
			time.Sleep(5 * time.Second)
			if raises {
				ts.want(t, Up, "")
				return
			}
			ts.wantChange(t, Degraded, "missed an alarm: its own sample saw the hard threshold on memory.available crossed")
			if got := ts.status(); got.Missed != 1 {
				t.Errorf("missed %d; want 1", got.Missed)
			}
		})
	}
}

// A changed partial failure of a lane that is up is reported, at most once per
// reportInterval.
func TestPartialFailureChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ts := newTestSet(t, nil, Auto)
		stop := ts.run(t)
		defer stop()
		time.Sleep(2 * reportInterval)
		ts.lane.setFailure("partly")
		time.Sleep(2 * idleInterval)
		ts.wantChange(t, Up, "partly")
		before := len(ts.changes)
		for i := range 120 {
			ts.lane.setFailure(fmt.Sprint(i))
			time.Sleep(time.Second)
		}
		synctest.Wait()
		if n := len(ts.changes) - before; n < 1 || n > 2 {
			t.Errorf("%d reports in two minutes; want one or two", n)
		}
	})
}
