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

// These tests run on this machine's kernel, in a cgroup of their own, whose
// kubepods is limited: whatever else the machine does has no part in it.

// thread is a Waiter that waits, and keeps what it hears.
type thread struct {
	ear
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
			th.turn(events[:n])
		}
	})
	t.Cleanup(func() {
		p.Close()
		done.Wait()
	})
	return th
}

func (th *thread) turn(events []epoll.Event) {
	th.mu.Lock()
	defer th.mu.Unlock()
	for _, e := range events {
		if s := th.byToken[e.Token]; s != nil {
			if r, raised := s.Ready(time.Now()); raised {
				th.heard = append(th.heard, r)
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

// kubepods makes a cgroup of that name and limit below one of the test's own,
// which it returns.
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

// makeChild makes a cgroup with memory of its own below one that has no processes.
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

// hog takes memory in a cgroup until the test ends, or stop is called.
func hog(t *testing.T, dir string, bytes int64) (stop func()) {
	t.Helper()
	return shell(t, dir, `exec dd if=/dev/zero of=/dev/null bs="$2" count=100000`, fmt.Sprint(bytes))
}

// shell runs a script in a cgroup, $1, likewise.
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
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // ended already, at worst
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
			t.Fatalf("%s: not within 60 s", what)
		}
	}
}

// openHere opens a Set of one lane alone, on this machine.
func openHere(t *testing.T, lane string, fault *Fault) (*Set, *thread, string) {
	t.Helper()
	h, root := kubepods(t, 512*mib)
	th := newThread(t)
	o := memory.Options{Procfs: kernel.FS("/proc"), Hierarchy: h, CgroupRoot: root}
	var reads [2]*memory.Memory
	for i := range reads {
		m, err := memory.Open(o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Close() })
		reads[i] = m
	}
	modes := map[string]Mode{}
	for _, name := range Names() {
		if name != lane {
			modes[name] = Disabled
		}
	}
	var s *Set
	poll := NewPoll(func(now time.Time, o *signal.Observations) {
		reads[0].Read(now, o)
		s.Seen(now, o)
	}, runtime.NumCPU(), 0)
	s = NewSet(SetOptions{
		Options: o, Sysfs: "/sys", Wait: th, Poll: poll, Modes: modes, Faults: map[string]*Fault{lane: fault},
		Read:  func(now time.Time, o *signal.Observations) { reads[1].Read(now, o) },
		Stall: time.Millisecond, StallWindow: 2 * time.Second, Quick: memory.NewQuick(nil),
	})
	marks := thresholds(t, map[string]time.Duration{"256Mi": 0})
	for i := range marks {
		marks[i].Signal = signal.AllocatableMemoryAvailable
	}
	s.Arm(marks)
	poll.Arm(marks)
	if err := s.Open(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() { s.Run(ctx) })
	alarms := make(chan Raise, 1)
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
	eventually(t, "a lane that has started", func() bool { return statusOf(s, lane).State != Starting })
	if st := statusOf(s, lane); st.State == Unavailable {
		t.Skipf("needs the %s lane: %s", lane, st.Why)
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

// covered waits until the lane sees to a mark.
func covered(t *testing.T, s *Set) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("lanes: %+v", s.Statuses(time.Now()))
		}
	}()
	eventually(t, "a mark that is seen to", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return slices.ContainsFunc(s.entries, func(e *entry) bool { return slices.Contains(e.covered[:], true) })
	})
}

// calm reports whether the pods' memory is back, by the kernel's file and, where
// there is one, by the sampler.
func calm(t *testing.T, s *Set, dir string) bool {
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

// seenAbove waits until polling has seen the mark above for long enough.
func seenAbove(t *testing.T, s *Set, lane string) {
	t.Helper()
	eventually(t, "a mark that is seen above", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, e := range s.entries {
			if x := &e.expected[pods]; e.name == lane && x.above.Sub(x.aboveFrom) >= longAbove {
				return true
			}
		}
		return false
	})
}

const pods = signal.Mark(3) // the hard threshold on allocatableMemory.available

// TestLanesHere: each lane that sees to marks raises when a cgroup grows, each
// time anew.
func TestLanesHere(t *testing.T) {
	for _, lane := range []string{BPF, Memcg} {
		t.Run(lane, func(t *testing.T) {
			s, th, dir := openHere(t, lane, nil)
			covered(t, s)
			for range 3 {
				before := time.Now()
				heard := len(th.alarms())
				stop := hog(t, dir, 300<<20)
				eventually(t, "an alarm", func() bool { return len(th.alarms()) > heard })
				r := th.alarms()[heard]
				if r.Lane != lane || r.Mark != pods || r.Seen.Before(before) || r.Seen.After(time.Now()) || r.LastAbove.After(r.Seen) {
					t.Errorf("alarm %+v; want one of %s for the %v, seen after %v", r, lane, pods, before)
				}
				stop()
				eventually(t, "the end of the crossing", func() bool { return calm(t, s, dir) })
			}
			if st := statusOf(s, lane); st.State != Up || st.Missed != 0 || st.Raised < 3 {
				t.Errorf("status %+v; want it up, with three alarms and none missed", st)
			}
		})
	}
}

// TestDeafLanesHere: polling finds out a lane whose alarms are not heard, and then
// is on its toes.
func TestDeafLanesHere(t *testing.T) {
	for _, lane := range []string{BPF, Memcg} {
		t.Run(lane, func(t *testing.T) {
			s, th, dir := openHere(t, lane, &Fault{Deaf: func() bool { return true }})
			covered(t, s)
			seenAbove(t, s, lane)
			hog(t, dir, 400<<20)
			eventually(t, "a degraded lane", func() bool { return statusOf(s, lane).Missed > 0 })
			if len(th.alarms()) != 0 {
				t.Errorf("heard %v of a deaf lane; want nothing", th.alarms())
			}
			eventually(t, "the lane opened anew", func() bool {
				st := statusOf(s, lane)
				return st.Reopened > 0 && st.State == Up
			})
		})
	}
}

// TestStallsHere: a cgroup that has to reclaim again and again stalls, which the
// trigger and its total tell.
func TestStallsHere(t *testing.T) {
	s, th, dir := openHere(t, PSI, nil)
	limit := "memory.limit_in_bytes"
	if s.o.Hierarchy.Version == cgroup.V2 {
		limit = "memory.max"
	}
	write(t, filepath.Join(dir, limit), fmt.Sprint(32<<20))
	file := filepath.Join(t.TempDir(), "file")
	shell(t, dir, `dd if=/dev/zero of="$2" bs=1M count=256 && while dd if="$2" of=/dev/null bs=1M; do :; done`, file)
	eventually(t, "stalls", func() bool { return len(s.Stalls()) > 0 })
	if got := s.Stalls()[0]; got.Condition != signal.SystemMemoryContentionPressure || time.Since(got.Since) > time.Minute {
		t.Errorf("stalls %v; want the node's", got)
	}
	eventually(t, "an alarm", func() bool { return len(th.alarms()) > 0 })
	if r := th.alarms()[0]; r.Lane != PSI || r.Mark != 0 {
		t.Errorf("alarm %+v; want one of psi, of no mark", r)
	}
}

// TestReclaimHere: the OOM killer's victims are told.
func TestReclaimHere(t *testing.T) {
	s, _, dir := openHere(t, Reclaim, nil)
	hog(t, dir, 700<<20) // beyond the limit of 512 MiB
	select {
	case v := <-s.Victims():
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
	// Only a node that is out of memory makes tasks reclaim for themselves.
	if _, err := s.ReclaimStalls(); err != nil {
		t.Errorf("ReclaimStalls() = %v; want nil", err)
	}
}

// TestEventsHere is for a machine with cgroup v2.
func TestEventsHere(t *testing.T) {
	s, th, dir := openHere(t, Events, nil)
	s.Follow(map[string]bool{strings.TrimPrefix(dir, string(s.o.Hierarchy.Memory)): true})
	eventually(t, "counts that are followed", func() bool {
		c := s.Counts()
		return c.Limits != nil
	})
	hog(t, dir, 700<<20) // beyond the limit of 512 MiB
	eventually(t, "an alarm", func() bool { return len(th.alarms()) > 0 })
	eventually(t, "a kill that is counted", func() bool { return s.Counts().Limits.OOMKills > 0 })
}
