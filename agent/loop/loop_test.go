package loop

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/act"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/hot"
	"github.com/evictd/evictd/agent/lanes"
	"github.com/evictd/evictd/agent/signal"
)

// run runs the test in a synctest bubble in which the loop of a node runs. It fails if
// descriptors are left open.
func run(t *testing.T, settings string, test func(*node), change ...func(*node, *Options)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		t.Helper()
		before := descriptors(t)
		t.Cleanup(func() {
			if after := descriptors(t); after != before {
				t.Errorf("descriptors went from %d to %d; want all closed", before, after)
			}
		})
		n := newNode(t, settings, change...)
		n.start()
		test(n)
	})
}

func (n *node) wantCalls(when string, want ...string) {
	n.t.Helper()
	if diff := cmp.Diff(want, n.took()); diff != "" {
		n.t.Errorf("%s: calls differ (-want +got):\n%s", when, diff)
	}
}

func (n *node) wantResult(uid, result string) evict.Record {
	n.t.Helper()
	r := n.record(uid)
	if r.Result != result {
		n.t.Errorf("record of %s: %s %q; want %s", uid, r.Result, r.Error, result)
	}
	return r
}

// messages returns the log's messages about pods.
func (n *node) messages() (all []string) {
	for _, m := range regexp.MustCompile(`msg="?(.*?)"? (?:pod|uid)=`).FindAllStringSubmatch(n.log.String(), -1) {
		all = append(all, m[1])
	}
	return all
}

// With no threshold met the loop does nothing, and resets the watchdog.
func TestNothingLow(t *testing.T) {
	run(t, settings, func(n *node) {
		n.pass(5 * time.Second)
		if calls := n.took(); len(calls) > 0 {
			t.Errorf("calls = %q; want none", calls)
		}
		if len(n.views) < 4 || len(n.views) > 8 {
			t.Errorf("%d steps in 5 s; want about one a second", len(n.views))
		}
		if v := n.last(); v.Busy() || v.Eligible() != 1 || v.Mode.DryRun {
			t.Errorf("view = busy %t, %d eligible, mode %+v; want one eligible pod, enforcing", v.Busy(), v.Eligible(), v.Mode)
		}
		if since := time.Since(n.liveness.Last()); since > 2*time.Second || n.liveness.SettleTimeout() != time.Second {
			t.Errorf("last iteration %v ago, settle timeout %v; want a recent one, and the configuration's timeout", since, n.liveness.SettleTimeout())
		}
		if all := len(n.views) + n.unchangedIterations; n.seen != all || n.watchdog.resets != all {
			t.Errorf("%d iterations, %d readings for the lanes, %d resets of the watchdog; want as many", all, n.seen, n.watchdog.resets)
		}
		if own, spare := n.hot.table, n.watchdog.table; own == spare || spare == nil || own.Generation != n.arbiter.generation || spare.Generation != n.arbiter.generation || own.Node != n.last().Node {
			t.Errorf("tables %+v and %+v; want one for the hot path and one for the watchdog, of this node, generation %d", own, spare, n.arbiter.generation)
		}
	}, func(n *node, _ *Options) { n.add("a", gi) })
}

// When a walk shows that nothing has changed, the loop takes no step.
func TestNothingChanged(t *testing.T) {
	run(t, settings, func(n *node) {
		n.pass(5 * time.Second)
		if len(n.views) != 1 || n.unchangedIterations < 4 {
			t.Errorf("%d steps and %d iterations without one in 5 s; want one step", len(n.views), n.unchangedIterations)
		}
	}, func(n *node, _ *Options) { n.add("a", gi); n.unchanged = true })
}

// At a hard memory threshold the hot path's thread kills the largest pod, and only that
// one, and the record is complete.
func TestHardMemory(t *testing.T) {
	run(t, settings, func(n *node) {
		n.pass(2 * time.Second)
		before := time.Now()
		n.grow("b", 15*gi)
		n.alarm()
		n.grow("a", 3*gi/4) // while b's processes end
		n.pass(time.Second)
		n.wantCalls("below the threshold", "hot b dry run false", "follow b", "evicted s-b 0")
		r := n.wantResult("b", evict.ResultKilled)
		if r.Lane != lanes.BPF || r.Cause != signal.MemoryAvailable.String() || !r.Hard || r.Decided.Before(before) || r.CrossingSeen.IsZero() || r.LastAbove.IsZero() ||
			r.Expected != 15*gi || r.Threshold != gi || r.Freed != r.Expected || len(r.Candidates) != 2 || r.Overshoot != 3*gi/4 {
			t.Errorf("record = %+v; want it complete", r)
		}
		if !n.runs("a") || n.runs("b") {
			t.Error("want only b evicted")
		}
		if got, want := n.messages(), []string{"evicting pod", "eviction ended"}; !slices.Equal(got, want) {
			t.Errorf("messages = %q; want %q", got, want)
		}
		n.pass(10 * time.Second)
		n.wantCalls("above it again")
	}, func(n *node, _ *Options) { n.add("a", gi/2); n.add("b", gi) })
}

// A pod whose handle can't be opened is killed by the actuator.
func TestWithoutAHandle(t *testing.T) {
	run(t, settings, func(n *node) {
		n.grow("b", 15*gi+gi/2)
		n.alarm()
		n.pass(time.Second)
		n.wantCalls("below the threshold", "evict b hard true grace 1s", "evicted s-b 0")
		n.wantResult("b", evict.ResultKilled)
	}, func(n *node, o *Options) {
		n.add("b", gi)
		o.OpenHandle = func(act.Job) (*act.KillHandle, error) { return nil, errors.New("no descriptors left") }
	})
}

// When the hot path does not answer, the loop kills on its own goroutine.
func TestHotPathHangs(t *testing.T) {
	run(t, settings, func(n *node) {
		n.hot.hangs = true
		n.grow("b", 15*gi+gi/2)
		n.alarm()
		n.pass(time.Second)
		n.wantCalls("below the threshold", "own kill b", "follow b", "evicted s-b 0")
		n.wantResult("b", evict.ResultKilled)
		if !strings.Contains(n.log.String(), "hot path does not answer; the loop kills without it") {
			t.Errorf("log = %s; want the unanswered order in it", n.log.String())
		}
	}, func(n *node, _ *Options) { n.add("b", gi) })
}

// When a victim is refused, another pod is evicted.
func TestRefused(t *testing.T) {
	run(t, settings, func(n *node) {
		n.refuses["b"] = &act.WrongVictimError{Essential: true}
		n.grow("b", 13*gi)
		n.alarm()
		n.pass(time.Second)
		n.wantCalls("below the threshold", "hot b dry run false", "follow b", "not evicted s-b", "hot a dry run false", "follow a", "evicted s-a 0")
		n.wantResult("b", evict.ResultFailed)
		n.wantResult("a", evict.ResultKilled)
	}, func(n *node, _ *Options) { n.add("a", 3*gi); n.add("b", gi) })
}

// When the hot path has killed since the observation, the loop observes again.
func TestKillDuringTheDecision(t *testing.T) {
	run(t, settings, func(n *node) {
		n.arbiter.failedAcquires = 3
		n.grow("b", 15*gi+gi/2)
		n.alarm()
		n.pass(time.Second)
		n.wantCalls("below the threshold", "hot b dry run false", "follow b", "evicted s-b 0")
		if n.arbiter.failedAcquires != 0 || n.arbiter.steals != 0 {
			t.Errorf("%d failures of Acquire left, %d calls of Steal; want none of either", n.arbiter.failedAcquires, n.arbiter.steals)
		}
	}, func(n *node, _ *Options) { n.add("b", gi) })
}

// The wait for a hot path that hangs in a kill is bounded.
func TestHotPathHangsInAKill(t *testing.T) {
	run(t, settings, func(n *node) {
		n.arbiter.neverAcquires, n.hot.hangs = true, true
		n.grow("b", 15*gi+gi/2)
		n.alarm()
		n.pass(hotKillTimeout / 2)
		n.wantCalls("while the hot path kills")
		n.pass(hotKillTimeout + hot.ThreadTimeout)
		n.wantCalls("when it hangs", "own kill b", "follow b", "evicted s-b 0")
		if n.arbiter.steals != 1 || !strings.Contains(n.log.String(), "hot path hangs in a kill") {
			t.Errorf("%d calls of Steal; want 1, and a line of the log: %s", n.arbiter.steals, n.log.String())
		}
	}, func(n *node, _ *Options) { n.add("b", gi) })
}

// When evictd ends, the loop does not wait for a hot path that hangs, and kills no pod.
func TestStopWhileTheHotPathKills(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, settings, func(n *node, _ *Options) { n.add("b", gi) })
		stop := n.start()
		n.arbiter.neverAcquires = true
		n.grow("b", 15*gi+gi/2)
		n.alarm()
		stop()
		n.wantCalls("at the end")
	})
}

// When evictd ends while the loop waits for the hot path, the loop kills the pod without it.
// That is no fault of the hot path.
func TestStopWhileTheLoopKills(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, settings, func(n *node, _ *Options) { n.add("b", gi) })
		stop := n.start()
		n.hot.hangs = true
		n.grow("b", 15*gi+gi/2)
		n.alarm()
		n.pass(hot.ThreadTimeout / 2)
		n.wantCalls("before the end")
		stop()
		if calls := n.took(); !slices.Contains(calls, "own kill b") || !slices.Contains(calls, "follow b") {
			t.Errorf("at the end: calls = %q; want the pod killed by the loop", calls)
		}
		if strings.Contains(n.log.String(), "level=ERROR") {
			t.Errorf("log = %s; want no error", n.log.String())
		}
	})
}

const softSettings = settings + "evictionSoft: {memory.available: 2Gi}\nevictionSoftGracePeriod: {memory.available: 10s}\nevictionMaxPodGracePeriod: 30\n"

// A soft threshold evicts after its grace period, with the pod's; a hard one ends
// that early.
func TestSoftThenHard(t *testing.T) {
	run(t, softSettings, func(n *node) {
		n.grow("b", 14*gi)
		n.alarm()
		n.pass(9 * time.Second)
		n.wantCalls("before the grace period is over")
		n.pass(2 * time.Second)
		n.wantCalls("after it", "evict b hard false grace 30s")
		soft := n.record("b")
		if soft.Hard || soft.Result != evict.ResultPending || soft.CrossingSeen.IsZero() {
			t.Errorf("record = %+v; want a soft eviction under way", soft)
		}
		n.grow("b", 15*gi)
		n.alarm()
		n.pass(time.Second)
		if calls := n.took(); !slices.Contains(calls, "escalate b") {
			t.Errorf("calls = %q; want b's grace period ended", calls)
		}
		if r := n.wantResult("b", evict.ResultKilled); r.Escalated.IsZero() {
			t.Errorf("record = %+v; want the time at which the grace period was ended early", r)
		}
		if !strings.Contains(n.log.String(), "grace period ended early: a hard threshold is met") {
			t.Errorf("log = %s; want the end of the grace period in it", n.log.String())
		}
	}, func(n *node, _ *Options) { n.add("a", gi/4); n.add("b", gi) })
}

// A soft eviction ends when the pod has stopped.
func TestSoft(t *testing.T) {
	run(t, softSettings, func(n *node) {
		n.grow("b", 14*gi)
		n.alarm()
		n.pass(45 * time.Second)
		n.wantCalls("after both grace periods", "evict b hard false grace 30s", "evicted s-b 0")
		n.wantResult("b", evict.ResultStopped)
	}, func(n *node, _ *Options) { n.add("a", gi/2); n.add("b", gi) })
}

// A configuration is in force when Reload returns: the hot path's table has its thresholds,
// too.
func TestReload(t *testing.T) {
	run(t, settings, func(n *node) {
		n.pass(2 * time.Second)
		n.wantCalls("before")
		cfg := parse(t, "evictionHard: {memory.available: 2Gi}\n")
		began := time.Now()
		if err := n.Reload(n.t.Context(), cfg); err != nil {
			n.t.Fatalf("Reload() = %v; want nil", err)
		}
		observed := signal.Observations{signal.MemoryAvailable: {Status: signal.Observed, Capacity: capacity, Available: 3 * gi / 2, Time: time.Now()}}
		if v := n.hot.table.Decision.Decide(&observed, time.Now()); v.Reason == evict.Recovered || time.Since(began) < n.reading {
			t.Errorf("verdict of the hot path = %+v, %v after Reload(); want it by the new threshold, which takes a reading of %v", v, time.Since(began), n.reading)
		}
		synctest.Wait()
		if v := n.last(); v.Config != cfg || len(v.Policy.Thresholds) == 0 || v.Policy.Thresholds[0].Value.Amount(capacity) != 2*gi {
			t.Errorf("view = %+v; want the new configuration in force", v.Policy.Thresholds)
		}
		if n.hot.table == nil || n.hot.table.Generation != n.arbiter.generation {
			t.Errorf("table of the hot path = %+v; want one of generation %d", n.hot.table, n.arbiter.generation)
		}
		n.pass(time.Second)
		n.wantCalls("after", "hot b dry run false", "follow b", "evicted s-b 0")
	}, func(n *node, _ *Options) { n.add("b", 14*gi+gi/2); n.reading = 50 * time.Millisecond })
}

// Reload fails with ctx's error if the loop does not take or finish it.
func TestReloadWithoutTheLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, settings)
		for _, taken := range []bool{false, true} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if taken {
				go func() { <-n.reloads }()
			}
			if err := n.Reload(ctx, n.config); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("taken %t: Reload() = %v; want %v", taken, err, context.DeadlineExceeded)
			}
			cancel()
		}
	})
}
