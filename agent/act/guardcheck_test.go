package act

import (
	"errors"
	"os/exec"
	"slices"
	"syscall"
	"testing"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/kernel/process"
)

// containerOf returns the container with its init process.
func (p *testCgroup) containerOf(id string, pid int) evict.RunningContainer {
	p.t.Helper()
	c := p.container(id)
	c.InitPID, c.InitStart = pid, startOf(p.t, pid)
	return c
}

func startOf(t testing.TB, pid int) uint64 {
	t.Helper()
	stat, err := process.ReadStat("/proc", pid)
	if err != nil {
		t.Fatal(err)
	}
	return stat.StartTime
}

// startSleep starts a process outside of the container.
func startSleep(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	return cmd
}

// killPaths are the ways to kill a container: by a prepared handle, and without.
var killPaths = map[string]func(p *testCgroup, k *Killer, job Job){
	"fast kill": func(p *testCgroup, k *Killer, job Job) {
		handle, err := Prepare(p.hierarchy, "/proc", job)
		if err != nil {
			p.t.Fatal(err)
		}
		k.Follow(p.t.Context(), job, handle, NewFastKiller(startReaper(p.t)).Kill(handle, job.Guard))
	},
	"kill": func(p *testCgroup, k *Killer, job Job) { k.Evict(p.t.Context(), job) },
}

// A guarded process that was moved into a container's cgroup does not make it immune: all
// other processes are killed.
func TestKillProtectsMovedProcess(t *testing.T) {
	for kind, kill := range killPaths {
		t.Run(kind, func(t *testing.T) {
			p := newTestCgroup(t)
			cmd := p.run("for i in 1 2 3 4 5 6 7 8; do sleep 1000 & done; wait")
			p.waitFor("all run", func() bool { return len(p.pids()) == 9 })
			moved := startSleep(t)
			enter(t, p.dirs[0], moved.Process.Pid)
			pid := moved.Process.Pid
			job := hardJob(p.containerOf("c1", cmd.Process.Pid))
			job.Guard = &evict.Guard{
				Protected: map[int]string{pid: "kubelet /usr/bin/kubelet", 1: "pid 1"}, Inits: map[int]string{cmd.Process.Pid: "c1"},
				StartTimes: map[int]uint64{pid: startOf(t, pid)},
			}
			var reports progressLog
			runtime := &fakeRuntime{}
			k := NewKiller(p.hierarchy, "/proc", runtime, reports.record)
			kill(p, k, job)
			k.Wait()
			if got := p.pids(); !slices.Equal(got, []int{pid}) {
				t.Fatalf("processes left in the cgroup: %v; want only the guarded one, %d", got, pid)
			}
			if err := moved.Process.Signal(syscall.Signal(0)); err != nil {
				t.Errorf("the guarded process: %v; want it alive", err)
			}
			last := reports.last()
			var guarded *GuardedError
			if last.Stage != Finished || last.Processes != 9 || !errors.As(last.Err, &guarded) || guarded.PID != pid {
				t.Errorf("last report = %+v; want nine processes, and an error with the guarded one", last)
			}
			if got := reports.stages(); !slices.Contains(got, LastGone) {
				t.Errorf("stages = %v; want LastGone among them", got)
			}
			cmd.Wait()
		})
	}
}

// A cgroup that is not the container's alone is refused.
func TestKillRefusesForeignCgroup(t *testing.T) {
	for name, change := range map[string]func(g *evict.Guard, c *evict.RunningContainer, init, moved int){
		"init process unknown":              func(_ *evict.Guard, c *evict.RunningContainer, _, _ int) { c.InitPID, c.InitStart = 0, 0 },
		"init process's pid reused":         func(_ *evict.Guard, c *evict.RunningContainer, _, _ int) { c.InitStart++ },
		"init process of another container": func(g *evict.Guard, _ *evict.RunningContainer, _, moved int) { g.Inits[moved] = "c2" },
		"init process guarded":              func(g *evict.Guard, _ *evict.RunningContainer, init, _ int) { g.Protected[init] = "evictd" },
	} {
		for kind, kill := range killPaths {
			t.Run(name+" "+kind, func(t *testing.T) {
				p := newTestCgroup(t)
				cmd := p.run("sleep 1000 & wait")
				p.waitFor("both run", func() bool { return len(p.pids()) == 2 })
				moved := startSleep(t)
				enter(t, p.dirs[0], moved.Process.Pid)
				job := hardJob(p.containerOf("c1", cmd.Process.Pid))
				job.Guard = &evict.Guard{Protected: map[int]string{moved.Process.Pid: "a shim"}, Inits: map[int]string{cmd.Process.Pid: "c1"}}
				change(job.Guard, &job.Containers[0], cmd.Process.Pid, moved.Process.Pid)
				var reports progressLog
				k := NewKiller(p.hierarchy, "/proc", &fakeRuntime{}, reports.record)
				kill(p, k, job)
				k.Wait()
				var wrong *WrongVictimError
				if last := reports.last(); last.Stage != Refused || !errors.As(last.Err, &wrong) || !wrong.Essential {
					t.Errorf("last report = %+v; want it refused", last)
				}
				if got := len(p.pids()); got != 3 {
					t.Errorf("%d processes are left; want all three", got)
				}
			})
		}
	}
}

// The pid of a guarded process that was reused does not guard the new process.
func TestKillIgnoresReusedGuardPID(t *testing.T) {
	for kind, kill := range killPaths {
		t.Run(kind, func(t *testing.T) {
			p := newTestCgroup(t)
			cmd := p.run("exec sleep 1000")
			pid := cmd.Process.Pid
			job := hardJob(p.container("c1"))
			job.Guard = &evict.Guard{Protected: map[int]string{pid: "a shim"}, StartTimes: map[int]uint64{pid: startOf(t, pid) - 1}}
			var reports progressLog
			k := NewKiller(p.hierarchy, "/proc", &fakeRuntime{}, reports.record)
			kill(p, k, job)
			k.Wait()
			if got := p.pids(); len(got) != 0 {
				t.Fatalf("processes left in the cgroup: %v (%v); want none", got, reports.last().Err)
			}
			cmd.Wait()
		})
	}
}
