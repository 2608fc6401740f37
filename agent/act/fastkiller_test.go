package act

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/kerneltest"
)

func TestFastKill(t *testing.T) {
	for _, tc := range []struct {
		name, script string
		before       int // number of processes to wait for
		later        string
	}{
		{"one process", "exec sleep 1000", 1, ""},
		{"a tree", "sleep 1000 & sleep 1000 & (sleep 1000 & wait) & wait", 5, ""},
		{"ignores signals", "trap '' TERM INT HUP; sleep 1000 & while :; do wait; done", 2, ""},
		{"more than preopened", twelveSleeps, 13, ""},
		{"forks while it is killed", "while :; do sleep 1000 & sleep 0.001; done", 3, ""},
		{"none preopened", "exec sleep 1000", 1, "exec sleep 1000"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newTestCgroup(t)
			cmd := p.run("ulimit -t 20; " + tc.script)
			p.waitFor("all run", func() bool { return len(p.pids()) >= tc.before })
			handle := p.prepare(p.container("c1"))
			if tc.later != "" {
				other := p.run(tc.later)
				cmd.Process.Kill()
				cmd.Wait()
				cmd = other
			}
			var reports progressLog
			runtime := &fakeRuntime{}
			k := NewKiller(p.hierarchy, "/proc", runtime, reports.record)
			before := time.Now()
			result := NewFastKiller(startReaper(t)).Kill(handle, &evict.Guard{})
			if result.Err != nil || result.Processes < 1 || result.FirstSignal.Before(before) {
				t.Errorf("fast kill = %+v; want processes signalled", result)
			}
			k.Follow(t.Context(), hardJob(), handle, result)
			k.Wait()
			p.wantKilled(cmd, &reports, runtime)
			if last := reports.last(); last.Processes != result.Processes {
				t.Errorf("last report = %+v; want %d processes", last, result.Processes)
			}
			if handle.Ref() {
				t.Error("the handle is open after Follow; want it closed")
			}
		})
	}
}

// A cgroup with a guarded process and no live init process is not killed, also if the
// process was moved there after Prepare.
func TestFastKillRefused(t *testing.T) {
	p := newTestCgroup(t)
	cmd := p.run("sleep 1000 & wait")
	first := cmd.Process.Pid
	p.waitFor("two processes run", func() bool { return len(p.pids()) == 2 })
	for name, tc := range map[string]struct {
		guard evict.Guard
		asked []string // of the runtime
	}{
		"contains evictd":             {evict.Guard{Protected: map[int]string{first: "evictd"}}, nil},
		"contains a second container": {evict.Guard{Inits: map[int]string{first: "c2"}}, []string{"container c1 0s", "sandbox s"}},
	} {
		t.Run(name, func(t *testing.T) {
			for kind, killer := range map[string]*FastKiller{"killer": NewFastKiller(nil), "dry run": NewNoopKiller()} {
				handle := p.prepare(p.container("c1"))
				result := killer.Kill(handle, &tc.guard)
				var refusal *WrongVictimError
				if result.Processes != 0 || !errors.As(result.Err, &refusal) || refusal.PID != first {
					t.Fatalf("%s: fast kill = %+v; want it refused because of process %d", kind, result, first)
				}
				var reports progressLog
				runtime := &fakeRuntime{}
				k := NewKiller(p.hierarchy, "/proc", runtime, reports.record)
				var actuator Actuator = k
				if kind == "dry run" {
					actuator = NewDryRun(p.hierarchy, "/proc", reports.record)
				} else {
					defer func() {
						if !slices.Equal(runtime.calls, tc.asked) {
							t.Errorf("runtime was asked %q; want %q", runtime.calls, tc.asked)
						}
					}()
				}
				actuator.Follow(t.Context(), hardJob(), handle, result)
				k.Wait()
				if last := reports.last(); last.Stage != Refused || !errors.As(last.Err, &refusal) {
					t.Errorf("%s: last report = %+v; want it refused", kind, last)
				}
				if got, want := slices.Contains(reports.stages(), Signalled), kind == "killer" && len(tc.asked) > 0; got != want {
					t.Errorf("%s: reported as signalled: %t; want %t", kind, got, want)
				}
			}
			if got := len(p.pids()); got != 2 {
				t.Errorf("%d processes are left; want both", got)
			}
		})
	}
}

func TestFastKillTwice(t *testing.T) {
	p := newTestCgroup(t)
	p.run("exec sleep 1000")
	handle := p.prepare(p.container("c1"))
	noop := NewNoopKiller()
	if result := noop.Kill(handle, &evict.Guard{}); result.Err != nil || result.Processes != 1 {
		t.Fatalf("kill in dry run = %+v; want one process, still alive", result)
	}
	if result := noop.Kill(handle, &evict.Guard{}); !errors.Is(result.Err, errAlreadyKilled) {
		t.Errorf("second kill = %+v; want it refused", result)
	}
	handle = p.prepare(p.container("c1"))
	handle.Close()
	handle.Close()
	if result := NewFastKiller(nil).Kill(handle, &evict.Guard{}); !errors.Is(result.Err, cgroup.ErrGone) {
		t.Errorf("kill with a closed handle = %+v; want ErrGone", result)
	}
	if _, ok := handle.Usage(); ok {
		t.Error("Usage() of a closed handle = ok; want not")
	}
	if got := len(p.pids()); got != 1 {
		t.Errorf("%d processes are left; want the one", got)
	}
}

// A cgroup that is gone is no error, and a new one of the same path is not killed.
func TestFastKillGone(t *testing.T) {
	p := newTestCgroup(t)
	c := p.container("c1")
	handle := p.prepare(c)
	for _, dir := range p.dirs {
		if err := os.Remove(dir); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range p.dirs {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	p.run("exec sleep 1000")
	if result := NewFastKiller(nil).Kill(handle, &evict.Guard{}); result.Err != nil || result.Processes != 0 {
		t.Errorf("fast kill = %+v; want nothing done", result)
	}
	if _, err := Prepare(p.hierarchy, "/proc", hardJob(c)); !errors.Is(err, cgroup.ErrGone) {
		t.Errorf("Prepare() of the old cgroup = %v; want ErrGone", err)
	}
	if got := len(p.pids()); got != 1 {
		t.Errorf("%d processes are left; want the one of the new cgroup", got)
	}
}

// A container that has moved its processes into cgroups below its own is killed as a whole.
func TestFastKillNested(t *testing.T) {
	p := newTestCgroup(t)
	inner := filepath.Join(p.dirs[0], "inner")
	if err := os.Mkdir(inner, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.waitFor("the inner cgroup is removed", func() bool { return os.Remove(inner) == nil }) })
	cmd := p.run("exec sleep 1000")
	if err := os.WriteFile(filepath.Join(inner, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0); err != nil {
		t.Skip("needs processes to be moved: ", err)
	}
	// Without a known init process, the fast kill leaves the container to the Reaper.
	handle := p.prepare(p.container("c1"))
	if result := NewFastKiller(nil).Kill(handle, &evict.Guard{}); result.Err != nil || result.Processes != 0 || !handle.containers[0].partlyChecked {
		t.Errorf("fast kill = %+v; want it left to the Reaper", result)
	}
	handle = p.prepare(p.containerOf("c1", cmd.Process.Pid))
	if result := NewFastKiller(nil).Kill(handle, &evict.Guard{}); result.Err != nil || result.Processes != 1 {
		t.Fatalf("fast kill = %+v; want the process below", result)
	}
	cmd.Wait()
	if status := cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signal() != syscall.SIGKILL {
		t.Errorf("the process below ended with %v; want SIGKILL", status)
	}
}

// In a fork storm v2 lists processes that are being forked or reaped as 0
// (kernel/cgroup/cgroup.c: cgroup_procs_show). The others are signalled.
func TestKillListWithZeros(t *testing.T) {
	for _, kind := range []string{"fast kill", "kill"} {
		t.Run(kind, func(t *testing.T) {
			cmd := exec.Command("sleep", "1000")
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
			h, err := cgroup.Find(kernel.FS(kerneltest.Tree(t, map[string]string{
				"cgroup.controllers": "memory\n",
				"c/cgroup.procs":     fmt.Sprintf("0\n%d\n0\n", cmd.Process.Pid),
				"c/cgroup.events":    "populated 1\nfrozen 0\n",
				"c/cgroup.kill":      "", "c/memory.stat": "", "c/memory.max": "max\n", "c/memory.current": "4096\n",
			})))
			if err != nil {
				t.Fatal(err)
			}
			p := &testCgroup{t: t, hierarchy: h, path: "/c"}
			var signalled int
			if kind == "fast kill" {
				result := NewFastKiller(nil).Kill(p.prepare(p.container("c1")), &evict.Guard{})
				signalled, err = result.Processes, result.Err
			} else {
				v, opened := open(h, p.container("c1"), &evict.Guard{})
				if opened != nil {
					t.Fatal(opened)
				}
				defer v.close()
				err = v.kill("/proc")
				signalled = len(v.signalled)
			}
			if !h.InInitPIDNamespace() { // a 0 can be a process of another pid namespace
				if !errors.Is(err, cgroup.ErrOtherPIDNamespace) || signalled != 0 {
					t.Errorf("%d processes signalled, error %v; want none of a cgroup with a process of another pid namespace", signalled, err)
				}
				return
			}
			if err != nil || signalled != 1 {
				t.Fatalf("%d processes signalled, error %v; want the one with a pid", signalled, err)
			}
			cmd.Wait()
			if status := cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signal() != syscall.SIGKILL {
				t.Errorf("the process ended with %v; want SIGKILL", status)
			}
		})
	}
}

// forbiddenSignaller fails to send a signal, like without CAP_KILL.
type forbiddenSignaller struct{ noopSignaller }

func (forbiddenSignaller) signal(int) error { return unix.EPERM }

// A process that can't be signalled is not counted, unless the kernel kills the cgroup.
func TestFastKillForbidden(t *testing.T) {
	p := newTestCgroup(t)
	p.run("sleep 1000 & wait")
	p.waitFor("both run", func() bool { return len(p.pids()) == 2 })
	handle := p.prepare(p.container("c1"))
	result := newFastKiller(forbiddenSignaller{}).Kill(handle, &evict.Guard{})
	if v2 := handle.containers[0].killFD >= 0; !errors.Is(result.Err, unix.EPERM) != v2 || (result.Processes == 2) != v2 {
		t.Errorf("fast kill = %+v; want EPERM, or both processes killed by cgroup.kill", result)
	}
}

// replaceKillFile replaces the container's cgroup.kill by a pipe.
func (p *testCgroup) replaceKillFile(h *KillHandle) (read int) {
	p.t.Helper()
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { unix.Close(ends[0]) })
	m := h.containers[0]
	if m.killFD >= 0 {
		unix.Close(m.killFD)
	}
	m.killFD = ends[1]
	return ends[0]
}

// The Reaper writes cgroup.kill. If the write hangs, the processes that were listed have
// been signalled, and Follow does not wait for it.
func TestFastKillWritesCgroupKill(t *testing.T) {
	for _, hangs := range []bool{false, true} {
		p := newTestCgroup(t)
		cmd := p.run(twelveSleeps)
		p.waitFor("all run", func() bool { return len(p.pids()) == 13 })
		handle := p.prepare(p.container("c1"))
		asked := p.replaceKillFile(handle)
		r := startReaper(t)
		if hangs {
			fd := handle.containers[0].killFD
			size, err := unix.FcntlInt(uintptr(fd), unix.F_GETPIPE_SZ, 0)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := unix.Write(fd, make([]byte, size)); err != nil {
				t.Fatal(err)
			}
			defer func() { // so that the thread ends
				if _, err := unix.Read(asked, make([]byte, size)); err != nil {
					t.Errorf("empty the pipe: %v", err)
				}
			}()
		}
		var reports progressLog
		k := NewKiller(p.hierarchy, "/proc", &fakeRuntime{}, reports.record)
		result := NewFastKiller(r).Kill(handle, &evict.Guard{})
		if result.Err != nil || result.Processes != 13 {
			t.Errorf("hangs: %t: fast kill = %+v; want 13 processes", hangs, result)
		}
		if !hangs {
			got := make([]byte, 2)
			if n, err := unix.Read(asked, got); err != nil || string(got[:n]) != "1" {
				t.Errorf("cgroup.kill was written %q (%v); want 1", got[:max(0, n)], err)
			}
		}
		k.Follow(t.Context(), hardJob(), handle, result)
		k.Wait()
		if got := len(p.pids()); got > 0 {
			t.Errorf("hangs: %t: %d processes are left; want none", hangs, got)
		}
		cmd.Wait()
	}
}

// Of a container with more processes than a fast kill reads, some are killed if the cgroup
// is certainly the container's. The Reaper and Follow kill the others.
func TestFastKillManyProcesses(t *testing.T) {
	p := newTestCgroup(t)
	cmd := p.run(twelveSleeps)
	p.waitFor("all run", func() bool { return len(p.pids()) == 13 })
	few := func() *FastKiller {
		k := NewFastKiller(startReaper(t))
		k.pids, k.relisted = make([]int, 0, 6), make([]int, 0, 6)
		return k
	}
	last := slices.Max(p.pids())
	var reports progressLog
	k := NewKiller(p.hierarchy, "/proc", &fakeRuntime{}, reports.record)
	guard := &evict.Guard{Protected: map[int]string{last: "evictd"}}
	handle := p.prepare(p.container("c1"))
	result := few().Kill(handle, guard)
	if result.Err != nil || result.Processes != 0 {
		t.Errorf("fast kill without a known init process = %+v; want nothing done", result)
	}
	k.Follow(t.Context(), hardJob(), handle, result)
	k.Wait()
	wrong := (*WrongVictimError)(nil)
	if got := reports.last(); got.Stage != Refused || !errors.As(got.Err, &wrong) || len(p.pids()) != 13 {
		t.Errorf("last report = %+v, %d processes are left; want it refused, and all 13", got, len(p.pids()))
	}
	handle = p.prepare(p.containerOf("c1", cmd.Process.Pid))
	// A v1 list is sorted by pid. If pids have wrapped around, the init process is not among
	// those that are read, and nothing is killed at once.
	listed := p.pids()
	slices.Sort(listed)
	seen := slices.Index(listed, cmd.Process.Pid) < 6
	result = few().Kill(handle, &evict.Guard{})
	if result.Err != nil || seen && result.Processes < 1 {
		t.Errorf("fast kill = %+v; want some processes if the init process is listed: %t", result, seen)
	}
	k.Follow(t.Context(), hardJob(), handle, result)
	k.Wait()
	if got := len(p.pids()); got > 0 {
		t.Fatalf("%d processes are left; want none", got)
	}
	cmd.Wait()
}
