package loop

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/act"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/pods"
	"github.com/evictd/evictd/agent/signal"
)

// changeHandle changes the handle of a pod.
func (n *node) changeHandle(uid string, change func(*pods.Handle)) {
	h := n.handles[uid]
	change(&h)
	n.handles[uid] = h
}

func kubeletsPod(facts bool) func(*pods.Handle) {
	return func(h *pods.Handle) { h.Owned, h.Facts = false, facts }
}

// evictd-kube reports the eviction of a kubelet's pod with facts, under kubelet: auto.
func TestReportedJob(t *testing.T) {
	for _, tt := range []struct {
		name, settings string
		handle         func(*pods.Handle)
		want           []string
	}{
		{"kubelet's pod with facts", settings, kubeletsPod(true), []string{"evict a hard true grace 1s reported"}},
		{"without facts", settings, kubeletsPod(false), []string{"evict a hard true grace 1s"}},
		{"own pod", settings, func(h *pods.Handle) { h.Facts = true }, []string{"evict a hard true grace 1s", "evicted s-a 0"}},
		{"override", settings + "kubelet: override\n", kubeletsPod(true), []string{"evict a hard true grace 1s"}},
		{"dry run", settings + "dryRun: true\n", kubeletsPod(true), []string{"dry run: evict a"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			run(t, tt.settings, func(n *node) {
				n.observe(signal.PIDAvailable, 50)
				n.pass(time.Second)
				n.wantCalls("below the threshold", tt.want...)
			}, func(n *node, _ *Options) {
				n.add("a", gi)
				n.pods[0].Usage.PIDs = 600
				n.changeHandle("a", tt.handle)
			})
		})
	}
}

// Whether an eviction is reported, and what is known of the sandbox, is as of the kill, also if
// the handle was opened before that.
func TestReportedJobOfHotKill(t *testing.T) {
	run(t, settings, func(n *node) {
		n.pass(2 * time.Second)
		n.mu.Lock()
		n.changeHandle("b", kubeletsPod(true))
		n.version++
		n.mu.Unlock()
		n.kill("b", 15*gi, act.KillResult{Processes: 1})
		n.pass(time.Second)
		n.wantCalls("after the kill", "follow b reported")
	}, func(n *node, _ *Options) {
		n.add("b", gi)
		n.changeHandle("b", kubeletsPod(false))
	})
}

// The eviction of a pod that has left the list since it was killed is reported too.
func TestReportedJobOfUnlistedPod(t *testing.T) {
	run(t, settings, func(n *node) {
		n.pass(2 * time.Second)
		n.mu.Lock()
		n.pods = nil
		n.version++
		n.mu.Unlock()
		n.kill("b", 15*gi, act.KillResult{Processes: 1})
		n.pass(time.Second)
		n.wantCalls("after the kill", "follow b reported")
	}, func(n *node, _ *Options) {
		n.add("b", gi)
		n.changeHandle("b", kubeletsPod(true))
	})
}

// An eviction of an earlier run is reported too, and so is the end of its grace period.
func TestReportedJobOfEarlierRun(t *testing.T) {
	run(t, settings, func(n *node) {
		n.pass(2 * time.Second)
		n.wantCalls("at the first step", "evict b hard false grace 20s reported")
		n.used = 15*gi + gi/2
		n.alarm()
		n.pass(time.Second)
		n.wantCalls("below a hard threshold", "escalate b reported")
	}, func(n *node, o *Options) {
		n.add("b", gi)
		n.changeHandle("b", kubeletsPod(true))
		now := time.Now()
		o.State.Victims = []evict.Victim{{
			UID: "b", Pod: "default/b", Cause: signal.MemoryAvailable.String(), Signal: evict.ThresholdKey{Signal: signal.MemoryAvailable},
			Soft: true, Due: now.Add(20 * time.Second), ProgressAt: now, Expected: gi, Lowest: gi, Status: evict.Unsettled,
		}}
	})
}

// A pod that the hot path has killed is reported, and not stopped by the runtime, also if the mode
// or the facts have changed before the loop learns of the kill.
func TestReportedJobOfHotKillBeforeAChange(t *testing.T) {
	for name, change := range map[string]func(*node){
		"dry run":         func(n *node) { n.facts.Configured = "the configuration says dryRun: true" },
		"facts are gone":  func(n *node) { n.changeHandle("b", kubeletsPod(false)) },
		"nothing changes": func(*node) {},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, settings, func(n *node) {
				n.pass(2 * time.Second)
				n.mu.Lock()
				change(n)
				n.version++
				n.mu.Unlock()
				n.kill("b", 15*gi, act.KillResult{Processes: 1})
				n.pass(time.Second)
				n.wantCalls("after the kill", "follow b reported")
			}, func(n *node, _ *Options) {
				n.add("b", gi)
				n.changeHandle("b", kubeletsPod(true))
			})
		})
	}
}

// A pod whose eviction can't be reported is killed neither at the end of an eviction that has
// begun nor for one of an earlier run, except where the configuration says so.
func TestUnreportableVictims(t *testing.T) {
	noFacts := func(n *node) { n.changeHandle("b", kubeletsPod(false)) }
	forbidden := func(n *node) { n.pods[0].Unreportable = "forbidden" }
	for _, tt := range []struct {
		name, settings  string
		before, between func(*node)
		resumed, ended  []string
		log             string
		wait            time.Duration
		ordered         bool
	}{
		{"no facts at the start", settings, noFacts, nil, nil, nil, "is not resumed", resumeFactsTimeout, false},
		{"forbidden at the start", settings, forbidden, nil, nil, nil, "is not resumed", 0, false},
		{"no facts later", settings, nil, noFacts, []string{"evict b hard false grace 20s reported"}, nil, "is not ended early", 0, false},
		{"forbidden later", settings, nil, forbidden, []string{"evict b hard false grace 20s reported"}, nil, "is not ended early", 0, false},
		{"override", settings + "kubelet: override\n", noFacts, forbidden, []string{"evict b hard false grace 20s"}, []string{"escalate b"}, "", 0, false},
		{"no facts, but an order", settings, noFacts, nil, []string{"evict b hard false grace 20s reported"}, nil, "", 0, true},
		{"no facts later, but an order", settings, nil, noFacts, []string{"evict b hard false grace 20s reported"}, []string{"escalate b reported"}, "", 0, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			run(t, tt.settings, func(n *node) {
				n.pass(tt.wait + 2*time.Second)
				n.wantCalls("at the first step", tt.resumed...)
				if tt.between != nil {
					n.mu.Lock()
					tt.between(n)
					n.used = 15*gi + gi/2
					n.version++
					n.mu.Unlock()
					n.alarm()
					n.pass(time.Second)
					n.wantCalls("below a hard threshold", tt.ended...)
				}
				if failed := len(n.last().State.Victims) > 0 && n.last().State.Victims[0].Status == evict.Failed; failed != (tt.log != "") {
					t.Errorf("victims = %+v; want the eviction failed, so that another pod is chosen: %t", n.last().State.Victims, tt.log != "")
				}
				if !strings.Contains(n.log.String(), tt.log) {
					t.Errorf("log = %s; want %q", n.log.String(), tt.log)
				}
			}, func(n *node, o *Options) {
				n.add("b", gi)
				n.changeHandle("b", kubeletsPod(true))
				if tt.before != nil {
					tt.before(n)
				}
				o.Ordered = func(uid string) bool { return tt.ordered && uid == "b" }
				now := time.Now()
				o.State.Victims = []evict.Victim{{
					UID: "b", Pod: "default/b", Cause: signal.MemoryAvailable.String(), Signal: evict.ThresholdKey{Signal: signal.MemoryAvailable},
					Soft: true, Due: now.Add(20 * time.Second), ProgressAt: now, Expected: gi, Lowest: gi, Status: evict.Unsettled,
				}}
			})
		})
	}
}

// A victim of an earlier run that has no facts yet is resumed when they come, also if its grace period is ended early by
// then, and no other pod is evicted in its place.
func TestResumeWaitsForFacts(t *testing.T) {
	for hard, want := range map[bool]string{false: "evict b hard false grace 1", true: "evict b hard true grace 0"} {
		t.Run(fmt.Sprint(hard), func(t *testing.T) {
			run(t, settings, func(n *node) {
				n.pass(2 * time.Second)
				if hard {
					n.mu.Lock()
					n.used = 15*gi + gi/2
					n.version++
					n.mu.Unlock()
					n.alarm()
					n.pass(time.Second)
				}
				n.wantCalls("without facts")
				if v := n.last(); !v.Resuming || v.State.Victims[0].Status != evict.Unsettled {
					t.Errorf("without facts: resuming %t, victims %+v; want the eviction to wait", v.Resuming, v.State.Victims)
				}
				n.mu.Lock()
				n.changeHandle("b", kubeletsPod(true))
				n.version++
				n.mu.Unlock()
				n.pass(2 * time.Second)
				if got := n.took(); len(got) != 1 || !strings.HasPrefix(got[0], want) || !strings.HasSuffix(got[0], "s reported") {
					t.Errorf("calls with facts = %q; want %s...", got, want)
				}
				if n.last().Resuming {
					t.Error("resuming after the facts have come")
				}
			}, func(n *node, o *Options) {
				n.add("b", gi)
				n.changeHandle("b", kubeletsPod(false))
				now := time.Now()
				o.State.Victims = []evict.Victim{{
					UID: "b", Pod: "default/b", Cause: signal.MemoryAvailable.String(), Signal: evict.ThresholdKey{Signal: signal.MemoryAvailable},
					Soft: true, Due: now.Add(20 * time.Second), ProgressAt: now, Expected: gi, Lowest: gi, Status: evict.Unsettled,
				}}
			})
		})
	}
}

// The job for another kill needs the pod's containers.
func TestJobOfRevivedPod(t *testing.T) {
	v := &View{Snapshot: pods.Snapshot{Handles: map[string]pods.Handle{
		"a": {SandboxID: "s-a", Containers: []evict.RunningContainer{{ID: "c-a"}}}, "b": {SandboxID: "s-b"},
	}}}
	for uid, want := range map[string]bool{"a": true, "b": false, "c": false} {
		if job, ok := v.ReportedJob(evict.Order{UID: uid, Hard: true}, nil); ok != want || ok && (!job.Reported || job.SandboxID != "s-a" || !job.Order.Hard) {
			t.Errorf("job of %s = %+v, %t; want %t", uid, job, ok, want)
		}
	}
}
