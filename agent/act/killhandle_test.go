package act

import (
	"errors"
	"os"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/agent/evict"
)

// A handle that is replaced before the kill, or between the kill and Follow, is used to the end.
func TestReplacedHandle(t *testing.T) {
	for _, replaced := range []string{"before the kill", "after the kill"} {
		p := newTestCgroup(t)
		cmd := p.run("sleep 1000 & wait")
		p.waitFor("both run", func() bool { return len(p.pids()) == 2 })
		handle := p.prepare(p.container("c1"))
		var reports progressLog
		k := NewKiller(p.hierarchy, "/proc", &fakeRuntime{}, reports.record)
		if !handle.Ref() {
			t.Fatal("could not reference the handle")
		}
		if replaced == "before the kill" {
			handle.Close()
		}
		result := NewFastKiller(startReaper(t)).Kill(handle, &evict.Guard{})
		if result.Err != nil || result.Processes != 2 {
			t.Errorf("%s: fast kill = %+v; want 2 processes", replaced, result)
		}
		handle.Close()
		k.Follow(t.Context(), hardJob(), handle, result)
		handle.Unref()
		k.Wait()
		reports.wantGone(t)
		cmd.Wait()
		p.waitFor("the reaper has dropped its references", func() bool { return handle.refs.Load() == closedBit })
	}
}

// Follow with a handle without references kills the pod through new descriptors.
func TestFollowClosedHandle(t *testing.T) {
	p := newTestCgroup(t)
	cmd := p.run("exec sleep 1000")
	p.waitFor("it runs", func() bool { return len(p.pids()) == 1 })
	handle := p.prepare(p.container("c1"))
	var reports progressLog
	k := NewKiller(p.hierarchy, "/proc", &fakeRuntime{}, reports.record)
	handle.Close()
	k.Follow(t.Context(), hardJob(), handle, KillResult{})
	k.Wait()
	if pids := p.pids(); len(pids) > 0 {
		t.Fatalf("processes left in the cgroup: %v", pids)
	}
	cmd.Wait()
	reports.wantGone(t)
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
	unproven := p.prepare(p.container("c1"), evict.RunningContainer{ID: "c2", Unproven: "it is not"})
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
			t.Errorf("parseNumber(%q) = %d; want %d", text, got, want)
		}
	}
}

// The usage of a container that is gone is 0.
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

// blockingSignaller blocks until the other end of a pipe is closed. began is atomic because
// the race detector does not see a pipe as synchronization.
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

// Follow of a pod that another thread is killing does not read what that thread writes.
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
		if !handle.Ref() {
			t.Fatal("could not reference the handle")
		}
		over := make(chan struct{})
		go func() {
			defer close(over)
			defer handle.Unref()
			late.Kill(handle, &evict.Guard{})
		}()
		p.waitFor("the kill has begun", began.Load)
		own := NewNoopKiller()
		t.Cleanup(func() { own.Close() })
		result := own.Kill(handle, &evict.Guard{})
		if !errors.Is(result.Err, errAlreadyKilled) {
			t.Errorf("dry %t: second kill = %+v; want errAlreadyKilled", dry, result)
		}
		var reports progressLog
		k := NewKiller(p.hierarchy, "/proc", nil, reports.record)
		if dry {
			NewDryRun(p.hierarchy, "/proc", reports.record).Follow(t.Context(), hardJob(), handle, result)
		} else {
			k.Follow(t.Context(), hardJob(), handle, result)
		}
		unix.Close(pipe[1]) // the kill continues
		k.Wait()
		<-over
		if last := reports.last(); last.Stage != Finished || last.Err != nil && !errors.Is(last.Err, errAlreadyKilled) || last.UID != "u" {
			t.Errorf("dry %t: last report = %+v; want it finished", dry, last)
		}
		if left := len(p.pids()); left != 0 && !dry || left != 1 && dry {
			t.Errorf("dry %t: %d processes are left", dry, left)
		}
	}
}
