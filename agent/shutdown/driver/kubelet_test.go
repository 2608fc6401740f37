package driver

import (
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/loop"
	"github.com/evictd/evictd/agent/pods"
	"github.com/evictd/evictd/agent/shutdown"
	"github.com/evictd/evictd/agent/shutdown/logind"
)

const own = "shutdown: {besideKubelet: own}\n"

var (
	// reporting is the mode in which evictd-kube reports evictions.
	reporting    = loop.Mode{Reporting: true}
	cannotReport = loop.Mode{DryRun: true, Reasons: []string{"no evictd-kube is configured"}}
	dryRunMode   = loop.Mode{DryRun: true, Reasons: []string{"--dry-run was given"}, ReasonsExceptKubelet: []string{"--dry-run was given"}}
)

// Next to a kubelet the shutdown is evictd's if the kubelet is known to leave it and the ends of the
// pods can be reported. The lock is taken accordingly, also when the answer changes.
func TestShutdownNextToAKubelet(t *testing.T) {
	for _, tt := range []struct {
		name             string
		settings         string
		mode             loop.Mode
		shutsDown, known bool
		why              string // "" if evictd stops the pods
	}{
		{"kubelet leaves it", "", reporting, false, true, ""},
		{"dry run", "", dryRunMode, false, true, ""},
		{"kubelet stops them", "", reporting, true, true, "stops them itself"},
		{"unknown", "", reporting, false, false, "its configuration is not known"},
		{"can't report", "", cannotReport, false, true, "no evictd-kube is configured"},
		{"pods are not reported", "kubelet: override\n", loop.Mode{}, false, true, "kubelet: auto makes evictd report them"},
		{"left to the kubelet", "shutdown: {besideKubelet: kubelet}\n", reporting, false, true, "besideKubelet: own makes"},
		{"own", own, reporting, true, true, ""},
		{"own, without reports", own, cannotReport, false, false, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t, configured+tt.settings, web())
				n.view.Mode, n.view.Snapshot.Kubelet.HasSandboxes = tt.mode, true
				n.kubelet.shutsDown, n.kubelet.known = tt.shutsDown, tt.known
				defer n.start()()
				why := strings.Join(n.SkipReasons(n.view), "; ")
				if (why == "") != (tt.why == "") || !strings.Contains(why, tt.why) {
					t.Errorf("SkipReasons() = %q; want %q", why, tt.why)
				}
				delay := time.Duration(0)
				if tt.why == "" && len(tt.mode.ReasonsExceptKubelet) == 0 {
					delay = shutdown.Reserve + 30*time.Second
				}
				if last := n.wanted[len(n.wanted)-1]; last != delay {
					t.Errorf("delay = %v; want %v", last, delay)
				}
				n.events <- logind.Event{Preparing: true, Inhibited: true, Until: time.Now().Add(time.Minute)}
				time.Sleep(30 * time.Second)
				want := []string{"done"}
				switch {
				case len(tt.mode.ReasonsExceptKubelet) > 0:
					want = []string{"dry run: stop web", "save", "done", "phase ended"}
				case tt.why == "":
					want = []string{"phase stopping", "stop web 20s", "save", "done", "phase ended"}
				}
				n.expectCalls("in the shutdown", want...)
			})
		})
	}
}

// The lock follows what is known of the kubelet.
func TestDelayFollowsKubelet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, configured, web())
		n.view.Mode, n.view.Snapshot.Kubelet.HasSandboxes = reporting, true
		defer n.start()()
		for _, known := range []bool{true, false} {
			n.mu.Lock()
			n.kubelet.known = known
			n.mu.Unlock()
			n.ViewChanged()
			synctest.Wait()
		}
		if want := []time.Duration{0, shutdown.Reserve + 30*time.Second, 0}; !cmp.Equal(n.wanted, want) {
			t.Errorf("delays = %v; want %v", n.wanted, want)
		}
	})
}

// kubeletPods are pods of each kind next to a kubelet, and how they are stopped.
func kubeletPods(n *node) (want map[string]string) {
	n.view.Mode, n.view.Snapshot.Kubelet.HasSandboxes, n.kubelet.known = reporting, true, true
	n.view.Snapshot.Handles = map[string]pods.Handle{}
	want = map[string]string{}
	add := func(p evict.Pod, facts, owned bool, how string) {
		p.Namespace, p.Name, p.HasStats = "default", p.UID, true
		n.view.Snapshot.Pods = append(n.view.Snapshot.Pods, p)
		n.view.Snapshot.Handles[p.UID] = pods.Handle{SandboxID: "s", Facts: facts, Owned: owned}
		want[p.UID] = how
	}
	add(evict.Pod{UID: "web"}, true, false, "reported")
	add(evict.Pod{UID: "daemon", DaemonSet: true}, true, false, "reported")
	add(evict.Pod{UID: "strange"}, false, false, "fenced")
	add(evict.Pod{UID: "refused", Unreportable: "a policy"}, true, false, "fenced")
	add(evict.Pod{UID: "network", DaemonSet: true, Priority: critical().Priority}, true, false, "fenced")
	add(evict.Pod{UID: "apiserver", Static: true, Priority: critical().Priority}, false, false, "fenced")
	add(evict.Pod{UID: "crictl"}, false, true, "stopped")
	return want
}

// Each pod of the kubelet that can be reported is: the kubelet stops it. The others are stopped
// through the runtime and fenced, static ones last. A pod that no kubelet made is stopped as on
// other nodes.
func TestJobs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, configured)
		want := kubeletPods(n)
		defer n.start()()
		n.events <- logind.Event{Preparing: true, Inhibited: true, Until: time.Now().Add(time.Minute)}
		time.Sleep(20 * time.Second)
		got := map[string]string{}
		for uid, j := range n.jobsNow() {
			got[uid] = map[[2]bool]string{{false, false}: "stopped", {false, true}: "fenced", {true, true}: "reported"}[[2]bool{j.Reported, j.Shutdown}]
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("jobs differ (-want +got):\n%s", diff)
		}
		n.mu.Lock()
		calls := strings.Join(n.calls, "; ")
		n.mu.Unlock()
		if !strings.Contains(calls, "stop network 27s; stop apiserver 26s; save") {
			t.Errorf("calls = %s; want the static pod last", calls)
		}
		for _, r := range n.o.Execute.Records().List() {
			if r.Reason != shutdown.ReasonTerminated || r.Message != shutdown.MessageTerminated || r.Cause != evict.CauseShutdown {
				t.Errorf("record of %s: %s: %s, cause %s", r.UID, r.Reason, r.Message, r.Cause)
			}
		}
	})
}

// A pod that the kubelet starts during the shutdown is reported as the others: the API server
// permits no other reason.
func TestNewPodNextToAKubelet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, configured)
		kubeletPods(n)
		all := n.view.Snapshot.Pods
		n.view.Snapshot.Pods = all[2:3]
		n.ignoresStop["strange"] = true
		defer n.start()()
		n.events <- logind.Event{Preparing: true, Inhibited: true, Until: time.Now().Add(time.Minute)}
		time.Sleep(time.Second)
		n.mu.Lock()
		v := *n.view
		v.Snapshot.Pods, v.Snapshot.Listed = all[:3], time.Now()
		n.view = &v
		n.mu.Unlock()
		n.ViewChanged()
		synctest.Wait()
		reasons := map[string]string{}
		for _, r := range n.o.Execute.Records().List() {
			reasons[r.UID] = r.Reason
		}
		if want := map[string]string{"strange": "Terminated", "web": "Terminated", "daemon": "Terminated"}; !maps.Equal(reasons, want) {
			t.Errorf("reasons = %v; want %v", reasons, want)
		}
		time.Sleep(time.Minute)
	})
}

// The last answers of evictd-kube are waited for within the time that logind allows: the groups get
// less, by a tenth, at most by a second.
func TestAwaitAnswers(t *testing.T) {
	for name, tt := range map[string]struct {
		allowed, killed, ended time.Duration
	}{
		"as configured": {time.Minute, 29 * time.Second, 30 * time.Second},
		"less":          {12 * time.Second, 9 * time.Second, 9900 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t, "shutdownGracePeriod: 30s\n", web())
				n.view.Mode, n.view.Snapshot.Kubelet.HasSandboxes, n.kubelet.known = reporting, true, true
				n.view.Snapshot.Handles = map[string]pods.Handle{"web": {Facts: true}}
				n.unanswered = 1
				n.ignoresStop["web"] = true
				defer n.start()()
				began := time.Now()
				n.events <- logind.Event{Preparing: true, Inhibited: true, Until: began.Add(tt.allowed)}
				time.Sleep(tt.killed + 50*time.Millisecond)
				n.mu.Lock()
				last := n.calls[len(n.calls)-1]
				n.mu.Unlock()
				if last != "kill web" {
					t.Errorf("after %v: %s; want the pod killed", tt.killed, last)
				}
				time.Sleep(tt.ended - tt.killed)
				n.mu.Lock()
				last = n.calls[len(n.calls)-1]
				n.mu.Unlock()
				if last != "phase ended" {
					t.Errorf("after %v: %s; want the shutdown released without the answer", tt.ended, last)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, configured, web())
		n.view.Mode, n.view.Snapshot.Kubelet.HasSandboxes, n.kubelet.known = reporting, true, true
		n.unanswered = 1
		defer n.start()()
		n.events <- logind.Event{Preparing: true, Inhibited: true, Until: time.Now().Add(time.Minute)}
		time.Sleep(1500 * time.Millisecond)
		n.expectCalls("before the answer", "phase stopping", "stop web 20s")
		n.mu.Lock()
		n.unanswered = 0
		n.mu.Unlock()
		time.Sleep(10 * time.Millisecond)
		n.expectCalls("with the answer", "save", "done", "phase ended")
	})
}

// A shutdown of an earlier run is resumed once its pods are listed and asked again. Until then their
// orders to evictd-kube must stay.
func TestResuming(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, configured, web())
		n.view.Mode, n.view.Snapshot.Kubelet.HasSandboxes, n.kubelet.known = reporting, true, true
		n.view.Snapshot.Handles = map[string]pods.Handle{"web": {Facts: true}}
		earlier, _ := shutdown.Step(shutdown.State{}, shutdown.Inputs{Event: shutdown.Begin, Manual: true, Fences: true, Schedule: n.Schedule(n.view), Pods: n.view.Snapshot.Pods}, time.Now())
		n.Restore(earlier)
		listed := n.view
		unlisted := *listed
		unlisted.Snapshot.Listed, unlisted.Snapshot.Pods = time.Time{}, nil
		n.view = &unlisted
		n.listsNothing = true
		defer n.start()()
		time.Sleep(time.Second)
		if n.expectCalls("before the list"); !n.Resuming() {
			t.Error("Resuming() = false before the pods are listed")
		}
		n.mu.Lock()
		n.view, n.listsNothing = listed, false
		n.mu.Unlock()
		n.ViewChanged()
		n.expectCalls("with the list", "stop web 19s")
		if web := n.jobsNow()["web"]; n.Resuming() || !web.Reported || !web.Shutdown {
			t.Errorf("Resuming() = %t, job %+v; want it reported again", n.Resuming(), web)
		}
		time.Sleep(time.Minute)
	})
}

// Whether pods are fenced is decided when the shutdown begins: those that are stopped later are
// fenced also if they can't be reported any more, in this run or the next one.
func TestFencedWithoutReports(t *testing.T) {
	for name, tt := range map[string]struct {
		began, now    loop.Mode
		fenced, again bool
	}{
		"can't report any more": {reporting, cannotReport, true, false},
		"after a restart":       {reporting, cannotReport, true, true},
		"could never report":    {cannotReport, cannotReport, false, false},
		"can report since":      {cannotReport, reporting, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t, "shutdownGracePeriod: 30s\nshutdownGracePeriodCriticalPods: 10s\n"+own, web(), critical())
				n.view.Mode, n.view.Snapshot.Kubelet.HasSandboxes = tt.began, true
				n.view.Snapshot.Handles = map[string]pods.Handle{"web": {Facts: true}}
				if tt.again {
					earlier, _ := shutdown.Step(shutdown.State{}, shutdown.Inputs{Event: shutdown.Begin, Manual: true, Fences: true, Schedule: n.Schedule(n.view), Pods: n.view.Snapshot.Pods}, time.Now())
					n.Restore(earlier)
					n.view.Mode = tt.now
				}
				defer n.start()()
				if !tt.again {
					n.events <- logind.Event{Preparing: true, Inhibited: true, Until: time.Now().Add(time.Minute)}
				}
				synctest.Wait()
				n.mu.Lock()
				v := *n.view
				v.Mode = tt.now
				n.view = &v
				n.mu.Unlock()
				time.Sleep(time.Minute)
				for _, uid := range []string{"web", critical().UID} {
					reported := tt.fenced && !tt.again && uid == "web"
					if j, ok := n.jobsNow()[uid]; !ok || j.Shutdown != tt.fenced || j.Reported != reported {
						t.Errorf("job of %s: %t, fenced: %t, reported: %t; want %t, %t", uid, ok, j.Shutdown, j.Reported, tt.fenced, reported)
					}
				}
			})
		})
	}
}
