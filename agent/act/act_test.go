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
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
)

// place is a cgroup of the test's own, with the processes that it started in
// it.
type testCgroup struct {
	t         *testing.T
	hierarchy *cgroup.Hierarchy
	path      string // in the hierarchy
	dirs      []string
}

// newPlace makes a cgroup in the tree that carries memory, and on v1 in the
// freezer's and the pids controller's. Whatever is in it dies with the test.
func newTestCgroup(t *testing.T) *testCgroup {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: to make a cgroup")
	}
	h, err := cgroup.Find("/sys/fs/cgroup")
	if err != nil {
		t.Skip("needs cgroups: ", err)
	}
	p := &testCgroup{t: t, hierarchy: h, path: fmt.Sprintf("/evictd-test-act-%d-%d", os.Getpid(), time.Now().UnixNano())}
	roots := []string{"/sys/fs/cgroup"}
	if h.Version != cgroup.V2 {
		roots = []string{"/sys/fs/cgroup/memory", "/sys/fs/cgroup/freezer", "/sys/fs/cgroup/pids"}
	}
	t.Cleanup(p.remove)
	for _, root := range roots {
		dir := root + p.path
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Skip("needs to make a cgroup: ", err)
		}
		p.dirs = append(p.dirs, dir)
	}
	// What forks here must not take the machine's pids if the kill fails.
	limit := filepath.Join(p.dirs[len(p.dirs)-1], "pids.max")
	if err := os.WriteFile(limit, []byte("500"), 0); err != nil {
		t.Skip("needs the pids controller: ", err)
	}
	return p
}

func (p *testCgroup) remove() {
	for _, dir := range p.dirs {
		os.WriteFile(filepath.Join(dir, "freezer.state"), []byte("THAWED"), 0)
		os.WriteFile(filepath.Join(dir, "cgroup.freeze"), []byte("0"), 0)
	}
	for _, dir := range p.dirs {
		for range 500 {
			for _, pid := range p.pidsIn(dir) {
				syscall.Kill(pid, syscall.SIGKILL)
			}
			if err := os.Remove(dir); err == nil || errors.Is(err, os.ErrNotExist) {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		if _, err := os.Stat(dir); err == nil {
			p.t.Errorf("left behind: %s", dir)
		}
	}
}

func (p *testCgroup) pidsIn(dir string) []int {
	content, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return nil
	}
	var pids []int
	for _, field := range splitLines(string(content)) {
		if pid, err := strconv.Atoi(field); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

func splitLines(s string) (lines []string) {
	start := 0
	for i := range s {
		if s[i] == '\n' {
			lines = append(lines, s[start:i])
			start = i + 1
		}
	}
	return lines
}

func (p *testCgroup) pids() []int { return p.pidsIn(p.dirs[0]) }

// run starts a command in the cgroup: a shell enters it first.
func (p *testCgroup) run(script string) *exec.Cmd {
	p.t.Helper()
	enter := ""
	for _, dir := range p.dirs {
		enter += fmt.Sprintf("echo $$ > %s/cgroup.procs; ", dir)
	}
	cmd := exec.Command("sh", "-c", enter+script)
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	p.waitFor("the command is in the cgroup", func() bool { return slices.Contains(p.pids(), cmd.Process.Pid) })
	return cmd
}

func (p *testCgroup) waitFor(what string, ok func() bool) {
	p.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			p.t.Fatalf("waited in vain until %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

func (p *testCgroup) container(id string) evict.ContainerHandle {
	p.t.Helper()
	g, err := p.hierarchy.Open(p.path)
	if err != nil {
		p.t.Fatal(err)
	}
	defer g.Close()
	return evict.ContainerHandle{ID: id, Name: "c", Cgroup: p.path, CgroupID: g.ID()}
}

// stops is a Runtime that notes what it was asked.
type fakeRuntime struct {
	mu    sync.Mutex
	calls []string
	hang  bool
	err   error
}

func (s *fakeRuntime) record(call string, ctx context.Context) error {
	s.mu.Lock()
	s.calls = append(s.calls, call)
	s.mu.Unlock()
	if s.hang {
		<-ctx.Done()
		return ctx.Err()
	}
	return s.err
}

func (s *fakeRuntime) StopContainer(ctx context.Context, id string, grace time.Duration) error {
	return s.record(fmt.Sprintf("container %s %s", id, grace), ctx)
}

func (s *fakeRuntime) StopSandbox(ctx context.Context, id string) error {
	return s.record("sandbox "+id, ctx)
}

// heard collects an actuator's reports.
type progressLog struct {
	mu      sync.Mutex
	reports []Progress
}

func (h *progressLog) record(p Progress) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.reports = append(h.reports, p)
}

func (h *progressLog) stages() (stages []Stage) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range h.reports {
		stages = append(stages, p.Stage)
	}
	return stages
}

func (h *progressLog) last() Progress {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.reports) == 0 {
		return Progress{}
	}
	return h.reports[len(h.reports)-1]
}

func hardJob(c ...evict.ContainerHandle) Job {
	return Job{Order: evict.Order{UID: "u", Pod: "default/p", Hard: true}, SandboxID: "s", Owned: true, Containers: c, Guard: &evict.Guard{}}
}

// bombScript forks as fast as it can, up to the limit of the place, and manyProcesses
// is not far below that.
const (
	bombScript    = "perl -e 'while (1) { defined(fork) or select(undef, undef, undef, 0.001) }'"
	manyProcesses = 400
)

func TestKill(t *testing.T) {
	for _, tc := range []struct {
		name, script string
		processes    int // that there are before it is killed
	}{
		{"one process", "exec sleep 1000", 1},
		{"a tree", "sleep 1000 & sleep 1000 & (sleep 1000 & wait) & wait", 1},
		{"ignores what it can", "trap '' TERM INT HUP; sleep 1000 & while :; do wait; done", 1},
		{"forks while it is killed", "while :; do sleep 1000 & sleep 0.001; done", 1},
		{"fork bomb", "exec " + bombScript, manyProcesses},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newTestCgroup(t)
			// A fork bomb of our own making stops by itself.
			cmd := p.run("ulimit -t 20; " + tc.script)
			p.waitFor("there are enough processes", func() bool { return len(p.pids()) >= tc.processes })
			var reports progressLog
			runtime := &fakeRuntime{}
			k := NewKiller(p.hierarchy, "/proc", runtime, reports.record)
			k.Evict(t.Context(), hardJob(p.container("c1")))
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
			if last := reports.last(); last.Err != nil || last.Processes < 1 {
				t.Errorf("last report = %+v; want processes and no error", last)
			}
			slices.Sort(runtime.calls)
			if want := []string{"container c1 0s", "sandbox s"}; !slices.Equal(runtime.calls, want) {
				t.Errorf("runtime was asked %q; want %q", runtime.calls, want)
			}
		})
	}
}

// A frozen process of cgroup v1 does not die before it runs again.
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
		t.Errorf("left in the cgroup: %v", pids)
	}
	if last := reports.last(); last.Stage != Finished || last.Err != nil {
		t.Errorf("last report = %+v; want it finished", last)
	}
}

// Of a fork bomb that is frozen while it is signalled nobody is left, although
// nobody signals anybody afterwards.
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
	p.waitFor("all are signalled", func() bool { // each has to run to be frozen
		all, err := v.killFrozen("/proc")
		if err != nil {
			t.Fatal(err)
		}
		return all
	})
	p.waitFor("all have gone", func() bool { return len(p.pids()) == 0 })
	if frozen, err := v.group.Frozen(); err != nil || frozen {
		t.Errorf("Frozen() = %v, %v; want it thawed", frozen, err)
	}
}

// The freezer's cgroup of the same path may hold others, who are not to be stopped.
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
		t.Errorf("freezesItsOwn() = %v, %v; want true", own, err)
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
		t.Errorf("freezesItsOwn() beside another = %v, %v; want false", own, err)
	}
	if all, err := v.killFrozen("/proc"); err != nil || all {
		t.Errorf("killFrozen() beside another = %v, %v; want nothing done", all, err)
	}
	if !slices.Contains(p.pids(), v.procs[0]) {
		t.Error("the container was killed; want it left to the rounds of drain")
	}
}

// What must live is not killed, and neither is anything beside it.
func TestKillRefused(t *testing.T) {
	p := newTestCgroup(t)
	cmd := p.run("sleep 1000 & wait")
	first := cmd.Process.Pid
	p.waitFor("two processes run", func() bool { return len(p.pids()) == 2 })
	right := p.container("c1")
	wrong := right
	wrong.CgroupID++
	for name, tc := range map[string]struct {
		container evict.ContainerHandle
		guard     evict.Guard
		gone      bool
		asked     []string // of the runtime
	}{
		"holds evictd's like":        {right, evict.Guard{Never: map[int]string{first: "the shim of container c9"}}, false, nil},
		"holds a second container":   {right, evict.Guard{Inits: map[int]string{first: "c2"}}, false, []string{"container c1 0s", "sandbox s"}},
		"another cgroup of the name": {wrong, evict.Guard{}, true, []string{"container c1 0s", "sandbox s"}},
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
				last := reports.last()
				var refusal *WrongVictimError
				switch {
				case tc.gone && last.Err != nil:
					t.Errorf("%s: %+v; want nothing to be done for a cgroup that is gone", kind, last)
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

// A container whose cgroup is not proven is left to the runtime.
func TestKillUnproven(t *testing.T) {
	h := &cgroup.Hierarchy{}
	unproven := evict.ContainerHandle{ID: "c1", Name: "c", Unproven: "its cgroup holds another container"}
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

// A kubelet's sandbox is not evictd's to stop.
func TestKubeletSandboxNotStopped(t *testing.T) {
	runtime := &fakeRuntime{}
	k := NewKiller(&cgroup.Hierarchy{}, "/proc", runtime, func(Progress) {})
	job := hardJob(evict.ContainerHandle{ID: "c1", Name: "c"})
	job.Owned = false
	k.Evict(t.Context(), job)
	k.Wait()
	if want := []string{"container c1 0s"}; !slices.Equal(runtime.calls, want) {
		t.Errorf("runtime was asked %q; want %q", runtime.calls, want)
	}
}

func TestHardenSoftEviction(t *testing.T) {
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
		t.Fatal("a soft eviction killed by itself")
	}
	job.Order.Hard = true
	k.Harden(ctx, job)
	p.waitFor("the pod is gone although the runtime hangs", func() bool { return slices.Contains(reports.stages(), LastGone) })
	if pids := p.pids(); len(pids) > 0 {
		t.Errorf("left in the cgroup: %v", pids)
	}
	cancel()
	k.Wait()
	if got := reports.stages(); !slices.Contains(got, Hardened) {
		t.Errorf("stages = %v; want Hardened among them", got)
	}
}

// A pod that came back is asked to stop anew: the end that is reported is the
// newer request's, and a kill gives that one up.
func TestSoftEvictionAgain(t *testing.T) {
	var reports progressLog
	runtime := &fakeRuntime{hang: true}
	k := NewKiller(&cgroup.Hierarchy{}, "/proc", runtime, reports.record)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	job := hardJob(evict.ContainerHandle{ID: "c1", Unproven: "for the test"})
	job.Order.Hard, job.Order.Grace = false, 30*time.Second
	k.Evict(ctx, job)
	k.Evict(ctx, job)
	k.mu.Lock()
	newer := k.soft[job.Order.UID]
	k.mu.Unlock()
	time.Sleep(50 * time.Millisecond) // the first has been given up
	k.mu.Lock()
	still := k.soft[job.Order.UID]
	k.mu.Unlock()
	if newer == nil || still != newer {
		t.Errorf("request = %p after the first was given up; want the second, %p", still, newer)
	}
	if got := reports.stages(); slices.Contains(got, Finished) || slices.Contains(got, Refused) {
		t.Errorf("stages = %v; want no end", got)
	}
	cancel()
	k.Wait()
}

// A runtime that does not stop a pod softly does not save it from being killed.
func TestHardenAfterRefusedStop(t *testing.T) {
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
	k.Harden(t.Context(), job)
	k.Wait()
	if pids := p.pids(); len(pids) > 0 {
		t.Errorf("left in the cgroup: %v", pids)
	}
}

// A pid that was signalled once may come to name another process of the cgroup,
// which has to die as well.
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
		v.signalled[pid] = true // those before them
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
	job := hardJob(evict.ContainerHandle{ID: "c1", Name: "c"})
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
	d.Harden(t.Context(), hardJob(p.container("c1")))
	if last := reports.last(); last.Stage != Finished || last.Processes != 2 || last.Err != nil {
		t.Errorf("report = %+v; want two processes counted", last)
	}
	if after := p.pids(); !slices.Equal(before, after) {
		t.Errorf("processes went from %v to %v", before, after)
	}
}
