package act

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/kerneltest"
)

// prepare handles the place's container.
func (p *testCgroup) prepare(c ...evict.ContainerHandle) *Hold {
	p.t.Helper()
	h, err := Prepare(p.hierarchy, "/proc", hardJob(c...))
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(h.Close)
	return h
}

// reaper makes a Reaper that runs until the test ends.
func reaper(t *testing.T) *Reaper {
	t.Helper()
	r, err := NewReaper()
	if err != nil {
		t.Fatal(err)
	}
	run(t, r)
	return r
}

// run runs a reaper until the test ends.
func run(t *testing.T, r *Reaper) {
	t.Cleanup(func() { r.Close() })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.Run(ctx)
	}()
	t.Cleanup(func() { cancel(); <-done })
}

func TestFastKill(t *testing.T) {
	for _, tc := range []struct {
		name, script string
		before       int // processes that there must be
		later        string
	}{
		{"one process", "exec sleep 1000", 1, ""},
		{"a tree", "sleep 1000 & sleep 1000 & (sleep 1000 & wait) & wait", 5, ""},
		{"ignores what it can", "trap '' TERM INT HUP; sleep 1000 & while :; do wait; done", 2, ""},
		{"more than are held", "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 1000 & done; wait", 13, ""},
		{"forks while it is killed", "while :; do sleep 1000 & sleep 0.001; done", 3, ""},
		{"none that was held", "exec sleep 1000", 1, "exec sleep 1000"},
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
			result := NewStriker(reaper(t)).Strike(handle, &evict.Guard{})
			if result.Err != nil || result.Processes < 1 || result.First.Before(before) {
				t.Errorf("Strike() = %+v; want processes signalled", result)
			}
			k.Follow(t.Context(), hardJob().Order, handle, result)
			k.Wait()
			if pids := p.pids(); len(pids) > 0 {
				t.Errorf("left in the cgroup: %v", pids)
			}
			if err := cmd.Wait(); err == nil {
				t.Error("the command ended by itself; want it killed")
			}
			if got := reports.stages(); !slices.Equal(got, []Stage{Signalled, FirstGone, LastGone, Finished}) {
				t.Errorf("stages = %v; want all four in order", got)
			}
			if last := reports.last(); last.Err != nil || last.Processes != result.Processes {
				t.Errorf("last report = %+v; want %d processes and no error", last, result.Processes)
			}
			slices.Sort(runtime.calls)
			if want := []string{"container c1 0s", "sandbox s"}; !slices.Equal(runtime.calls, want) {
				t.Errorf("runtime was asked %q; want %q", runtime.calls, want)
			}
			if handle.Grab() {
				t.Error("the handle is open after Follow; want it closed")
			}
		})
	}
}

// A Hold that was replaced between the result and its adoption serves whoever follows, to the end.
func TestFollowReplacedHandle(t *testing.T) {
	p := newTestCgroup(t)
	cmd := p.run("sleep 1000 & wait")
	p.waitFor("both run", func() bool { return len(p.pids()) == 2 })
	handle := p.prepare(p.container("c1"))
	var reports progressLog
	k := NewKiller(p.hierarchy, "/proc", &fakeRuntime{}, reports.record)
	if !handle.Grab() {
		t.Fatal("Grab() = false; want true")
	}
	result := NewStriker(reaper(t)).Strike(handle, &evict.Guard{})
	handle.Close()
	k.Follow(t.Context(), hardJob().Order, handle, result)
	handle.Drop()
	k.Wait()
	if got := reports.stages(); !slices.Equal(got, []Stage{Signalled, FirstGone, LastGone, Finished}) || reports.last().Err != nil {
		t.Errorf("stages = %v, error %v; want all four in order, and none", got, reports.last().Err)
	}
	cmd.Wait()
	p.waitFor("the threads that tear down are done with the handle", func() bool { return handle.refs.Load() == closedBit })
}

// One that nobody kept is open no more: the pod is killed anew.
func TestFollowClosedHandle(t *testing.T) {
	p := newTestCgroup(t)
	cmd := p.run("exec sleep 1000")
	p.waitFor("it runs", func() bool { return len(p.pids()) == 1 })
	handle := p.prepare(p.container("c1"))
	var reports progressLog
	k := NewKiller(p.hierarchy, "/proc", &fakeRuntime{}, reports.record)
	handle.Close()
	k.Follow(t.Context(), hardJob().Order, handle, Strike{})
	k.Wait()
	if pids := p.pids(); len(pids) > 0 {
		t.Fatalf("left in the cgroup: %v", pids)
	}
	cmd.Wait()
	if got := reports.stages(); !slices.Equal(got, []Stage{Signalled, FirstGone, LastGone, Finished}) || reports.last().Err != nil {
		t.Errorf("stages = %v, error %v; want all four in order, and none", got, reports.last().Err)
	}
}

// What must live is not struck, also where it came after the pod was held.
func TestFastKillRefused(t *testing.T) {
	p := newTestCgroup(t)
	cmd := p.run("sleep 1000 & wait")
	first := cmd.Process.Pid
	p.waitFor("two processes run", func() bool { return len(p.pids()) == 2 })
	for name, tc := range map[string]struct {
		guard evict.Guard
		asked []string // of the runtime
	}{
		"handles what must live":     {evict.Guard{Never: map[int]string{first: "evictd"}}, nil},
		"handles a second container": {evict.Guard{Inits: map[int]string{first: "c2"}}, []string{"container c1 0s", "sandbox s"}},
	} {
		t.Run(name, func(t *testing.T) {
			for kind, killer := range map[string]*Striker{"killer": NewStriker(nil), "dry run": NewBlank()} {
				handle := p.prepare(p.container("c1"))
				result := killer.Strike(handle, &tc.guard)
				var refusal *WrongVictimError
				if result.Processes != 0 || !errors.As(result.Err, &refusal) || refusal.PID != first {
					t.Fatalf("%s: Strike() = %+v; want it refused because of process %d", kind, result, first)
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
				actuator.Follow(t.Context(), hardJob().Order, handle, result)
				k.Wait()
				if last := reports.last(); last.Stage != Refused || !errors.As(last.Err, &refusal) {
					t.Errorf("%s: last report = %+v; want it refused", kind, last)
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
	blank := NewBlank()
	if result := blank.Strike(handle, &evict.Guard{}); result.Err != nil || result.Processes != 1 {
		t.Fatalf("Strike() in dry run = %+v; want one process, which lives", result)
	}
	if result := blank.Strike(handle, &evict.Guard{}); !errors.Is(result.Err, errAlreadyKilled) {
		t.Errorf("second Strike() = %+v; want it refused", result)
	}
	handle = p.prepare(p.container("c1"))
	handle.Close()
	handle.Close()
	if result := NewStriker(nil).Strike(handle, &evict.Guard{}); !errors.Is(result.Err, cgroup.ErrGone) {
		t.Errorf("Strike() of what was given up = %+v; want it gone", result)
	}
	if _, ok := handle.Usage(); ok {
		t.Error("Usage() of what was given up = ok; want not")
	}
	if got := len(p.pids()); got != 1 {
		t.Errorf("%d processes are left; want the one", got)
	}
}

// The cgroup of a pod that has gone is no error, and one that took its path is
// not touched.
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
	if result := NewStriker(nil).Strike(handle, &evict.Guard{}); result.Err != nil || result.Processes != 0 {
		t.Errorf("Strike() = %+v; want nothing done", result)
	}
	if _, err := Prepare(p.hierarchy, "/proc", hardJob(c)); !errors.Is(err, cgroup.ErrGone) {
		t.Errorf("Prepare() of the old cgroup = %v; want it gone", err)
	}
	if got := len(p.pids()); got != 1 {
		t.Errorf("%d processes are left; want the one of the new cgroup", got)
	}
}

// A container that runs processes in cgroups of its own is struck as a whole.
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
	// Where it is not certain that the cgroup is the container's, others look at all of it.
	handle := p.prepare(p.container("c1"))
	if result := NewStriker(nil).Strike(handle, &evict.Guard{}); result.Err != nil || result.Processes != 0 || !handle.containers[0].partlyChecked {
		t.Errorf("Strike() = %+v; want it left to others", result)
	}
	handle = p.prepare(p.containerOf("c1", cmd.Process.Pid))
	if result := NewStriker(nil).Strike(handle, &evict.Guard{}); result.Err != nil || result.Processes != 1 {
		t.Fatalf("Strike() = %+v; want the process below", result)
	}
	cmd.Wait()
	if status := cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signal() != syscall.SIGKILL {
		t.Errorf("the process below ended with %v; want SIGKILL", status)
	}
}

// In a fork storm v2 lists processes that have no number yet, or none any more, as 0
// (kernel/cgroup/cgroup.c: cgroup_procs_show). The others are signalled.
func TestKillListWithZeros(t *testing.T) {
	for _, kind := range []string{"result", "kill"} {
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
			if kind == "result" {
				result := NewStriker(nil).Strike(p.prepare(p.container("c1")), &evict.Guard{})
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
			if !h.NamesAll() { // a 0 is a process that can't be named from here
				if !errors.Is(err, cgroup.ErrForeign) || signalled != 0 {
					t.Errorf("%d processes signalled, error %v; want none of a cgroup with a process of another pid namespace", signalled, err)
				}
				return
			}
			if err != nil || signalled != 1 {
				t.Fatalf("%d processes signalled, error %v; want the one that has a number", signalled, err)
			}
			cmd.Wait()
			if status := cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signal() != syscall.SIGKILL {
				t.Errorf("the process ended with %v; want SIGKILL", status)
			}
		})
	}
}

// forbidden signals nobody, as where CAP_KILL is missing.
type forbiddenSignaller struct{ noopSignaller }

func (forbiddenSignaller) signal(int) error { return unix.EPERM }

// What can't be signalled is no process that was, unless the kernel kills the cgroup.
func TestFastKillForbidden(t *testing.T) {
	p := newTestCgroup(t)
	p.run("sleep 1000 & wait")
	p.waitFor("both run", func() bool { return len(p.pids()) == 2 })
	handle := p.prepare(p.container("c1"))
	result := newFastKiller(forbiddenSignaller{}).Strike(handle, &evict.Guard{})
	if v2 := handle.containers[0].killFD >= 0; !errors.Is(result.Err, unix.EPERM) != v2 || (result.Processes == 2) != v2 {
		t.Errorf("Strike() = %+v; want it forbidden, or both killed with their cgroup", result)
	}
}

func TestHandleOutdated(t *testing.T) {
	p := newTestCgroup(t)
	p.run("exec sleep 1000")
	handle := p.prepare(p.container("c1"))
	if handle.Outdated("/proc") || !handle.Direct() {
		t.Error("Outdated() right after Prepare, or not Direct(); want it up to date and direct")
	}
	p.run("exec sleep 1000")
	if !handle.Outdated("/proc") {
		t.Error("Outdated() with another process = false; want true")
	}
	unproven := p.prepare(p.container("c1"), evict.ContainerHandle{ID: "c2", Unproven: "it is not"})
	if unproven.Direct() {
		t.Error("Direct() with a container that is not proven = true; want false")
	}
}

func TestHandleUsage(t *testing.T) {
	p := newTestCgroup(t)
	p.run("x=$(head -c 20000000 /dev/zero | tr '\\0' x); sleep 1000 & wait")
	handle := p.prepare(p.container("c1"))
	g, err := p.hierarchy.Open(p.path)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	p.waitFor("it has memory", func() bool { used, ok := handle.Usage(); return ok && used > 15<<20 })
	want, err := g.Memory()
	if err != nil {
		t.Fatal(err)
	}
	used, ok := handle.Usage()
	workingSet, anonymous, read := handle.Memory()
	const slack = 4 << 20
	near := func(got int64, want uint64) bool { return max(got-int64(want), int64(want)-got) < slack }
	if !ok || !read || !near(used, want.Usage) || !near(workingSet, want.WorkingSet) || !near(anonymous, want.Anon) {
		t.Errorf("Usage() = %d, Memory() = %d, %d; want near %+v", used, workingSet, anonymous, want)
	}
}

func TestParseNumber(t *testing.T) {
	for text, want := range map[string]int64{"0\n": 0, "4096\n": 4096, "9223372036854771712\n": -1, "": -1, "\n": -1, "12": -1, "max\n": -1, "-1\n": -1, "1\n2\n": -1} {
		got, ok := parseNumber([]byte(text))
		if !ok {
			got = -1
		}
		if got != want {
			t.Errorf("number(%q) = %d; want %d", text, got, want)
		}
	}
}

// A Hold that was replaced between the choice and the result is struck all the same.
func TestFastKillReplacedHandle(t *testing.T) {
	p := newTestCgroup(t)
	cmd := p.run("sleep 1000 & wait")
	p.waitFor("both run", func() bool { return len(p.pids()) == 2 })
	handle := p.prepare(p.container("c1"))
	var reports progressLog
	k := NewKiller(p.hierarchy, "/proc", &fakeRuntime{}, reports.record)
	if !handle.Grab() {
		t.Fatal("Grab() = false; want true")
	}
	handle.Close()
	result := NewStriker(reaper(t)).Strike(handle, &evict.Guard{})
	if result.Err != nil || result.Processes != 2 {
		t.Errorf("Strike() = %+v; want 2 processes", result)
	}
	k.Follow(t.Context(), hardJob().Order, handle, result)
	handle.Drop()
	k.Wait()
	if got := reports.stages(); !slices.Equal(got, []Stage{Signalled, FirstGone, LastGone, Finished}) || reports.last().Err != nil {
		t.Errorf("stages = %v, error %v; want all four in order, and none", got, reports.last().Err)
	}
	cmd.Wait()
}

// pipe puts one in the place of the cgroup.kill of a container that is held.
func (p *testCgroup) replaceKillFile(h *Hold) (read int) {
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

// The kernel is asked to kill the whole cgroup, by another thread. Where that
// hangs, the processes that are there have been signalled all the same, and nobody
// waits.
func TestFastKillWritesCgroupKill(t *testing.T) {
	for _, hangs := range []bool{false, true} {
		p := newTestCgroup(t)
		cmd := p.run("for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 1000 & done; wait")
		p.waitFor("all run", func() bool { return len(p.pids()) == 13 })
		handle := p.prepare(p.container("c1"))
		asked := p.replaceKillFile(handle)
		r := reaper(t)
		if hangs {
			fd := handle.containers[0].killFD
			size, err := unix.FcntlInt(uintptr(fd), unix.F_GETPIPE_SZ, 0)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := unix.Write(fd, make([]byte, size)); err != nil {
				t.Fatal(err)
			}
			defer func() { // so that the thread comes to its end
				if _, err := unix.Read(asked, make([]byte, size)); err != nil {
					t.Errorf("empty the pipe: %v", err)
				}
			}()
		}
		var reports progressLog
		k := NewKiller(p.hierarchy, "/proc", &fakeRuntime{}, reports.record)
		result := NewStriker(r).Strike(handle, &evict.Guard{})
		if result.Err != nil || result.Processes != 13 {
			t.Errorf("hangs: %t: Strike() = %+v; want 13 processes", hangs, result)
		}
		if !hangs {
			got := make([]byte, 2)
			if n, err := unix.Read(asked, got); err != nil || string(got[:n]) != "1" {
				t.Errorf("cgroup.kill was written %q (%v); want 1", got[:max(0, n)], err)
			}
		}
		k.Follow(t.Context(), hardJob().Order, handle, result)
		k.Wait()
		if got := len(p.pids()); got > 0 {
			t.Errorf("hangs: %t: %d processes are left; want none", hangs, got)
		}
		cmd.Wait()
	}
}

// Of a container with more processes than a result looks at some are struck where it is
// certain that the cgroup is the container's, and others end the rest.
func TestFastKillManyProcesses(t *testing.T) {
	p := newTestCgroup(t)
	cmd := p.run("for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 1000 & done; wait")
	p.waitFor("all run", func() bool { return len(p.pids()) == 13 })
	few := func() *Striker {
		s := NewStriker(reaper(t))
		s.pids, s.relisted = make([]int, 0, 6), make([]int, 0, 6)
		return s
	}
	last := slices.Max(p.pids())
	var reports progressLog
	k := NewKiller(p.hierarchy, "/proc", &fakeRuntime{}, reports.record)
	guard := &evict.Guard{Never: map[int]string{last: "evictd"}}
	handle := p.prepare(p.container("c1"))
	result := few().Strike(handle, guard)
	if result.Err != nil || result.Processes != 0 {
		t.Errorf("Strike() of a container that may not be one = %+v; want it left to others", result)
	}
	k.Follow(t.Context(), hardJob().Order, handle, result)
	k.Wait()
	wrong := (*WrongVictimError)(nil)
	if got := reports.last(); got.Stage != Refused || !errors.As(got.Err, &wrong) || len(p.pids()) != 13 {
		t.Errorf("last report = %+v, %d processes are left; want it refused, and all 13", got, len(p.pids()))
	}
	handle = p.prepare(p.containerOf("c1", cmd.Process.Pid))
	// A list is sorted by pid (v1). Where pids have begun again with low numbers, the first
	// process is not among those that are looked at, and all is left to others.
	listed := p.pids()
	slices.Sort(listed)
	seen := slices.Index(listed, cmd.Process.Pid) < 6
	result = few().Strike(handle, &evict.Guard{})
	if result.Err != nil || seen && result.Processes < 1 {
		t.Errorf("Strike() = %+v; want some processes, as the first is listed: %t", result, seen)
	}
	k.Follow(t.Context(), hardJob().Order, handle, result)
	k.Wait()
	if got := len(p.pids()); got > 0 {
		t.Fatalf("%d processes are left; want none", got)
	}
	cmd.Wait()
}

// What a container has used that has gone is nothing.
func TestHandleUsageGone(t *testing.T) {
	p := newTestCgroup(t)
	handle := p.prepare(p.container("c1"))
	for _, dir := range p.dirs {
		if err := os.Remove(dir); err != nil {
			t.Fatal(err)
		}
	}
	if used, ok := handle.Usage(); !ok || used != 0 {
		t.Errorf("Usage() of a cgroup that has gone = %d, %t; want 0, true", used, ok)
	}
}

// hanging is a trigger whose signals hang until the other end of a pipe is closed. The
// race detector takes a poll for no synchronization.
type blockingSignaller struct {
	noopSignaller
	pipeFD int
	began  *atomic.Bool
}

func (h blockingSignaller) signal(fd int) error {
	h.began.Store(true)
	for {
		if _, err := unix.Poll([]unix.PollFd{{Fd: int32(h.pipeFD), Events: unix.POLLIN}}, -1); err != unix.EINTR {
			return h.noopSignaller.signal(fd)
		}
	}
}

// A pod that another thread still strikes is followed without what that thread writes.
func TestFollowDuringFastKill(t *testing.T) {
	for _, dry := range []bool{false, true} {
		p := newTestCgroup(t)
		p.run("exec sleep 1000")
		p.waitFor("it runs", func() bool { return len(p.pids()) == 1 })
		handle := p.prepare(p.container("c1"))
		var pipe [2]int
		if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(pipe[0]) })
		began := &atomic.Bool{}
		late := newFastKiller(blockingSignaller{pipeFD: pipe[0], began: began})
		t.Cleanup(func() { late.Close() })
		if !handle.Grab() {
			t.Fatal("Grab() = false; want true")
		}
		over := make(chan struct{})
		go func() {
			defer close(over)
			defer handle.Drop()
			late.Strike(handle, &evict.Guard{})
		}()
		p.waitFor("the result has begun", began.Load)
		own := NewBlank()
		t.Cleanup(func() { own.Close() })
		result := own.Strike(handle, &evict.Guard{})
		if !errors.Is(result.Err, errAlreadyKilled) {
			t.Errorf("dry %t: second Strike() = %+v; want that it was struck before", dry, result)
		}
		var heard progressLog
		order := evict.Order{UID: "u", Hard: true}
		k := NewKiller(p.hierarchy, "/proc", nil, heard.record)
		if dry {
			NewDryRun(p.hierarchy, "/proc", heard.record).Follow(t.Context(), order, handle, result)
		} else {
			k.Follow(t.Context(), order, handle, result)
		}
		unix.Close(pipe[1]) // the result goes on
		k.Wait()
		<-over
		if last := heard.last(); last.Stage != Finished || last.Err != nil && !errors.Is(last.Err, errAlreadyKilled) || last.UID != "u" {
			t.Errorf("dry %t: Follow() reports %+v at last; want that it has finished", dry, last)
		}
		if left := len(p.pids()); left != 0 && !dry || left != 1 && dry {
			t.Errorf("dry %t: %d processes are left", dry, left)
		}
	}
}
