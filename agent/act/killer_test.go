package act

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
)

func TestKill(t *testing.T) {
	for _, tc := range []struct {
		name, script string
		processes    int // that must run before the kill
	}{
		{"one process", "exec sleep 1000", 1},
		{"a tree", "sleep 1000 & sleep 1000 & (sleep 1000 & wait) & wait", 1},
		{"ignores signals", "trap '' TERM INT HUP; sleep 1000 & while :; do wait; done", 1},
		{"forks while it is killed", "while :; do sleep 1000 & sleep 0.001; done", 1},
		{"fork bomb", "exec " + bombScript, manyProcesses},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newTestCgroup(t)
			// A CPU limit ends a fork bomb that the kill misses.
			cmd := p.run("ulimit -t 20; " + tc.script)
			p.waitFor("there are enough processes", func() bool { return len(p.pids()) >= tc.processes })
			var reports progressLog
			runtime := &fakeRuntime{}
			k := NewKiller(p.hierarchy, "/proc", runtime, reports.record)
			k.Evict(t.Context(), hardJob(p.container("c1")))
			k.Wait()
			p.wantKilled(cmd, &reports, runtime)
			if last := reports.last(); last.Processes < 1 {
				t.Errorf("last report = %+v; want processes", last)
			}
		})
	}
}

// A frozen process of cgroup v1 does not exit before it is thawed.
func TestKillThawsFrozen(t *testing.T) {
	p := newTestCgroup(t)
	p.run("exec sleep 1000")
	g, err := p.hierarchy.Open(p.path)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if err := g.Freeze(); errors.Is(err, kernel.ErrUnavailable) {
		t.Skip("needs a freezer: ", err)
	} else if err != nil {
		t.Fatal(err)
	}
	p.waitFor("it is frozen", func() bool { frozen, err := g.Frozen(); return frozen && err == nil })
	var reports progressLog
	k := NewKiller(p.hierarchy, "/proc", nil, reports.record)
	k.Evict(t.Context(), hardJob(p.container("c1")))
	k.Wait()
	if pids := p.pids(); len(pids) > 0 {
		t.Errorf("processes left in the cgroup: %v", pids)
	}
	if last := reports.last(); last.Stage != Finished || last.Err != nil {
		t.Errorf("last report = %+v; want it finished", last)
	}
}

// All processes of a fork bomb that was frozen and signalled exit, without any further
// signal.
func TestKillFrozenForkBomb(t *testing.T) {
	p := newTestCgroup(t)
	p.run("ulimit -t 20; exec " + bombScript)
	p.waitFor("there are many processes", func() bool { return len(p.pids()) >= manyProcesses })
	v, err := open(p.hierarchy, p.container("c1"), &evict.Guard{})
	if err != nil {
		t.Fatal(err)
	}
	defer v.close()
	if err := v.group.Freeze(); errors.Is(err, kernel.ErrUnavailable) {
		t.Skip("needs a freezer: ", err)
	}
	p.waitFor("all are signalled", func() bool { // each process has to run before it freezes
		all, err := v.killFrozen("/proc")
		if err != nil {
			t.Fatal(err)
		}
		return all
	})
	p.waitFor("all have exited", func() bool { return len(p.pids()) == 0 })
	if frozen, err := v.group.Frozen(); err != nil || frozen {
		t.Errorf("Frozen() = %v, %v; want it thawed", frozen, err)
	}
}

// The freezer's cgroup of the same path may contain other processes, which must not be
// frozen.
func TestFreezeIsLocal(t *testing.T) {
	p := newTestCgroup(t)
	if p.hierarchy.Version == cgroup.V2 {
		t.Skip("needs a v1 freezer")
	}
	p.run("exec sleep 1000")
	v, err := open(p.hierarchy, p.container("c1"), &evict.Guard{})
	if err != nil {
		t.Fatal(err)
	}
	defer v.close()
	if own, err := v.freezeIsLocal(); err != nil || !own {
		t.Errorf("freezeIsLocal() = %v, %v; want true", own, err)
	}
	other := exec.Command("sleep", "1000")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { other.Process.Kill(); other.Wait() })
	freezer := string(p.hierarchy.Freezer.Path(p.path, "cgroup.procs"))
	if err := os.WriteFile(freezer, []byte(strconv.Itoa(other.Process.Pid)), 0); err != nil {
		t.Fatal(err)
	}
	if own, err := v.freezeIsLocal(); err != nil || own {
		t.Errorf("freezeIsLocal() with another process = %v, %v; want false", own, err)
	}
	if all, err := v.killFrozen("/proc"); err != nil || all {
		t.Errorf("killFrozen() with another process = %v, %v; want nothing done", all, err)
	}
	if !slices.Contains(p.pids(), v.procs[0]) {
		t.Error("the container was killed; want it left to drain")
	}
}

// A cgroup with a guarded process and no live init process is not killed.
func TestKillRefused(t *testing.T) {
	p := newTestCgroup(t)
	cmd := p.run("sleep 1000 & wait")
	first := cmd.Process.Pid
	p.waitFor("two processes run", func() bool { return len(p.pids()) == 2 })
	right := p.container("c1")
	wrong := right
	wrong.CgroupID++
	for name, tc := range map[string]struct {
		container evict.RunningContainer
		guard     evict.Guard
		gone      bool
		asked     []string // of the runtime
	}{
		"contains a shim":             {right, evict.Guard{Protected: map[int]string{first: "the shim of container c9"}}, false, nil},
		"contains a second container": {right, evict.Guard{Inits: map[int]string{first: "c2"}}, false, []string{"container c1 0s", "sandbox s"}},
		"another cgroup of the name":  {wrong, evict.Guard{}, true, []string{"container c1 0s", "sandbox s"}},
	} {
		t.Run(name, func(t *testing.T) {
			job := hardJob(tc.container)
			job.Guard = &tc.guard
			for kind, actuate := range map[string]func(report func(Progress)){
				"killer": func(report func(Progress)) {
					runtime := &fakeRuntime{}
					k := NewKiller(p.hierarchy, "/proc", runtime, report)
					k.Evict(t.Context(), job)
					k.Wait()
					if !slices.Equal(runtime.calls, tc.asked) {
						t.Errorf("runtime was asked %q; want %q", runtime.calls, tc.asked)
					}
				},
				"dry run": func(report func(Progress)) { NewDryRun(p.hierarchy, "/proc", report).Evict(t.Context(), job) },
			} {
				var reports progressLog
				actuate(reports.record)
				if got, want := slices.Contains(reports.stages(), Signalled), kind == "killer" && len(tc.asked) > 0; got != want {
					t.Errorf("%s: reported as signalled: %t; want %t", kind, got, want)
				}
				last := reports.last()
				var refusal *WrongVictimError
				switch {
				case tc.gone && last.Err != nil:
					t.Errorf("%s: %+v; want no error for a cgroup that is gone", kind, last)
				case !tc.gone && (last.Stage != Refused || !errors.As(last.Err, &refusal)):
					t.Errorf("%s: %+v; want it refused as the wrong victim", kind, last)
				}
			}
			if got := len(p.pids()); got != 2 {
				t.Errorf("%d processes are left; want both", got)
			}
		})
	}
}

// Nothing is signalled if one container has an essential process and the cgroup of the other
// is gone.
func TestEssentialNextToGone(t *testing.T) {
	p := newTestCgroup(t)
	pid := p.run("exec sleep 1000").Process.Pid
	job := hardJob(p.container("c1"), evict.RunningContainer{ID: "c2", Name: "gone", Cgroup: p.path + "-gone", CgroupID: 1})
	job.Guard = &evict.Guard{Protected: map[int]string{pid: "the shim of container c9"}}
	for name, actuate := range map[string]func(k *Killer){
		"Evict": func(k *Killer) { k.Evict(t.Context(), job) },
		"Follow": func(k *Killer) {
			handle := p.prepare(job.Containers...)
			k.Follow(t.Context(), job, handle, NewFastKiller(nil).Kill(handle, job.Guard))
		},
	} {
		var reports progressLog
		k := NewKiller(p.hierarchy, "/proc", &fakeRuntime{}, reports.record)
		actuate(k)
		k.Wait()
		if got := reports.stages(); !slices.Equal(got, []Stage{Refused}) {
			t.Errorf("%s: stages = %v; want only %v", name, got, Refused)
		}
	}
}

// A container whose cgroup is not proven is stopped through the runtime only.
func TestKillUnproven(t *testing.T) {
	h := &cgroup.Hierarchy{}
	unproven := evict.RunningContainer{ID: "c1", Name: "c", Unproven: "its cgroup contains another container"}
	t.Run("runtime", func(t *testing.T) {
		var reports progressLog
		runtime := &fakeRuntime{}
		k := NewKiller(h, "/proc", runtime, reports.record)
		k.Evict(t.Context(), hardJob(unproven))
		k.Wait()
		if want := []string{"container c1 0s", "sandbox s"}; !slices.Equal(runtime.calls, want) {
			t.Errorf("runtime was asked %q; want %q", runtime.calls, want)
		}
		if last := reports.last(); last.Stage != Finished || last.Err != nil {
			t.Errorf("last report = %+v; want it finished", last)
		}
	})
	t.Run("no runtime", func(t *testing.T) {
		var reports progressLog
		k := NewKiller(h, "/proc", nil, reports.record)
		k.Evict(t.Context(), hardJob(unproven))
		k.Wait()
		if last := reports.last(); last.Stage != Refused || last.Err == nil {
			t.Errorf("last report = %+v; want it refused", last)
		}
	})
}

// evictd does not stop a kubelet's sandbox.
func TestKubeletSandboxNotStopped(t *testing.T) {
	runtime := &fakeRuntime{}
	k := NewKiller(&cgroup.Hierarchy{}, "/proc", runtime, func(Progress) {})
	job := hardJob(evict.RunningContainer{ID: "c1", Name: "c"})
	job.Owned = false
	k.Evict(t.Context(), job)
	k.Wait()
	if want := []string{"container c1 0s"}; !slices.Equal(runtime.calls, want) {
		t.Errorf("runtime was asked %q; want %q", runtime.calls, want)
	}
}

func TestEscalateSoftEviction(t *testing.T) {
	p := newTestCgroup(t)
	p.run("trap '' TERM; sleep 1000 & while :; do wait; done")
	var reports progressLog
	runtime := &fakeRuntime{hang: true}
	k := NewKiller(p.hierarchy, "/proc", runtime, reports.record)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	job := hardJob(p.container("c1"))
	job.Order.Hard, job.Order.Grace = false, 30*time.Second
	k.Evict(ctx, job)
	p.waitFor("the runtime is asked", func() bool {
		runtime.mu.Lock()
		defer runtime.mu.Unlock()
		return slices.Contains(runtime.calls, "container c1 30s")
	})
	if len(p.pids()) == 0 {
		t.Fatal("the soft eviction killed the pod before its grace period ended")
	}
	job.Order.Hard = true
	k.Escalate(ctx, job)
	p.waitFor("the pod is gone although the runtime hangs", func() bool { return slices.Contains(reports.stages(), LastGone) })
	if pids := p.pids(); len(pids) > 0 {
		t.Errorf("processes left in the cgroup: %v", pids)
	}
	cancel()
	k.Wait()
	if got := reports.stages(); !slices.Contains(got, Escalated) {
		t.Errorf("stages = %v; want the end of the grace period among them", got)
	}
}

// A pod that came back is asked to stop again. Only the newer request reports an end, and
// a kill cancels it.
func TestSoftEvictionAgain(t *testing.T) {
	var reports progressLog
	runtime := &fakeRuntime{hang: true}
	k := NewKiller(&cgroup.Hierarchy{}, "/proc", runtime, reports.record)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	job := hardJob(evict.RunningContainer{ID: "c1", Unproven: "for the test"})
	job.Order.Hard, job.Order.Grace = false, 30*time.Second
	k.Evict(ctx, job)
	k.Evict(ctx, job)
	k.mu.Lock()
	newer := k.soft[job.Order.UID]
	k.mu.Unlock()
	time.Sleep(50 * time.Millisecond) // for the first request to be cancelled
	k.mu.Lock()
	still := k.soft[job.Order.UID]
	k.mu.Unlock()
	if newer == nil || still != newer {
		t.Errorf("request = %p after the first was cancelled; want the second, %p", still, newer)
	}
	if got := reports.stages(); slices.Contains(got, Finished) || slices.Contains(got, Refused) {
		t.Errorf("stages = %v; want no end", got)
	}
	cancel()
	k.Wait()
}

// A pod whose stop the runtime refused can still be killed.
func TestEscalateAfterRefusedStop(t *testing.T) {
	p := newTestCgroup(t)
	p.run("sleep 1000 & wait")
	var reports progressLog
	k := NewKiller(p.hierarchy, "/proc", &fakeRuntime{err: errors.New("no")}, reports.record)
	job := hardJob(p.container("c1"))
	job.Order.Hard = false
	k.Evict(t.Context(), job)
	k.Wait()
	if last := reports.last(); last.Stage != Refused {
		t.Fatalf("last report = %+v; want it refused", last)
	}
	job.Order.Hard = true
	k.Escalate(t.Context(), job)
	k.Wait()
	if pids := p.pids(); len(pids) > 0 {
		t.Errorf("processes left in the cgroup: %v", pids)
	}
}

// drain signals a pid again after a while, because it may have been reused.
func TestDrainSignalsReusedPIDs(t *testing.T) {
	p := newTestCgroup(t)
	p.run("sleep 1000 & wait")
	p.waitFor("two processes run", func() bool { return len(p.pids()) == 2 })
	v, err := open(p.hierarchy, p.container("c1"), &evict.Guard{})
	if err != nil {
		t.Fatal(err)
	}
	defer v.close()
	for _, pid := range p.pids() {
		v.signalled[pid] = true // as if earlier processes had these pids
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := v.drain(ctx, "/proc", func() {}); err != nil {
		t.Errorf("drain() = %v; want the cgroup empty", err)
	}
}

func TestSoftEvictionRefused(t *testing.T) {
	var reports progressLog
	k := NewKiller(&cgroup.Hierarchy{}, "/proc", &fakeRuntime{err: errors.New("no")}, reports.record)
	job := hardJob(evict.RunningContainer{ID: "c1", Name: "c"})
	job.Order.Hard = false
	k.Evict(t.Context(), job)
	k.Wait()
	if last := reports.last(); last.Stage != Refused || last.Err == nil {
		t.Errorf("last report = %+v; want it refused", last)
	}
}

func TestDryRunKillsNothing(t *testing.T) {
	p := newTestCgroup(t)
	p.run("sleep 1000 & wait")
	p.waitFor("two processes run", func() bool { return len(p.pids()) == 2 })
	before := p.pids()
	var reports progressLog
	d := NewDryRun(p.hierarchy, "/proc", reports.record)
	d.Evict(t.Context(), hardJob(p.container("c1")))
	d.Escalate(t.Context(), hardJob(p.container("c1")))
	if last := reports.last(); last.Stage != Finished || last.Processes != 2 || last.Err != nil {
		t.Errorf("report = %+v; want two processes counted", last)
	}
	if after := p.pids(); !slices.Equal(before, after) {
		t.Errorf("processes went from %v to %v", before, after)
	}
}
