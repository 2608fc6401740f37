package loop

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/act"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/lanes"
	"github.com/evictd/evictd/agent/pods"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/kerneltest"
)

func TestDecideMode(t *testing.T) {
	for _, tc := range []struct {
		name   string
		facts  Facts
		dryRun bool
		why    string
	}{
		{"enforcing", Facts{Kubelet: "auto"}, false, ""},
		{"configured", Facts{Kubelet: "auto", Configured: "--dry-run was given"}, true, "--dry-run"},
		{"a kubelet's pods", Facts{Kubelet: "auto", KubeletFound: evict.Kubelet{HasSandboxes: true}, CannotReport: "kube.uid is not set"}, true, "(kubelet: auto): kube.uid is not set"},
		{"a kubelet's pods, reported", Facts{Kubelet: "auto", KubeletFound: evict.Kubelet{HasSandboxes: true}}, false, ""},
		{"a kubelet's pods, reported, but configured", Facts{Kubelet: "auto", KubeletFound: evict.Kubelet{HasSandboxes: true}, Configured: "--dry-run was given"}, true, "--dry-run"},
		{"no kubelet's pods and no evictd-kube", Facts{Kubelet: "auto", CannotReport: "kube.uid is not set"}, false, ""},
		{"override without evictd-kube", Facts{Kubelet: "override", KubeletFound: evict.Kubelet{HasSandboxes: true}, CannotReport: "kube.uid is not set"}, false, ""},
		{"override does not undo --dry-run", Facts{Kubelet: "override", KubeletFound: evict.Kubelet{HasSandboxes: true}, Configured: "--dry-run was given"}, true, "--dry-run"},
		{"absent", Facts{Kubelet: "absent", KubeletFound: evict.Kubelet{HasSandboxes: true}}, false, ""},
		{"absent, but seen", Facts{Kubelet: "absent", KubeletFound: evict.Kubelet{Process: "/usr/bin/kubelet (pid 7)"}}, true, "pid 7"},
		{"changed since the last list", Facts{Kubelet: "override", KubeletSettingChanged: true}, true, "not been listed since"},
		{"misplaced", Facts{Kubelet: "override", Misplaced: "hostPID is needed"}, true, "hostPID"},
	} {
		got := decideMode(tc.facts)
		if got.DryRun != tc.dryRun || !strings.Contains(strings.Join(got.Reasons, "\n"), tc.why) || (len(got.Reasons) > 0) != tc.dryRun {
			t.Errorf("%s: decideMode() = %+v; want dry run %v because of %q", tc.name, got, tc.dryRun, tc.why)
		}
		if want := tc.facts.Kubelet == "auto" && tc.facts.KubeletFound.HasSandboxes && !tc.dryRun; got.Reporting != want {
			t.Errorf("%s: decideMode() = %+v; want reporting %t", tc.name, got, want)
		}
	}
}

func TestStalls(t *testing.T) {
	start := time.Unix(1000, 0)
	var m stallMeter
	pages := uint64(0)
	for i, tc := range []struct {
		at   time.Duration
		full time.Duration
		idle bool // the node's reclaim is idle: the tasks wait for a container's own limit
		want bool
	}{
		{0, 5 * time.Second, false, false}, // what happened before is not known
		{100 * time.Millisecond, 5*time.Second + 20*time.Millisecond, false, false},
		{200 * time.Millisecond, 5*time.Second + 120*time.Millisecond, false, true},
		{700 * time.Millisecond, 5*time.Second + 130*time.Millisecond, false, true}, // of the last second
		{1300 * time.Millisecond, 5*time.Second + 130*time.Millisecond, false, false},
		{2400 * time.Millisecond, 5*time.Second + 200*time.Millisecond, false, false},
		{12400 * time.Millisecond, 5*time.Second + 320*time.Millisecond, false, false}, // in ten seconds
		{22400 * time.Millisecond, 6*time.Second + 400*time.Millisecond, false, true},
		{22500 * time.Millisecond, 6*time.Second + 400*time.Millisecond, false, true},
		{23400 * time.Millisecond, 6*time.Second + 400*time.Millisecond, false, false},
		{24400 * time.Millisecond, 7*time.Second + 400*time.Millisecond, true, false},
		{25400 * time.Millisecond, 8*time.Second + 400*time.Millisecond, false, true},
	} {
		if !tc.idle {
			pages += minScannedPages
		} else {
			pages += minScannedPages - 1
		}
		if got := m.update(start.Add(tc.at), tc.full, pages, minScannedPages); got != tc.want {
			t.Errorf("reading %d: stalls = %v; want %v", i, got, tc.want)
		}
	}
	// Without PSI reclaim never stalls.
	if (&stallDetector{proc: kernel.FS(t.TempDir())}).check(start) {
		t.Error("check() without /proc/pressure = true; want false")
	}
}

// Reclaim of the pods' signal stalls at the limit of all pods only, not at limits of
// containers or of the node.
func TestStallsOfThePods(t *testing.T) {
	const v1, v2 = "memory/memory.usage_in_bytes", "cgroup.controllers"
	for _, tc := range []struct {
		name  string
		tree  string
		hits  int
		waits int // for memory, microseconds: of the node on v1, of the pods on v2
		low   bool
		want  bool
	}{
		{"at the limit, v1", v1, minLimitHits, 100_000, true, true},
		{"at the limit, v2", v2, minLimitHits, 100_000, true, true},
		{"for containers' own limits, v1", v1, minLimitHits - 1, 900_000, true, false},
		{"for containers' own limits, v2", v2, minLimitHits - 1, 900_000, true, false},
		{"reclaim makes progress", v2, 1000, 90_000, true, false},
		{"enough is left", v2, minLimitHits, 100_000, false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			root, proc := kerneltest.Tree(t, map[string]string{tc.tree: "memory\n"}), t.TempDir()
			state := func(hits, waits int) {
				pressure := fmt.Sprintf("some avg10=0.00 avg60=0.00 avg300=0.00 total=%d\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=%[1]d\n", waits)
				if tc.tree == v1 {
					kerneltest.Write(t, root, map[string]string{"memory/kubepods/memory.failcnt": fmt.Sprintf("%d\n", hits)})
					kerneltest.Write(t, proc, map[string]string{"pressure/memory": pressure})
					return
				}
				kerneltest.Write(t, root, map[string]string{
					"kubepods/memory.events.local": fmt.Sprintf("low 0\nhigh 0\nmax %d\noom 0\noom_kill 0\noom_group_kill 0\n", hits),
					"kubepods/memory.pressure":     pressure,
				})
			}
			state(100, 5_000_000)
			h, err := cgroup.Find(kernel.FS(root))
			if err != nil {
				t.Fatal(err)
			}
			s := &stallDetector{proc: kernel.FS(proc), tree: h}
			start := time.Unix(1000, 0)
			if s.checkPods(start, "", true) {
				t.Error("first checkPods() = true; want false")
			}
			state(100+tc.hits, 5_000_000+tc.waits)
			if got := s.checkPods(start.Add(stallWindow), "", tc.low); got != tc.want {
				t.Errorf("checkPods() = %t; want %t", got, tc.want)
			}
		})
	}
}

func TestLevelInterval(t *testing.T) {
	victim := func(soft bool, status evict.VictimStatus) evict.State {
		return evict.State{Victims: []evict.Victim{{Soft: soft, Status: status}}}
	}
	met := evict.Orders{Met: []signal.Signal{signal.MemoryAvailable}}
	now := time.Unix(1000, 0)
	covered := func(ago time.Duration, soft bool) View {
		timer := evict.Timer{Threshold: evict.ThresholdKey{Soft: soft}, Covered: now.Add(-ago)}
		return View{Time: now, Policy: &evict.Policy{SettleTimeout: time.Second}, State: evict.State{Timers: []evict.Timer{timer}}, Orders: met}
	}
	for _, tc := range []struct {
		name string
		v    View
		want time.Duration
	}{
		{"idle", View{}, idleInterval},
		{"a victim dies", View{State: victim(false, evict.Unsettled), Orders: met}, settlingInterval},
		{"a victim has its grace", View{State: victim(true, evict.Unsettled), Orders: met}, lowInterval},
		{"a victim has settled", View{State: victim(false, evict.Settled)}, idleInterval},
		{"low, without an order", View{Orders: met}, lowInterval},
		{"other pods end", covered(999*time.Millisecond, false), settlingInterval},
		{"other pods have been ending", covered(time.Second, false), lowInterval},
		{"other pods end, a soft threshold", covered(0, true), lowInterval},
	} {
		if got := levelInterval(&tc.v); got != tc.want {
			t.Errorf("%s: levelInterval() = %v; want %v", tc.name, got, tc.want)
		}
	}
}

func TestNextInterval(t *testing.T) {
	now := time.Unix(1000, 0)
	met := evict.Orders{Met: []signal.Signal{signal.MemoryAvailable}}
	for _, tc := range []struct {
		name string
		v    View
		seen time.Duration // how long ago an alarm was
		want time.Duration
	}{
		{"idle", View{Took: time.Millisecond}, time.Hour, idleInterval},
		{"idle, and slow", View{Took: time.Second}, time.Hour, restFactor * time.Second},
		{"an alarm that was not confirmed", View{Took: time.Millisecond}, time.Millisecond, settlingInterval},
		{"low, and slow", View{Took: time.Second, Orders: met}, time.Hour, lowInterval},
	} {
		tc.v.Time = now
		if got := nextInterval(&tc.v, lanes.Alarm{Seen: now.Add(-tc.seen)}); got != tc.want {
			t.Errorf("%s: nextInterval() = %v; want %v", tc.name, got, tc.want)
		}
	}
}

// The time between two runs does not count for the settle timeout of a victim.
func TestRestartSettleTimeouts(t *testing.T) {
	long, now := time.Unix(1000, 0), time.Unix(1009, 0)
	before := evict.State{Victims: []evict.Victim{
		{UID: "a", ProgressAt: long, Status: evict.Unsettled}, {UID: "b", ProgressAt: long, Status: evict.Stuck}, {UID: "c", ProgressAt: long, Status: evict.Unsettled},
	}}
	got := restartSettleTimeouts(before, map[string]bool{"a": true, "b": true}, &View{Time: now})
	want := before.Clone()
	want.Victims[0].ProgressAt = now
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("restartSettleTimeouts() differs (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(before, restartSettleTimeouts(before, nil, &View{Time: now})); diff != "" {
		t.Errorf("restartSettleTimeouts() without victims to resume differs (-want +got):\n%s", diff)
	}
}

func TestJob(t *testing.T) {
	s := pods.Snapshot{Handles: map[string]pods.Handle{"u": {SandboxID: "s", Owned: true, Containers: []evict.RunningContainer{
		{ID: "c1", Name: "a", Cgroup: "/x", CgroupID: 7}, {ID: "c2", Name: "b", Unproven: "why"},
	}}}}
	want := act.Job{Order: evict.Order{UID: "u"}, SandboxID: "s", Owned: true, Containers: []evict.RunningContainer{
		{ID: "c1", Name: "a", Cgroup: "/x", CgroupID: 7}, {ID: "c2", Name: "b", Unproven: "why"},
	}}
	if diff := cmp.Diff(want, Job(evict.Order{UID: "u"}, &s, nil)); diff != "" {
		t.Errorf("Job() differs (-want +got):\n%s", diff)
	}
}

func TestDecideModeReasons(t *testing.T) {
	for _, tt := range []struct {
		facts Facts
		want  int
	}{
		{Facts{Kubelet: "auto", KubeletFound: evict.Kubelet{HasSandboxes: true}, CannotReport: "why"}, 0},
		{Facts{Kubelet: "auto", KubeletFound: evict.Kubelet{HasSandboxes: true}}, 0},
		{Facts{Kubelet: "auto", KubeletFound: evict.Kubelet{HasSandboxes: true}, Configured: "--dry-run was given"}, 1},
		{Facts{Kubelet: "absent", KubeletFound: evict.Kubelet{Process: "pid 7"}, Misplaced: "where?"}, 2},
	} {
		if got := decideMode(tt.facts); len(got.ReasonsExceptKubelet) != tt.want {
			t.Errorf("decideMode(%+v).ReasonsExceptKubelet = %q; want %d reasons", tt.facts, got.ReasonsExceptKubelet, tt.want)
		}
	}
}
