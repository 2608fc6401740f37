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
	"github.com/evictd/evictd/kernel/cgroup"
)

// testCgroup is a cgroup for one test, with the processes that it starts in it.
type testCgroup struct {
	t         testing.TB
	hierarchy *cgroup.Hierarchy
	path      string // in the hierarchy
	dirs      []string
}

// newTestCgroup makes a cgroup in the memory hierarchy, and on v1 in those of the freezer
// and pids controllers. All processes in it are killed when the test ends.
func newTestCgroup(t testing.TB) *testCgroup {
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
	// A fork bomb must not use up the machine's pids if the kill fails.
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

// run starts a shell that enters the cgroup and runs a script.
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
			p.t.Fatalf("timeout while waiting until %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

func (p *testCgroup) container(id string) evict.RunningContainer {
	p.t.Helper()
	g, err := p.hierarchy.Open(p.path)
	if err != nil {
		p.t.Fatal(err)
	}
	defer g.Close()
	return evict.RunningContainer{ID: id, Name: "c", Cgroup: p.path, CgroupID: g.ID()}
}

// fakeRuntime is a Runtime that records its calls.
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

// progressLog records the reports of an actuator.
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

// wantGone checks that an eviction went through all stages without an error.
func (h *progressLog) wantGone(t testing.TB) {
	t.Helper()
	if got := h.stages(); !slices.Equal(got, []Stage{Signalled, FirstGone, LastGone, Finished}) || h.last().Err != nil {
		t.Errorf("stages = %v, error %v; want all four in order, and none", got, h.last().Err)
	}
}

// wantKilled checks that a hard eviction of container c1 has killed a command and all other
// processes, and that the runtime was then asked to stop the container and the sandbox.
func (p *testCgroup) wantKilled(cmd *exec.Cmd, reports *progressLog, runtime *fakeRuntime) {
	p.t.Helper()
	if pids := p.pids(); len(pids) > 0 {
		p.t.Errorf("processes left in the cgroup: %v", pids)
	}
	if err := cmd.Wait(); err == nil {
		p.t.Error("the command exited by itself; want it killed")
	}
	reports.wantGone(p.t)
	slices.Sort(runtime.calls)
	if want := []string{"container c1 0s", "sandbox s"}; !slices.Equal(runtime.calls, want) {
		p.t.Errorf("runtime was asked %q; want %q", runtime.calls, want)
	}
}

func hardJob(c ...evict.RunningContainer) Job {
	return Job{Order: evict.Order{UID: "u", Pod: "default/p", Hard: true}, SandboxID: "s", Owned: true, Containers: c, Guard: &evict.Guard{}}
}

// bombScript forks as fast as it can, up to the pids limit of a testCgroup. manyProcesses
// is a little below that limit.
const (
	bombScript    = "perl -e 'while (1) { defined(fork) or select(undef, undef, undef, 0.001) }'"
	manyProcesses = 400
)

// prepare opens a handle of containers.
func (p *testCgroup) prepare(c ...evict.RunningContainer) *KillHandle {
	p.t.Helper()
	h, err := Prepare(p.hierarchy, "/proc", hardJob(c...))
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(h.Close)
	return h
}

// startReaper makes a Reaper that runs until the test ends.
func startReaper(t testing.TB) *Reaper {
	t.Helper()
	r, err := NewReaper()
	if err != nil {
		t.Fatal(err)
	}
	runReaper(t, r)
	return r
}

// runReaper runs a reaper until the test ends.
func runReaper(t testing.TB, r *Reaper) {
	t.Cleanup(func() { r.Close() })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.Run(ctx)
	}()
	t.Cleanup(func() { cancel(); <-done })
}
