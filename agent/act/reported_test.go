package act

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/kerneltest"
)

// The pod is fenced and killed, with what else runs in its cgroup, and the runtime is not asked.
func TestKillReported(t *testing.T) {
	eachReportedKill(t, func(t *testing.T, p *kubeletPod, k *Killer, f *fencer, reports *progressLog, kill func()) {
		p.start("new", "sleep 1000 & wait")
		p.start("created", "exec sleep 1000")
		created := p.in("created")[0]
		p.job.Guard.Inits[created], p.job.OtherContainers = "c3", []string{"c3"}
		kill()
		k.Wait()
		for _, name := range []string{"c1", "c2", "new", "created"} {
			if pids := p.in(name); len(pids) > 0 {
				t.Errorf("processes left in %s: %v", name, pids)
			}
		}
		if pids := p.in("sandbox"); len(pids) != 1 {
			t.Errorf("processes of the sandbox: %v; want it alive", pids)
		}
		reports.wantGone(t)
		for _, r := range reports.reports {
			if !r.Reported || r.KubeletStops {
				t.Errorf("report = %+v; want it of a Reported job that was killed", r)
			}
		}
		if len(f.jobs) != 1 || f.jobs[0].Order.UID != p.uid || len(f.jobs[0].Containers) != 2 {
			t.Errorf("fenced: %+v; want the job once", f.jobs)
		}
	})
}

// A process that joins the pod's cgroup after the kill is killed too, as one that runc has
// made before the fence: shortly after the kill, and at the end of a fence that takes long.
func TestKillReportedLate(t *testing.T) {
	for name, delay := range map[string]time.Duration{"soon": 30 * time.Millisecond, "late": 700 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			p, f, reports := newKubeletPod(t), &fencer{}, &progressLog{}
			k := p.killer(reports, f)
			p.make(p.pod + "/new")
			k.Evict(t.Context(), p.job)
			time.Sleep(delay)
			p.run("new", "exec sleep 1000")
			k.Wait()
			if pids := p.in("new"); len(pids) > 0 {
				t.Errorf("processes left: %v", pids)
			}
			reports.wantGone(t)
		})
	}
}

// The end is reported when the fence is set, however early the processes are gone, unless
// setting it hangs.
func TestKillReportedWaitsForFence(t *testing.T) {
	p, f, reports := newKubeletPod(t), &fencer{block: make(chan struct{})}, &progressLog{}
	k := p.killer(reports, f)
	k.Evict(t.Context(), p.job)
	p.waitFor("the containers are empty", func() bool { return len(p.in("c1"))+len(p.in("c2")) == 0 })
	time.Sleep(100 * time.Millisecond)
	if slices.Contains(reports.stages(), LastGone) {
		t.Error("the end was reported before the fence was set")
	}
	p.waitFor("the end is reported", func() bool { return slices.Contains(reports.stages(), Finished) })
	if last := reports.last(); !slices.Contains(reports.stages(), LastGone) || last.Err == nil || !strings.Contains(last.Err.Error(), "fence") {
		t.Errorf("stages = %v, last %+v; want the end, and an error about the fence", reports.stages(), last)
	}
	close(f.block)
	k.Wait()
}

// A fence that fails is reported, and the pod is killed all the same.
func TestKillReportedWithoutFence(t *testing.T) {
	no := errors.New("no fence")
	for name, f := range map[string]Fencer{"fails": &fencer{err: no}, "none": nil} {
		p, reports := newKubeletPod(t), &progressLog{}
		k := p.killer(reports, f)
		k.Evict(t.Context(), p.job)
		k.Wait()
		if got := reports.stages(); !slices.Equal(got, []Stage{Signalled, FirstGone, LastGone, Finished}) || errors.Is(reports.last().Err, no) != (f != nil) {
			t.Errorf("%s: stages = %v, error %v; want all four, and the error of the fence", name, got, reports.last().Err)
		}
	}
}

// What is not proven to be a new container of the pod is left alone.
func TestKillReportedSpares(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(p *kubeletPod, pid int)
		want   string // in the error; "" for none
		runs   bool   // a container of the pod may be left
	}{
		"essential process":         {func(p *kubeletPod, pid int) { p.job.Guard.Protected[pid] = "a shim" }, "a shim", false},
		"container of another pod":  {func(p *kubeletPod, pid int) { p.job.Guard.Inits[pid] = "c9" }, "container c9", true},
		"sandbox not known":         {func(p *kubeletPod, pid int) { p.job.SandboxPID, p.job.SandboxStart = 0, 0 }, "sandbox's process", true},
		"pid of the sandbox reused": {func(p *kubeletPod, pid int) { p.job.SandboxStart-- }, "sandbox's process", true},
		"sandbox elsewhere": {func(p *kubeletPod, pid int) {
			p.job.SandboxPID, p.job.SandboxStart = os.Getpid(), startOf(p.t, os.Getpid())
		}, "sandbox's process", true},
		"no cgroup of its own": {func(p *kubeletPod, pid int) { p.job.Order.UID = "other" }, "", false},
		"no cgroup of its own, a container created": {func(p *kubeletPod, pid int) {
			p.job.Order.UID, p.job.OtherContainers = "other", []string{"c3"}
		}, "not named as the kubelet names", true},
	} {
		t.Run(name, func(t *testing.T) {
			p, f, reports := newKubeletPod(t), &fencer{}, &progressLog{}
			cmd := p.start("new", "sleep 1000 & wait")
			p.waitFor("both run", func() bool { return len(p.in("new")) == 2 })
			tc.change(p, cmd.Process.Pid)
			k := p.killer(reports, f)
			k.Evict(t.Context(), p.job)
			k.Wait()
			if n := len(p.in("new")); n != 2 {
				t.Errorf("%d processes in the other cgroup are left; want both", n)
			}
			if len(p.in("sandbox")) != 1 || len(p.in("c1"))+len(p.in("c2")) > 0 {
				t.Error("the sandbox was killed, or a container was not")
			}
			last := reports.last()
			if last.Stage != Finished || (last.Err == nil) != (tc.want == "") || last.Err != nil && !strings.Contains(last.Err.Error(), tc.want) {
				t.Errorf("last report = %+v; want it finished, with an error about %q", last, tc.want)
			}
			if ended := slices.Contains(reports.stages(), LastGone); ended == tc.runs {
				t.Errorf("the end was reported: %t; want %t", ended, !tc.runs)
			}
		})
	}
}

// If the sandbox ends between two reads, its process is not taken for one of a container. If a
// process is left after it, the end of the pod is not known.
func TestSandboxExitsWhileRead(t *testing.T) {
	for name, left := range map[string]bool{"nothing left": false, "a process left": true} {
		p := newKubeletPod(t)
		p.job.SandboxStart-- // the process in the sandbox's cgroup is not the one that has exited
		at := p.killer(&progressLog{}, nil).podCgroup(&p.job)
		if !at.runsUnlisted() || at.failed {
			t.Errorf("%s: first read failed: %t, error %v; want another one", name, at.failed, at.readErr)
		}
		if !left {
			p.killIn("sandbox")
		}
		if at.runsUnlisted() || at.failed != left {
			t.Errorf("%s: second read failed: %t, error %v; want %t", name, at.failed, at.readErr, left)
		}
	}
}

// A pod whose containers have ended by themselves is neither fenced nor reported.
func TestKillReportedEnded(t *testing.T) {
	eachReportedKill(t, func(t *testing.T, p *kubeletPod, k *Killer, f *fencer, reports *progressLog, kill func()) {
		p.killIn("c1")
		p.killIn("c2")
		kill()
		k.Wait()
		if got := reports.stages(); !slices.Equal(got, []Stage{Refused}) || !errors.Is(reports.last().Err, ErrEnded) || f.calls() > 0 {
			t.Errorf("stages = %v, error %v, %d fences; want it refused, because it had ended", got, reports.last().Err, f.calls())
		}
	})
}

// If the kubelet has started another container by then, that is killed, and the pod fenced.
func TestKillReportedStartedAgain(t *testing.T) {
	eachReportedKill(t, func(t *testing.T, p *kubeletPod, k *Killer, f *fencer, reports *progressLog, kill func()) {
		p.killIn("c1")
		p.killIn("c2")
		p.start("again", "exec sleep 1000")
		kill()
		k.Wait()
		if n := len(p.in("again")); n > 0 || f.calls() != 1 {
			t.Errorf("%d processes left, %d fences; want none and one", n, f.calls())
		}
		reports.wantGone(t)
	})
}

// A pod of which the runtime lists no container is left alone.
func TestKillReportedNoContainer(t *testing.T) {
	p, f, reports := newKubeletPod(t), &fencer{}, &progressLog{}
	k := p.killer(reports, f)
	p.job.Containers = nil
	k.Evict(t.Context(), p.job)
	k.Wait()
	if got := reports.stages(); !slices.Equal(got, []Stage{Refused}) || reports.last().Err == nil || f.calls() > 0 || len(p.in("c1")) != 2 {
		t.Errorf("stages = %v, error %v, %d fences; want it refused", got, reports.last().Err, f.calls())
	}
}

// The monitor of another container is recognized by its child, not by its name.
func TestKillReportedSparesMonitor(t *testing.T) {
	p, reports := newKubeletPod(t), &progressLog{}
	p.make(p.pod + "/new")
	enter := ""
	for _, root := range p.roots() {
		enter += fmt.Sprintf("echo $$ > %s/cgroup.procs; ", root+p.pod+"/new")
	}
	p.start("monitor", fmt.Sprintf("sh -c '%s exec sleep 1000' & wait", enter))
	p.waitFor("the child runs", func() bool { return len(p.in("new")) == 1 && len(p.in("monitor")) == 1 })
	k := p.killer(reports, &fencer{})
	k.Evict(t.Context(), p.job)
	p.waitFor("the child is killed", func() bool { return len(p.in("new")) == 0 })
	if pids := p.in("sandbox"); len(pids) != 1 {
		t.Errorf("processes of the sandbox: %v", pids)
	}
	k.Wait()
	wrong := (*WrongVictimError)(nil)
	if err := reports.last().Err; !errors.As(err, &wrong) || !strings.HasSuffix(wrong.Cgroup, "/monitor") {
		t.Errorf("error = %v; want one about the monitor", err)
	}
}

// A container monitor in the pod's cgroup that the guard has is no container, also if the pod's
// sandbox has no process, as with CRI-O. Any other process may be a container's or the sandbox's.
func TestKillReportedListedMonitor(t *testing.T) {
	for name, tc := range map[string]struct {
		change  func(p *kubeletPod, pid int)
		sandbox bool // is there
		runs    bool // a container of the pod may be left
	}{
		"no sandbox":                {},
		"sandbox":                   {sandbox: true},
		"another process beside it": {change: func(p *kubeletPod, _ int) { p.run("monitor", "exec sleep 1000") }, runs: true},
		"pid reused":                {change: func(p *kubeletPod, pid int) { p.job.Guard.StartTimes[pid]-- }, runs: true},
		"start time not known":      {change: func(p *kubeletPod, pid int) { delete(p.job.Guard.StartTimes, pid) }, runs: true},
		"first process of another container": {change: func(p *kubeletPod, pid int) {
			delete(p.job.Guard.Protected, pid)
			p.job.Guard.Inits[pid] = "c9"
		}, runs: true},
	} {
		t.Run(name, func(t *testing.T) {
			p, f, reports := newKubeletPod(t), &fencer{}, &progressLog{}
			if !tc.sandbox {
				p.killIn("sandbox")
				p.job.SandboxPID, p.job.SandboxStart = 0, 0
			}
			monitor := p.startMonitor()
			if tc.change != nil {
				tc.change(p, monitor)
			}
			k := p.killer(reports, f)
			k.Evict(t.Context(), p.job)
			k.Wait()
			if !slices.Contains(p.in("monitor"), monitor) {
				t.Error("the monitor was killed")
			}
			if !tc.runs {
				reports.wantGone(t)
			} else if err := reports.last().Err; slices.Contains(reports.stages(), LastGone) || err == nil || !strings.Contains(err.Error(), "sandbox's process") {
				t.Errorf("stages = %v, error %v; want no end, and an error about the sandbox", reports.stages(), err)
			}
		})
	}
}

// The pod's cgroup is read again if a monitor has exited before its start time could be read:
// another process may have its pid.
func TestMonitorExitsWhileRead(t *testing.T) {
	for name, left := range map[string]bool{"nothing left": false, "a process left": true} {
		p := newKubeletPod(t)
		p.killIn("sandbox")
		p.job.SandboxPID, p.job.SandboxStart = 0, 0
		monitor, k := p.startMonitor(), p.killer(&progressLog{}, nil)
		at := k.podCgroup(&p.job)
		k.proc = kernel.FS(t.TempDir()) // has no process
		if !at.runsUnlisted() || at.failed {
			t.Errorf("%s: first read failed: %t, error %v; want another one", name, at.failed, at.readErr)
		}
		k.proc = "/proc"
		if left {
			p.job.Guard.StartTimes[monitor]--
		}
		if at.runsUnlisted() || at.failed != left {
			t.Errorf("%s: second read failed: %t, error %v; want %t", name, at.failed, at.readErr, left)
		}
	}
}

// A pod of which every container has an essential process is neither killed nor fenced.
func TestKillReportedRefused(t *testing.T) {
	eachReportedKill(t, func(t *testing.T, p *kubeletPod, k *Killer, f *fencer, reports *progressLog, kill func()) {
		for _, c := range p.job.Containers {
			p.job.Guard.Protected[c.InitPID] = "evictd"
		}
		began := time.Now()
		kill()
		k.Wait()
		if n := len(p.in("c1")) + len(p.in("c2")); n != 4 || f.calls() > 0 {
			t.Errorf("%d processes left, %d fences; want 4 and none", n, f.calls())
		}
		if got := reports.stages(); !slices.Equal(got, []Stage{Refused}) {
			t.Errorf("stages = %v; want it refused", got)
		}
		if took := time.Since(began); took >= recheckAfter[len(recheckAfter)-1] {
			t.Errorf("it was refused after %v; want it refused at once, so that another pod is chosen", took)
		}
	})
}

// A container whose cgroup is not proven is left to the kubelet. Its end is reported when it
// is known.
func TestKillReportedUnproven(t *testing.T) {
	self := os.Getpid()
	for _, tt := range []struct {
		name                string
		init, sandbox       int
		initStart, sbxStart uint64
		gone                bool
	}{
		{"runs", self, self, startOf(t, self), startOf(t, self), false},
		{"nothing known", 0, 0, 0, 0, false},
		{"sandbox runs", self, self, 1, startOf(t, self), false},
		{"ended", self, self, 1, 1, true},
		{"no such process", 1 << 22, 1 << 22, 1, 1, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				reports, f, runtime := &progressLog{}, &fencer{}, &fakeRuntime{}
				k := NewKiller(&cgroup.Hierarchy{}, "/proc", runtime, reports.record)
				k.Fencer = f
				began := time.Now()
				k.Evict(t.Context(), Job{
					Order: evict.Order{UID: "u", Hard: true}, Reported: true, SandboxPID: tt.sandbox, SandboxStart: tt.sbxStart,
					Containers: []evict.RunningContainer{{ID: "c", Name: "c", Unproven: "for the test", InitPID: tt.init, InitStart: tt.initStart}},
				})
				k.Wait()
				want := []Stage{Signalled, Finished}
				if tt.gone {
					want = []Stage{Signalled, FirstGone, LastGone, Finished}
				}
				if got := reports.stages(); !slices.Equal(got, want) || (reports.last().Err != nil) == tt.gone || !reports.reports[0].KubeletStops {
					t.Errorf("stages = %v, error %v, first %+v; want %v, the kubelet stops it", got, reports.last().Err, reports.reports[0], want)
				}
				if took := time.Since(began); tt.gone != (took < drainTimeout) || took > drainTimeout {
					t.Errorf("it took %v; want %v unless it is known to be gone", took, drainTimeout)
				}
				if len(runtime.calls) > 0 || f.calls() > 0 {
					t.Errorf("runtime was asked %q, %d fences; want none", runtime.calls, f.calls())
				}
			})
		})
	}
}

// A dry run does not fence: it has no Fencer. It counts the processes of a Reported job.
func TestDryRunReported(t *testing.T) {
	p, reports := newKubeletPod(t), &progressLog{}
	NewDryRun(p.hierarchy, "/proc", reports.record).Evict(t.Context(), p.job)
	if last := reports.last(); last.Stage != Finished || last.Processes != 4 {
		t.Errorf("last report = %+v; want four processes", last)
	}
}

// Any other job is not fenced, and the runtime is asked to stop its pod.
func TestFenceOnlyReported(t *testing.T) {
	p := newTestCgroup(t)
	p.run("exec sleep 1000")
	f, reports, runtime := &fencer{}, &progressLog{}, &fakeRuntime{}
	k := NewKiller(p.hierarchy, "/proc", runtime, reports.record)
	k.Fencer = f
	k.Evict(t.Context(), hardJob(p.container("c1")))
	k.Wait()
	if f.calls() > 0 || len(runtime.calls) != 2 {
		t.Errorf("%d fences, runtime asked %q; want none, and the container and the sandbox", f.calls(), runtime.calls)
	}
}

// A container that has started between the list that the handle was opened for and the kill
// is one of the pod.
func TestFollowReportedNewContainer(t *testing.T) {
	p, f, reports := newKubeletPod(t), &fencer{}, &progressLog{}
	k := p.killer(reports, f)
	handle, err := Prepare(p.hierarchy, "/proc", p.job)
	if err != nil {
		t.Fatal(err)
	}
	cmd := p.start("c3", "exec sleep 1000")
	g, err := p.hierarchy.Open(p.pod + "/c3")
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	job := p.job
	job.Guard.Inits[cmd.Process.Pid] = "c3"
	job.Containers = append(slices.Clip(job.Containers), evict.RunningContainer{ID: "c3", Name: "c3", Cgroup: p.pod + "/c3", CgroupID: g.ID()})
	k.Follow(t.Context(), job, handle, NewFastKiller(nil).Kill(handle, job.Guard))
	k.Wait()
	if pids := p.in("c3"); len(pids) > 0 {
		t.Errorf("processes left in the new container: %v", pids)
	}
	reports.wantGone(t)
}

// When evictd ends, an eviction whose end it does not know stays pending.
func TestKillReportedAtEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reports := &progressLog{}
		k := NewKiller(&cgroup.Hierarchy{}, "/proc", nil, reports.record)
		ctx, cancel := context.WithCancel(t.Context())
		k.Evict(ctx, Job{Order: evict.Order{UID: "u", Hard: true}, Reported: true, Containers: []evict.RunningContainer{{ID: "c", Unproven: "for the test"}}})
		time.Sleep(10 * time.Second)
		cancel()
		k.Wait()
		if got := reports.stages(); !slices.Equal(got, []Stage{Signalled}) {
			t.Errorf("stages = %v; want Signalled alone", got)
		}
	})
}

// While the pod's cgroup can't be read, a container may run in it, so the end of the pod is
// not reported.
func TestKillReportedUnreadable(t *testing.T) {
	for name, readable := range map[string]bool{"again later": true, "never": false} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			pod := filepath.Join(root, "kubepods", "podu")
			files := map[string]string{"cgroup.procs": "", "cgroup.controllers": "memory\n", "memory.stat": "", "memory.current": "0\n", "memory.max": "max\n"}
			kerneltest.Write(t, root, files)
			kerneltest.Write(t, pod, files)
			kerneltest.Write(t, filepath.Join(pod, "new"), map[string]string{"cgroup.procs": ""})
			synctest.Test(t, func(t *testing.T) {
				reports := &progressLog{}
				k := NewKiller(&cgroup.Hierarchy{Version: cgroup.V2, Memory: kernel.FS(root)}, "/proc", nil, reports.record)
				began := time.Now()
				k.Evict(t.Context(), Job{
					Order: evict.Order{UID: "u", Hard: true}, Reported: true, Guard: &evict.Guard{},
					Containers: []evict.RunningContainer{{ID: "c", Cgroup: "/kubepods/podu/gone", CgroupID: 1}},
				})
				time.Sleep(10 * time.Second)
				if got := reports.stages(); !slices.Equal(got, []Stage{Signalled}) {
					t.Errorf("stages while it can't be read = %v; want Signalled alone", got)
				}
				want := []Stage{Signalled, Finished}
				if readable {
					kerneltest.Write(t, filepath.Join(pod, "new"), files)
					want = []Stage{Signalled, FirstGone, LastGone, Finished}
				}
				k.Wait()
				if got := reports.stages(); !slices.Equal(got, want) || errors.Is(reports.last().Err, kernel.ErrUnavailable) == readable {
					t.Errorf("after %v: stages = %v, error %v; want %v", time.Since(began), got, reports.last().Err, want)
				}
			})
		})
	}
}
