package act

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/agent/evict"
)

// spread makes cgroups below the container's and moves its processes into them.
func (p *testCgroup) spread(cgroups int) {
	p.t.Helper()
	pids := p.pids()
	for i := range cgroups {
		dir := filepath.Join(p.dirs[0], fmt.Sprint("below", i))
		if err := os.Mkdir(dir, 0o755); err != nil {
			p.t.Fatal(err)
		}
		p.t.Cleanup(func() {
			p.waitFor("the cgroup below is removed", func() bool {
				for _, pid := range p.pidsIn(dir) {
					_ = syscall.Kill(pid, syscall.SIGKILL)
				}
				return os.Remove(dir) == nil
			})
		})
		for n, pid := range pids {
			if n%cgroups == i {
				enter(p.t, dir, pid)
			}
		}
	}
}

func enter(t testing.TB, dir string, pid int) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), strconv.AppendInt(nil, int64(pid), 10), 0); err != nil {
		t.Fatal(err)
	}
}

// allPIDs lists the processes of all cgroups of the container.
func (p *testCgroup) allPIDs() []int {
	p.t.Helper()
	g, err := p.hierarchy.Open(p.path)
	if err != nil {
		p.t.Fatal(err)
	}
	defer g.Close()
	pids, err := g.Procs(nil)
	if err != nil {
		p.t.Fatal(err)
	}
	return pids
}

const twelveSleeps = "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 1000 & done; wait"

// A fast kill signals the preopened processes and reads only their cgroups, however many
// cgroups the container has. The Reaper kills the others.
func TestFastKillIsBounded(t *testing.T) {
	p := newTestCgroup(t)
	cmd := p.run(twelveSleeps)
	p.waitFor("all run", func() bool { return len(p.pids()) == 13 })
	c := p.containerOf("c1", cmd.Process.Pid)
	p.spread(40)
	handle := p.prepare(c)
	if n := len(handle.containers[0].lists); n > 2+maxPreopened {
		t.Errorf("a fast kill would read %d lists; want at most %d", n, 2+maxPreopened)
	}
	result := NewFastKiller(startReaper(t)).Kill(handle, &evict.Guard{})
	// The init process may be one of the largest.
	if result.Err != nil || result.Processes < maxPreopened || result.Processes > maxPreopened+1 {
		t.Errorf("fast kill = %+v; want the %d preopened processes and the init process", result, maxPreopened)
	}
	p.waitFor("the reaper has killed the others", func() bool { return len(p.allPIDs()) == 0 })
	var reports progressLog
	k := NewKiller(p.hierarchy, "/proc", &fakeRuntime{}, reports.record)
	k.Follow(t.Context(), hardJob(), handle, result)
	k.Wait()
	if last := reports.last(); last.Err != nil || last.Stage != Finished {
		t.Errorf("last report = %+v; want it finished", last)
	}
	cmd.Wait()
}

// Guarded processes are found by their own /proc/PID/cgroup in any cgroup below the
// container's.
func TestKillNestedGuards(t *testing.T) {
	for name, tc := range map[string]struct {
		guard   func(g *evict.Guard, moved int)
		refused bool
	}{
		"essential process":               {func(g *evict.Guard, moved int) { g.Protected[moved] = "a shim" }, false},
		"init process of a second one":    {func(g *evict.Guard, moved int) { g.Inits[moved] = "c2" }, true},
		"reused pid of a guarded process": {func(g *evict.Guard, moved int) { g.Inits[moved] = "c2"; g.StartTimes[moved] = 1 }, false},
		"guarded processes elsewhere":     {func(g *evict.Guard, _ int) { g.Protected[1], g.Protected[os.Getpid()] = "pid 1", "evictd" }, false},
	} {
		for kind, kill := range killPaths {
			t.Run(name+" "+kind, func(t *testing.T) {
				p := newTestCgroup(t)
				cmd := p.run(twelveSleeps)
				p.waitFor("all run", func() bool { return len(p.pids()) == 13 })
				job := hardJob(p.containerOf("c1", cmd.Process.Pid))
				p.spread(8)
				moved := startSleep(t)
				enter(t, filepath.Join(p.dirs[0], "below7"), moved.Process.Pid)
				job.Guard = &evict.Guard{Protected: map[int]string{}, Inits: map[int]string{}, StartTimes: map[int]uint64{}}
				tc.guard(job.Guard, moved.Process.Pid)
				var reports progressLog
				k := NewKiller(p.hierarchy, "/proc", &fakeRuntime{}, reports.record)
				kill(p, k, job)
				k.Wait()
				var wrong *WrongVictimError
				if got := errors.As(reports.last().Err, &wrong); got != tc.refused {
					t.Errorf("last report = %+v; want it refused: %t", reports.last(), tc.refused)
				}
				got := p.allPIDs()
				switch {
				case tc.refused && !slices.Contains(got, moved.Process.Pid):
					t.Errorf("left: %v; want the init process of the second container among them, %d", got, moved.Process.Pid)
				case !tc.refused && job.Guard.Protected[moved.Process.Pid] != "" && !slices.Equal(got, []int{moved.Process.Pid}):
					t.Errorf("left: %v; want only the guarded process, %d", got, moved.Process.Pid)
				case !tc.refused && job.Guard.Protected[moved.Process.Pid] == "" && len(got) != 0:
					t.Errorf("left: %v; want none", got)
				}
			})
		}
	}
}

// Without free descriptors a fast kill signals the preopened processes, and the others
// through the descriptors in its reserve.
func TestFastKillWithoutDescriptors(t *testing.T) {
	p := newTestCgroup(t)
	cmd := p.run(twelveSleeps)
	p.waitFor("all run", func() bool { return len(p.pids()) == 13 })
	handle, killer := p.prepare(p.containerOf("c1", cmd.Process.Pid)), NewFastKiller(nil)
	t.Cleanup(func() { killer.Close() })
	killer.timeout = time.Hour // a busy machine must not interrupt it
	restore := useAllDescriptors(t)
	result := killer.Kill(handle, &evict.Guard{Protected: map[int]string{1: "pid 1"}})
	restore()
	if result.Err != nil || result.Processes != 13 {
		t.Fatalf("fast kill = %+v; want 13 processes", result)
	}
	p.waitFor("all have exited", func() bool { return len(p.pids()) == 0 })
	cmd.Wait()
	if got := len(killer.reserve.fds); got == 0 {
		t.Error("the reserve is empty after the kill; want it filled again")
	}
}

// useAllDescriptors leaves no free descriptor in this process until restore is called.
func useAllDescriptors(t *testing.T) (restore func()) {
	t.Helper()
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	few := unix.Rlimit{Max: before.Max}
	for _, entry := range open {
		if fd, err := strconv.ParseUint(entry.Name(), 10, 32); err == nil {
			few.Cur = max(few.Cur, fd+1)
		}
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	var fds []int
	for {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
		if err == unix.EMFILE {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		fds = append(fds, fd)
	}
	return func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
			t.Error(err)
		}
	}
}
