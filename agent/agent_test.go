package agent

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/act"
	"github.com/evictd/evictd/agent/config"
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
		facts  facts
		dryRun bool
		why    string
	}{
		{"enforcing", facts{kubelet: "auto"}, false, ""},
		{"configured", facts{kubelet: "auto", configured: "--dry-run was given"}, true, "--dry-run"},
		{"a kubelet's pods", facts{kubelet: "auto", found: evict.Kubelet{Pods: true}}, true, "kubelet: auto"},
		{"override", facts{kubelet: "override", found: evict.Kubelet{Pods: true}}, false, ""},
		{"override does not undo --dry-run", facts{kubelet: "override", found: evict.Kubelet{Pods: true}, configured: "--dry-run was given"}, true, "--dry-run"},
		{"absent", facts{kubelet: "absent", found: evict.Kubelet{Pods: true}}, false, ""},
		{"absent, but seen", facts{kubelet: "absent", found: evict.Kubelet{Process: "/usr/bin/kubelet (pid 7)"}}, true, "pid 7"},
		{"changed since the last list", facts{kubelet: "override", outdated: true}, true, "not been listed since"},
		{"misplaced", facts{kubelet: "override", misplaced: "hostPID is needed"}, true, "hostPID"},
	} {
		got := decideMode(tc.facts)
		if got.dryRun != tc.dryRun || !strings.Contains(strings.Join(got.why, "\n"), tc.why) || (len(got.why) > 0) != tc.dryRun {
			t.Errorf("%s: decideMode() = %+v; want dry run %v because of %q", tc.name, got, tc.dryRun, tc.why)
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
		idle bool // reclaim of the node is: the tasks wait for a container's own limit
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
			pages += leastScanned
		} else {
			pages += leastScanned - 1
		}
		if got := m.see(start.Add(tc.at), tc.full, pages, leastScanned); got != tc.want {
			t.Errorf("reading %d: stalls = %v; want %v", i, got, tc.want)
		}
	}
	// Without pressure information nothing is said to stall.
	if (&stalls{proc: kernel.FS(t.TempDir())}).check(start) {
		t.Error("check() without /proc/pressure = true; want false")
	}
}

// The pods' signal goes by the limit of all pods, not by what containers and the node
// reclaim for.
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
		{"at the limit, v1", v1, leastHits, 100_000, true, true},
		{"at the limit, v2", v2, leastHits, 100_000, true, true},
		{"for containers' own limits, v1", v1, leastHits - 1, 900_000, true, false},
		{"for containers' own limits, v2", v2, leastHits - 1, 900_000, true, false},
		{"reclaim makes headway", v2, 1000, 90_000, true, false},
		{"enough is left", v2, leastHits, 100_000, false, false},
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
			s := &stalls{proc: kernel.FS(proc), tree: h}
			start := time.Unix(1000, 0)
			if s.checkPods(start, "", true) {
				t.Error("checkPods() = true at the first look; want false")
			}
			state(100+tc.hits, 5_000_000+tc.waits)
			if got := s.checkPods(start.Add(stallWindow), "", tc.low); got != tc.want {
				t.Errorf("checkPods() = %t; want %t", got, tc.want)
			}
		})
	}
}

func TestRecords(t *testing.T) {
	decided := time.Unix(1000, 0)
	at := func(ms int) time.Time { return decided.Add(time.Duration(ms) * time.Millisecond) }
	for _, tc := range []struct {
		name     string
		rec      evict.Record
		progress []act.Progress
		want     evict.Record
	}{
		{"killed", evict.Record{Hard: true, Expected: 100}, []act.Progress{
			{Stage: act.Signalled, Time: at(1), Processes: 3}, {Stage: act.FirstGone, Time: at(5)},
			{Stage: act.LastGone, Time: at(9)}, {Stage: act.Finished, Time: at(20), Processes: 3},
		}, evict.Record{Hard: true, Expected: 100, Freed: 100, SignalSent: at(1), FirstGone: at(5), LastGone: at(9), Processes: 3, Result: evict.ResultKilled}},
		{"stopped", evict.Record{Expected: 100}, []act.Progress{
			{Stage: act.Signalled, Time: at(1)}, {Stage: act.LastGone, Time: at(900)}, {Stage: act.Finished, Time: at(950)},
		}, evict.Record{Expected: 100, Freed: 100, SignalSent: at(1), LastGone: at(900), Result: evict.ResultStopped}},
		{"hardened", evict.Record{}, []act.Progress{
			{Stage: act.Signalled, Time: at(1)}, {Stage: act.Hardened, Time: at(100)}, {Stage: act.Signalled, Time: at(101), Processes: 2},
			{Stage: act.LastGone, Time: at(110)}, {Stage: act.Finished, Time: at(120), Processes: 2},
		}, evict.Record{SignalSent: at(1), Hardened: at(100), LastGone: at(110), Processes: 2, Result: evict.ResultKilled}},
		{"stuck", evict.Record{Hard: true}, []act.Progress{
			{Stage: act.Signalled, Time: at(1), Processes: 1}, {Stage: act.Finished, Time: at(20), Err: errors.New("still holds 1 process")},
		}, evict.Record{Hard: true, SignalSent: at(1), Processes: 1, Result: evict.ResultStuck, Error: "still holds 1 process"}},
		{"refused", evict.Record{Hard: true}, []act.Progress{
			{Stage: act.Signalled, Time: at(1)}, {Stage: act.Refused, Time: at(2), Err: errors.New("it holds pid 1")},
		}, evict.Record{Hard: true, SignalSent: at(1), Result: evict.ResultFailed, Error: "it holds pid 1"}},
		{"dry run", evict.Record{Hard: true, DryRun: true, Expected: 100}, []act.Progress{
			{Stage: act.Finished, Time: at(2), Processes: 4},
		}, evict.Record{Hard: true, DryRun: true, Expected: 100, Processes: 4, Result: evict.ResultDryRun}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var r records
			tc.rec.UID, tc.rec.Decided, tc.rec.Result = "u", decided, evict.ResultPending
			tc.want.UID, tc.want.Decided = "u", decided
			r.add(evict.Record{UID: "u", Result: evict.ResultKilled}) // an older one of the pod
			r.add(tc.rec)
			for _, p := range tc.progress {
				r.update("u", func(rec *evict.Record) { apply(p, rec) })
			}
			got := r.snapshot()
			if diff := cmp.Diff(tc.want, got[1]); diff != "" {
				t.Errorf("record differs (-want +got):\n%s", diff)
			}
			if _, ok := r.update("u", func(*evict.Record) {}); ok {
				t.Error("a record that has ended was changed again")
			}
		})
	}
}

func TestRecordsKept(t *testing.T) {
	var r records
	old := make([]evict.Record, 2*keptRecords)
	old[2*keptRecords-1] = evict.Record{UID: "last", Result: evict.ResultPending}
	r.restore(old)
	got := r.snapshot()
	if len(got) != keptRecords || got[keptRecords-1].Result != evict.ResultUnknown {
		t.Errorf("restore() keeps %d, the last %+v; want %d, unknown", len(got), got[len(got)-1], keptRecords)
	}
	r.add(evict.Record{UID: "new"})
	if got := r.snapshot(); len(got) != keptRecords || got[keptRecords-1].UID != "new" {
		t.Errorf("add() keeps %d, the last %q; want %d, the new one", len(got), got[len(got)-1].UID, keptRecords)
	}
}

func TestOvershoot(t *testing.T) {
	var r records
	since := time.Unix(1000, 0)
	r.add(evict.Record{UID: "before", Cause: "memory.available", Threshold: 100, Decided: since.Add(-time.Second)})
	r.add(evict.Record{UID: "other", Cause: "pid.available", Threshold: 100, Decided: since})
	r.add(evict.Record{UID: "now", Cause: "memory.available", Threshold: 100, Overshoot: 10, Decided: since})
	for _, available := range []int64{95, 60, 80} {
		r.overshoot("memory.available", since, available)
	}
	var got []int64
	for _, rec := range r.snapshot() {
		got = append(got, rec.Overshoot)
	}
	if want := []int64{0, 0, 40}; !slices.Equal(got, want) {
		t.Errorf("overshoot = %v; want %v", got, want)
	}
}

func TestPace(t *testing.T) {
	victim := func(soft bool, status evict.VictimStatus) evict.State {
		return evict.State{Victims: []evict.Victim{{Soft: soft, Status: status}}}
	}
	met := evict.Orders{Met: []signal.Signal{signal.MemoryAvailable}}
	for _, tc := range []struct {
		name string
		v    View
		want time.Duration
	}{
		{"calm", View{}, calm},
		{"a victim dies", View{State: victim(false, evict.Unsettled), Orders: met}, settling},
		{"a victim has its grace", View{State: victim(true, evict.Unsettled), Orders: met}, low},
		{"a victim has settled", View{State: victim(false, evict.Settled)}, calm},
		{"low, and nothing to do", View{Orders: met}, low},
	} {
		if got := tempo(&tc.v); got != tc.want {
			t.Errorf("%s: tempo() = %v; want %v", tc.name, got, tc.want)
		}
	}
}

func TestRest(t *testing.T) {
	now := time.Unix(1000, 0)
	met := evict.Orders{Met: []signal.Signal{signal.MemoryAvailable}}
	for _, tc := range []struct {
		name string
		v    View
		seen time.Duration // how long ago an alarm was
		want time.Duration
	}{
		{"calm", View{Took: time.Millisecond}, time.Hour, calm},
		{"calm, and slow", View{Took: time.Second}, time.Hour, mostBusy * time.Second},
		{"an alarm that was not confirmed", View{Took: time.Millisecond}, time.Millisecond, settling},
		{"low, and slow", View{Took: time.Second, Orders: met}, time.Hour, low},
	} {
		tc.v.Time = now
		if got := rest(&tc.v, lanes.Raise{Seen: now.Add(-tc.seen)}); got != tc.want {
			t.Errorf("%s: rest() = %v; want %v", tc.name, got, tc.want)
		}
	}
}

// The time in which nobody killed it does not count against a victim of an
// earlier run.
func TestUntouched(t *testing.T) {
	long, now := time.Unix(1000, 0), time.Unix(1009, 0)
	before := evict.State{Victims: []evict.Victim{
		{UID: "a", Fell: long, Status: evict.Unsettled}, {UID: "b", Fell: long, Status: evict.Stuck}, {UID: "c", Fell: long, Status: evict.Unsettled},
	}}
	got := untouched(before, map[string]bool{"a": true, "b": true}, &View{Time: now})
	want := before.Clone()
	want.Victims[0].Fell = now
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("untouched() differs (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(before, untouched(before, nil, &View{Time: now})); diff != "" {
		t.Errorf("untouched() with nobody left differs (-want +got):\n%s", diff)
	}
}

func TestMisplaced(t *testing.T) {
	pid := os.Getpid()
	foreign := kerneltest.Tree(t, map[string]string{
		"memory/memory.usage_in_bytes": "1\n", "memory/memory.limit_in_bytes": "1\n", "memory/memory.stat": "\n", "memory/cgroup.procs": "1\n",
	})
	h, err := cgroup.Find(kernel.FS(foreign))
	if err != nil {
		t.Fatal(err)
	}
	if why := misplaced("/proc", h); !strings.Contains(why, "0 cgroups") {
		t.Errorf("misplaced() in a tree without us = %q; want it to say so", why)
	}
	elsewhere := t.TempDir()
	if err := os.Symlink("1", elsewhere+"/self"); err != nil {
		t.Fatal(err)
	}
	if why := misplaced(kernel.FS(elsewhere), h); pid != 1 && !strings.Contains(why, "hostPID") {
		t.Errorf("misplaced() with a procfs of another pid namespace = %q; want it to name hostPID", why)
	}
	here, err := cgroup.Find("/sys/fs/cgroup")
	if err != nil {
		t.Skip("needs cgroups: ", err)
	}
	if why := misplaced("/proc", here); why != "" {
		t.Errorf("misplaced() here = %q; want nothing", why)
	}
}

func TestNeedRestart(t *testing.T) {
	before := &config.Config{RuntimeEndpoint: "/a", CgroupRoot: "/", MemoryAccounting: config.AccountingKubelet}
	after := *before
	after.MaxVictims = 7
	if got := needRestart(before, &after); got != nil {
		t.Errorf("needRestart() = %v; want none", got)
	}
	after.RuntimeEndpoint, after.CgroupRoot, after.MemoryAccounting = "/b", "/c", config.AccountingAvailable
	if got, want := needRestart(before, &after), []string{"runtimeEndpoint", "cgroupRoot", "memoryAccounting"}; !slices.Equal(got, want) {
		t.Errorf("needRestart() = %v; want %v", got, want)
	}
}

func TestJob(t *testing.T) {
	s := pods.Snapshot{Handles: map[string]pods.Handle{"u": {SandboxID: "s", Owned: true, Containers: []pods.ContainerHandle{
		{ID: "c1", Name: "a", Cgroup: "/x", CgroupID: 7}, {ID: "c2", Name: "b", Unproven: "why"},
	}}}}
	want := act.Job{Order: evict.Order{UID: "u"}, SandboxID: "s", Owned: true, Containers: []act.Container{
		{ID: "c1", Name: "a", Cgroup: "/x", CgroupID: 7}, {ID: "c2", Name: "b", Unproven: "why"},
	}}
	if diff := cmp.Diff(want, job(evict.Order{UID: "u"}, &s, nil)); diff != "" {
		t.Errorf("job() differs (-want +got):\n%s", diff)
	}
}
