package loop

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/evictd/evictd/agent/act"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/lanes"
	"github.com/evictd/evictd/agent/signal"
)

// When the actuator refuses a pod before it returns, the log still has the start of the
// eviction first, and another pod is evicted.
func TestRuntimeRefuses(t *testing.T) {
	run(t, settings, func(n *node) {
		n.observe(signal.PIDAvailable, 50)
		n.pass(3 * time.Second)
		n.wantCalls("below the threshold", "evict b hard true grace 1s", "not evicted s-b", "evict a hard true grace 1s", "evicted s-a 0")
		if r := n.wantResult("b", evict.ResultFailed); r.Error != "it contains pid 1" {
			t.Errorf("error of the record = %q; want the runtime's", r.Error)
		}
		if got, want := n.messages(), []string{"evicting pod", "eviction did not succeed", "evicting pod", "eviction ended"}; !slices.Equal(got, want) {
			t.Errorf("messages = %q; want %q", got, want)
		}
	}, func(n *node, _ *Options) {
		n.add("a", gi)
		n.add("b", gi)
		n.pods[0].Usage.PIDs, n.pods[1].Usage.PIDs = 400, 600
		n.refuses["b"] = errors.New("it contains pid 1")
	})
}

// Hard orders are carried out before soft ones.
func TestHardOrdersFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, settings, func(n *node, o *Options) { n.add("a", gi); n.add("b", gi); o.Drift = 3 })
		v, in, _ := n.decide(t.Context(), time.Now())
		if in.CounterDrift != 3 {
			t.Errorf("drift = %d; want 3", in.CounterDrift)
		}
		v.Orders.Evict = []evict.Order{{UID: "a", Cause: signal.PIDAvailable.String()}, {UID: "b", Cause: signal.PIDAvailable.String(), Hard: true}}
		n.act(t.Context(), v)
		n.wantCalls("of two orders", "evict b hard true grace 0s", "evict a hard false grace 0s")
		n.work.Wait()
	})
}

// When a filesystem is low, node-level reclaim comes first and a pod after it. The reclaimer
// waits for the pod's disk space until the runtime has removed it.
func TestDisk(t *testing.T) {
	run(t, settings, func(n *node) {
		n.observe(signal.NodeFsAvailable, gi/2)
		n.pass(5 * time.Second)
		n.wantCalls("below the threshold", "reclaim nodefs.available")
		n.result <- evict.ReclaimReport{}
		n.pass(5 * time.Second)
		n.wantCalls("when nothing was reclaimed", "reclaim nodefs.available")
		n.result <- evict.ReclaimReport{}
		n.pass(5 * time.Second)
		n.wantCalls("when images were not either", "evicted s-a 10737418240", "evict a hard true grace 1s", "evicted s-a 0", "reclaim nodefs.available")
		if r := n.wantResult("a", evict.ResultKilled); r.Freed != 0 {
			t.Errorf("record = %+v; want nothing freed while the pod is not removed", r)
		}
	}, func(n *node, _ *Options) { n.add("a", gi); n.add("b", gi) })
}

// A reclaim that an earlier run waited for counts as done.
func TestReclaimOfAnEarlierRun(t *testing.T) {
	run(t, settings, func(n *node) {
		n.pass(5 * time.Second)
		n.wantCalls("after the start", "reclaim nodefs.available")
	}, func(n *node, o *Options) {
		n.add("a", gi)
		n.observe(signal.NodeFsAvailable, gi/2)
		o.State.Reclaim = &evict.PendingReclaim{Threshold: evict.ThresholdKey{Signal: signal.NodeFsAvailable}}
	})
}

// When evicting is futile, one pod is evicted, and the record and the log name what else
// uses the resource.
func TestFutile(t *testing.T) {
	for _, tt := range []struct {
		name   string
		low    func(*node)
		log    string
		record func(evict.Record) bool
	}{
		{"memory", func(n *node) { n.used = 15*gi + gi/2; n.alarm() }, "largest_outside=\"[{Cgroup:/system.slice/big", func(r evict.Record) bool {
			return len(r.SystemCgroups) == 1 && r.SystemCgroups[0].Cgroup == "/system.slice/big"
		}},
		{"disk", func(n *node) {
			n.observe(signal.NodeFsAvailable, -100*gi)
			for range 2 {
				n.pass(2 * time.Second)
				n.result <- evict.ReclaimReport{}
			}
		}, "largest_outside=\"[{Path:/big", func(r evict.Record) bool { return len(r.SystemDirectories) == 1 }},
		{"tasks", func(n *node) { n.observe(signal.PIDAvailable, 1) }, "signal=pid.available", func(evict.Record) bool { return true }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			run(t, settings, func(n *node) {
				tt.low(n)
				n.pass(3 * time.Second)
				if r := n.record("a"); !r.Futile || !tt.record(r) {
					t.Errorf("record = %+v; want it futile, with what else uses the resource", r)
				}
				if out := n.log.String(); !strings.Contains(out, "evicting pods can't relieve the signal") || !strings.Contains(out, tt.log) {
					t.Errorf("log = %s; want %s", out, tt.log)
				}
				if v := n.last(); len(v.Futile) != 1 {
					t.Errorf("futile = %+v; want the signal while it is met", v.Futile)
				}
			}, func(n *node, _ *Options) { n.add("a", gi/4) })
		})
	}
}

// Sustained memory stalls evict a pod if the configuration says so.
func TestContention(t *testing.T) {
	run(t, settings+"pressure: {memory: {sustained: 30s, action: evict}}\n", func(n *node) {
		n.mu.Lock()
		n.stalls = []lanes.Stall{{Condition: signal.SystemMemoryContentionPressure, Since: time.Now()}}
		n.mu.Unlock()
		n.pass(29 * time.Second)
		n.wantCalls("before it is sustained")
		n.pass(3 * time.Second)
		if calls := n.took(); !slices.Contains(calls, "evict b hard true grace 1s") {
			t.Errorf("calls = %q; want b evicted", calls)
		}
		if r := n.record("b"); r.Cause != string(signal.SystemMemoryContentionPressure) || r.Lane != lanes.PSI || r.Confirm != "growth of the stalls in each window" {
			t.Errorf("record = %+v; want the stalls as cause", r)
		}
	}, func(n *node, _ *Options) { n.add("a", gi/2); n.add("b", gi) })
}

// No pod is evicted for the memory of one that is not listed yet: the loop waits for a list
// and decides again.
func TestUnlistedPod(t *testing.T) {
	run(t, settings, func(n *node) {
		n.pass(2 * time.Second)
		n.mu.Lock()
		n.unlisted = n.pod("new", 14*gi)
		n.mu.Unlock()
		n.alarm()
		n.pass(time.Second)
		n.wantCalls("below the threshold", "hot new dry run false", "follow new", "evicted s-new 0")
	}, func(n *node, _ *Options) { n.add("a", gi); n.add("b", gi+gi/2); n.listDelay = 20 * time.Millisecond })
}

// When the loop decides again, it asks again for the pods that have not started: one of them may be
// in the list by now.
func TestArrivalsAreAskedForAgain(t *testing.T) {
	asked, listed := 0, false
	const pressure = "evictionSoft: {memory.available: 15Gi}\nevictionSoftGracePeriod: {memory.available: 1h}\n"
	run(t, settings+pressure+"kube: {uid: 7}\nadmission: evict\n", func(n *node) {
		n.pass(2 * time.Second)
		n.mu.Lock()
		n.unlisted = n.pod("new", 14*gi)
		n.mu.Unlock()
		asked = 0
		n.alarm()
		n.pass(100 * time.Millisecond)
		if !listed {
			t.Errorf("asked %d times for arrivals; want a time between the list and the eviction", asked)
		}
	}, func(n *node, o *Options) {
		n.add("a", gi+gi/2)
		n.kubelet, n.listDelay = true, 20*time.Millisecond
		o.Arrivals = func(from, now time.Time) []evict.Pod {
			asked++
			n.mu.Lock()
			defer n.mu.Unlock()
			listed = listed || len(n.calls) == 0 && slices.ContainsFunc(n.pods, func(p evict.Pod) bool { return p.UID == "new" })
			return nil
		}
	})
}

// The wait for a list is bounded: to 100 ms once less than half of the threshold is left.
func TestUnlistedPodWithoutAList(t *testing.T) {
	run(t, settings, func(n *node) {
		n.pass(2 * time.Second)
		n.mu.Lock()
		n.noList, n.unlisted = true, n.pod("new", 14*gi)
		n.mu.Unlock()
		before := time.Now()
		n.alarm()
		n.pass(3 * time.Second)
		r := n.record("b")
		if took := r.SignalSent.Sub(before); took < listTimeout || took > 2*listTimeout {
			t.Errorf("b was killed after %v; want about %v", took, listTimeout)
		}
	}, func(n *node, _ *Options) { n.add("a", gi/2); n.add("b", gi+gi/4) })
}

// No pod is evicted for the tasks of one that is not listed yet.
func TestUnlistedTasks(t *testing.T) {
	run(t, settings, func(n *node) {
		n.pass(2 * time.Second)
		n.mu.Lock()
		n.unlisted = n.pod("new", gi)
		n.unlisted.Usage.PIDs = 20_000
		n.mu.Unlock()
		n.observe(signal.PIDAvailable, 90)
		n.pass(3 * time.Second)
		if calls := n.took(); len(calls) == 0 || !strings.HasPrefix(calls[0], "evict new") {
			t.Errorf("calls = %q; want the new pod evicted", calls)
		}
	}, func(n *node, _ *Options) {
		n.add("a", gi)
		n.pods[0].Usage.PIDs = 600
		n.listDelay = 20 * time.Millisecond
	})
}

// A pod is evicted only by files that were read in the same iteration.
func TestFilesAreReadAgain(t *testing.T) {
	run(t, settings, func(n *node) {
		n.readingsAge = time.Minute
		n.grow("b", 15*gi+gi/2)
		n.alarm()
		n.pass(time.Second)
		if !slices.Contains(n.readingsDropped, "b") || slices.Contains(n.readingsDropped, "a") {
			t.Errorf("readings dropped of %q; want of b alone", n.readingsDropped)
		}
		n.wantCalls("below the threshold", "hot b dry run false", "follow b", "evicted s-b 0")
	}, func(n *node, _ *Options) { n.add("a", gi/4); n.add("b", gi) })
}

// A crossing that file cache caused waits, unless a lane has answered it.
func TestAnsweredByALane(t *testing.T) {
	for _, answered := range []bool{false, true} {
		run(t, settings, func(n *node) {
			n.pass(2 * time.Second)
			n.mu.Lock()
			n.cache = 15 * gi
			n.mu.Unlock()
			if answered {
				n.arbiter.answered = map[signal.ThresholdID]bool{signal.IDOf(&n.last().Policy.Thresholds[0].Threshold): true}
			}
			n.alarm()
			n.pass(time.Second)
			if evicted := len(n.took()) > 0; evicted != answered {
				t.Errorf("answered %t: a pod evicted within a second: %t", answered, evicted)
			}
			if waiting := len(n.last().Orders.Waiting) > 0; waiting == answered {
				t.Errorf("answered %t: waiting %t", answered, waiting)
			}
		}, func(n *node, _ *Options) { n.add("b", gi) })
	}
}

// The policy follows the layout of the filesystems.
func TestLayoutChanges(t *testing.T) {
	run(t, settings, func(n *node) {
		n.pass(2 * time.Second)
		n.wantCalls("before")
		n.mu.Lock()
		n.layout = evict.ImageFs
		n.mu.Unlock()
		n.pass(2 * time.Second)
		n.wantCalls("after", "layout changed")
		if got := n.last().Policy.Layout; got != evict.ImageFs {
			t.Errorf("layout of the policy = %v; want %v", got, evict.ImageFs)
		}
	}, func(n *node, _ *Options) { n.add("b", gi) })
}

// Next to a kubelet evictd is in dry run, and logs that once.
func TestNextToAKubelet(t *testing.T) {
	run(t, settings, func(n *node) {
		n.grow("b", 15*gi+gi/2)
		n.alarm()
		n.pass(5 * time.Second)
		n.wantCalls("in dry run", "hot b dry run true", "dry run: follow b")
		if got := strings.Count(n.log.String(), "a kubelet owns pods of this node"); got != 1 {
			t.Errorf("%d log lines name the kubelet; want 1", got)
		}
		n.mu.Lock()
		n.kubelet = false
		n.mu.Unlock()
		n.pass(3 * time.Second)
		if calls := n.took(); !slices.Contains(calls, "hot b dry run false") || !strings.Contains(n.log.String(), "enforcing: pods are evicted when a threshold is met") {
			t.Errorf("calls = %q without the kubelet; want b evicted", calls)
		}
	}, func(n *node, _ *Options) {
		n.add("b", gi)
		n.kubelet, n.facts.CannotReport = true, "kube.uid is not set"
	})
}

// Next to a kubelet whose pods' evictions are reported, evictd enforces. A pod whose eviction
// can't be reported is exempt, on the hot path too.
func TestReportingNextToAKubelet(t *testing.T) {
	run(t, settings, func(n *node) {
		n.grow("b", 7*gi)
		n.grow("unreportable", 8*gi+gi/2)
		n.alarm()
		n.pass(5 * time.Second)
		calls := n.took()
		if !slices.Contains(calls, "hot b dry run false") || slices.ContainsFunc(calls, func(c string) bool { return strings.Contains(c, "unreportable") }) {
			t.Errorf("calls = %q; want b killed, and nothing else", calls)
		}
		if mode := n.last().Mode; mode.DryRun || !mode.Reporting {
			t.Errorf("mode = %+v; want enforcing and reporting", mode)
		}
	}, func(n *node, _ *Options) {
		n.add("b", gi)
		n.add("unreportable", gi)
		n.kubelet, n.pods[1].Unreportable = true, "no facts"
	})
}

// The actuator never waits for the loop to receive its reports.
func TestReportsDoNotBlock(t *testing.T) {
	n := newNode(t, settings)
	for range 2 * progressBuffer {
		n.report(act.Progress{UID: "u", Stage: act.Signalled})
	}
	if len(n.progress) != progressBuffer {
		t.Errorf("%d reports wait for the loop; want %d", len(n.progress), progressBuffer)
	}
}
