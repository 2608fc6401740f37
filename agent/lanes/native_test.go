package lanes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/memory"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/bpf"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/epoll"
)

// These tests run on the kernel of the machine, in a new cgroup with a limited kubepods, so
// that other load on the machine does not affect them.

// thread is a Waiter that polls its sources and records alarms.
type thread struct {
	fakeWaiter
	poller  *epoll.Poller
	byToken map[uint64]Source
	last    uint64
}

func newThread(t *testing.T) *thread {
	t.Helper()
	p, err := epoll.New()
	if err != nil {
		t.Fatal(err)
	}
	th := &thread{poller: p, byToken: map[uint64]Source{}}
	var done sync.WaitGroup
	done.Go(func() {
		var events [8]epoll.Event
		for {
			n, err := p.Wait(events[:], epoll.Forever)
			if err != nil {
				if !errors.Is(err, os.ErrClosed) {
					t.Error(err)
				}
				return
			}
			th.handle(events[:n])
		}
	})
	t.Cleanup(func() {
		p.Close()
		done.Wait()
	})
	return th
}

func (th *thread) handle(events []epoll.Event) {
	th.mu.Lock()
	defer th.mu.Unlock()
	for _, e := range events {
		if s := th.byToken[e.Token]; s != nil {
			if r, raised := s.Ready(time.Now()); raised {
				th.raised = append(th.raised, r)
			}
		}
	}
}

func (th *thread) Add(s Source) error {
	th.mu.Lock()
	defer th.mu.Unlock()
	th.last++
	th.byToken[th.last] = s
	return th.poller.Add(s.FD(), s.Events(), th.last)
}

func (th *thread) Remove(s Source) error {
	th.mu.Lock()
	defer th.mu.Unlock()
	for token, known := range th.byToken {
		if known == s {
			delete(th.byToken, token)
			return th.poller.Remove(s.FD())
		}
	}
	return errors.New("no such source")
}

// kubepods creates a cgroup of that name and limit below a new cgroup, and returns the
// latter.
func kubepods(t *testing.T, limit int64) (h *cgroup.Hierarchy, root string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	h, err := cgroup.Find("/sys/fs/cgroup")
	if err != nil {
		t.Skip("needs the host's cgroups: ", err)
	}
	root = fmt.Sprintf("/evictd-lanes-%d", os.Getpid())
	dirs := []string{h.Memory.Path(root), h.Memory.Path(root, "kubepods")}
	for i, dir := range dirs {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Skip("needs to make cgroups: ", err)
		}
		t.Cleanup(func() {
			deadline := time.Now().Add(10 * time.Second)
			for err := syscall.Rmdir(dir); err != nil && time.Now().Before(deadline); err = syscall.Rmdir(dir) {
				time.Sleep(10 * time.Millisecond)
			}
		})
		if h.Version == cgroup.V2 && i == 0 {
			write(t, h.Memory.Path("cgroup.subtree_control"), "+memory")
			write(t, filepath.Join(dir, "cgroup.subtree_control"), "+memory")
		}
	}
	file := "memory.limit_in_bytes"
	if h.Version == cgroup.V2 {
		file = "memory.max"
	}
	write(t, filepath.Join(dirs[1], file), fmt.Sprint(limit))
	return h, root
}

// makeChild creates a cgroup with the memory controller below one without processes.
func makeChild(t *testing.T, h *cgroup.Hierarchy, dir, name string) string {
	t.Helper()
	if h.Version == cgroup.V2 {
		write(t, filepath.Join(dir, "cgroup.subtree_control"), "+memory")
	}
	child := filepath.Join(dir, name)
	if err := os.Mkdir(child, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(child) })
	return child
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0); err != nil {
		t.Fatal(err)
	}
}

// hog allocates memory in a cgroup until the test ends or stop is called.
func hog(t *testing.T, dir string, bytes int64) (stop func()) {
	t.Helper()
	return shell(t, dir, `exec dd if=/dev/zero of=/dev/null bs="$2" count=100000`, fmt.Sprint(bytes))
}

// shell runs a script in a cgroup, $1, until the test ends or stop is called.
func shell(t *testing.T, dir, script, argument string) (stop func()) {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", `echo $$ >"$1/cgroup.procs" && `+script, "sh", dir, argument)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var once sync.Once
	stop = func() {
		once.Do(func() {
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // it may have ended already
			_ = cmd.Wait()
		})
	}
	t.Cleanup(stop)
	return stop
}

func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(60 * time.Second); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("no %s within 60 s", what)
		}
	}
}

// openLane opens a Set with one lane on the kernel of the machine.
func openLane(t *testing.T, lane string, fault *Fault) (*Set, *thread, string) {
	t.Helper()
	h, root := kubepods(t, 512*mib)
	th := newThread(t)
	o := memory.Options{Procfs: kernel.FS("/proc"), Hierarchy: h, CgroupRoot: root}
	var readers [2]*memory.Memory
	for i := range readers {
		m, err := memory.Open(o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Close() })
		readers[i] = m
	}
	modes := map[string]Mode{}
	for _, name := range Names() {
		if name != lane {
			modes[name] = Disabled
		}
	}
	var s *Set
	poll := NewPoll(func(now time.Time, o *signal.Observations) {
		readers[0].Read(now, o)
		s.Observe(now, o)
	}, runtime.NumCPU(), 0)
	s = NewSet(SetOptions{
		Options: o, Sysfs: "/sys", Wait: th, Poll: poll, Modes: modes, Faults: map[string]*Fault{lane: fault},
		Read:  func(now time.Time, o *signal.Observations) { readers[1].Read(now, o) },
		Stall: time.Millisecond, StallWindow: 2 * time.Second, SamplerReader: memory.NewSamplerReader(nil),
	})
	armed := thresholds(t, map[string]time.Duration{"256Mi": 0})
	for i := range armed {
		armed[i].Signal = signal.AllocatableMemoryAvailable
	}
	s.Arm(armed)
	poll.Arm(armed)
	if err := s.Open(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() { s.Run(ctx) })
	alarms := make(chan Alarm, 1)
	done.Go(func() { poll.Run(ctx, alarms) })
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("lanes: %+v", s.Statuses(time.Now()))
		}
		cancel()
		done.Wait()
		if err := s.Close(); err != nil {
			t.Errorf("Close() = %v; want nil", err)
		}
	})
	eventually(t, "start of the lane", func() bool { return statusOf(s, lane).State != Starting })
	if st := statusOf(s, lane); st.State == Unavailable {
		t.Skipf("needs the %s lane: %s", lane, st.Reason)
	}
	return s, th, h.Memory.Path(root, "kubepods")
}

func statusOf(s *Set, lane string) Status {
	for _, st := range s.Statuses(time.Now()) {
		if st.Name == lane {
			return st
		}
	}
	return Status{}
}

// waitCovered waits until the lane covers a threshold.
func waitCovered(t *testing.T, s *Set) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("lanes: %+v", s.Statuses(time.Now()))
		}
	}()
	eventually(t, "covered threshold", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return slices.ContainsFunc(s.entries, func(e *entry) bool { return slices.Contains(e.covered[:], true) })
	})
}

// memoryBack reports whether the memory of kubepods is freed, by its files and, if there is
// one, by the sampler.
func memoryBack(t *testing.T, s *Set, dir string) bool {
	t.Helper()
	group, err := s.o.Hierarchy.Open(strings.TrimPrefix(dir, string(s.o.Hierarchy.Memory)))
	if err != nil {
		t.Fatal(err)
	}
	defer group.Close()
	memory, err := group.Memory()
	if err != nil {
		t.Fatal(err)
	}
	var sample bpf.Sample
	if s.sampler.sampler != nil {
		if err := s.sampler.sampler.Sample(&sample); err != nil {
			t.Fatal(err)
		}
	}
	return memory.WorkingSet < 64<<20 && sample.Pods.WorkingSet() < 64<<20
}

// waitAbove waits until polling has seen the signal above the threshold for minAbove.
func waitAbove(t *testing.T, s *Set, lane string) {
	t.Helper()
	eventually(t, "reading above the threshold for minAbove", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, e := range s.entries {
			if x := &e.byPoll[pods]; e.name == lane && x.lastAbove.Sub(x.firstAbove) >= minAbove {
				return true
			}
		}
		return false
	})
}

const pods = signal.ThresholdID(3) // the hard threshold on allocatableMemory.available

// Each lane that covers thresholds raises an alarm each time a cgroup grows.
func TestLanesRaise(t *testing.T) {
	for _, lane := range []string{BPF, Memcg} {
		t.Run(lane, func(t *testing.T) {
			s, th, dir := openLane(t, lane, nil)
			waitCovered(t, s)
			for range 3 {
				before := time.Now()
				received := len(th.alarms())
				stop := hog(t, dir, 300<<20)
				eventually(t, "an alarm", func() bool { return len(th.alarms()) > received })
				r := th.alarms()[received]
				if r.Lane != lane || r.Threshold != pods || r.Seen.Before(before) || r.Seen.After(time.Now()) || r.LastAbove.After(r.Seen) {
					t.Errorf("alarm %+v; want one of %s for the %v, seen after %v", r, lane, pods, before)
				}
				stop()
				eventually(t, "the end of the crossing", func() bool { return memoryBack(t, s, dir) })
			}
			if st := statusOf(s, lane); st.State != Up || st.Missed != 0 || st.Alarms < 3 {
				t.Errorf("status %+v; want it up, with three alarms and none missed", st)
			}
		})
	}
}

// Polling detects that the alarms of a lane are lost.
func TestLanesLoseAlarms(t *testing.T) {
	for _, lane := range []string{BPF, Memcg} {
		t.Run(lane, func(t *testing.T) {
			s, th, dir := openLane(t, lane, &Fault{DropAlarms: func() bool { return true }})
			waitCovered(t, s)
			waitAbove(t, s, lane)
			hog(t, dir, 400<<20)
			eventually(t, "a degraded lane", func() bool { return statusOf(s, lane).Missed > 0 })
			if len(th.alarms()) != 0 {
				t.Errorf("alarms %v received; want none", th.alarms())
			}
			eventually(t, "reopened lane", func() bool {
				st := statusOf(s, lane)
				return st.Reopened > 0 && st.State == Up
			})
		})
	}
}

// A cgroup that reclaims all the time stalls: there is an alarm and a sustained stall.
func TestStallsRaise(t *testing.T) {
	s, th, dir := openLane(t, PSI, nil)
	limit := "memory.limit_in_bytes"
	if s.o.Hierarchy.Version == cgroup.V2 {
		limit = "memory.max"
	}
	write(t, filepath.Join(dir, limit), fmt.Sprint(32<<20))
	file := filepath.Join(t.TempDir(), "file")
	shell(t, dir, `dd if=/dev/zero of="$2" bs=1M count=256 && while dd if="$2" of=/dev/null bs=1M; do :; done`, file)
	eventually(t, "stalls", func() bool { return len(s.Stalls()) > 0 })
	if got := s.Stalls()[0]; got.Condition != signal.SystemMemoryContentionPressure || time.Since(got.Since) > time.Minute {
		t.Errorf("stalls %v; want one of the node", got)
	}
	eventually(t, "an alarm", func() bool { return len(th.alarms()) > 0 })
	if r := th.alarms()[0]; r.Lane != PSI || r.Threshold != 0 {
		t.Errorf("alarm %+v; want one of psi without a threshold", r)
	}
}

// Processes that the OOM killer kills are reported.
func TestOOMVictims(t *testing.T) {
	s, _, dir := openLane(t, Reclaim, nil)
	hog(t, dir, 700<<20) // beyond the limit of 512 MiB
	select {
	case v := <-s.OOMVictims():
		if v.PID == 0 || v.Comm != "dd" && v.Comm != "" {
			t.Errorf("victim %+v; want the hog", v)
		}
	case <-time.After(60 * time.Second):
		t.Fatal("no victim within 60 s")
	}
	eventually(t, "counts", func() bool {
		c := s.Counts()
		return c.OOM != nil && c.OOM.Victims > 0 && c.Reclaim != nil
	})
	// Tasks stall in direct reclaim only on a node without free memory.
	if _, err := s.ReclaimStalls(); err != nil {
		t.Errorf("ReclaimStalls() = %v; want nil", err)
	}
}

// A container at its limit is counted, and kubepods at its limit raises an alarm, on
// cgroup v2.
func TestEventsRaise(t *testing.T) {
	s, th, dir := openLane(t, Events, nil)
	s.FollowContainers(map[string]bool{strings.TrimPrefix(dir, string(s.o.Hierarchy.Memory)): true})
	eventually(t, "counts", func() bool {
		c := s.Counts()
		return c.Limits != nil
	})
	hog(t, dir, 700<<20) // beyond the limit of 512 MiB
	eventually(t, "an alarm", func() bool { return len(th.alarms()) > 0 })
	eventually(t, "counted kill", func() bool { return s.Counts().Limits.OOMKills > 0 })
}
