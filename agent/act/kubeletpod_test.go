package act

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/kerneltest"
)

// kubeletPod is a pod's cgroup, named as the kubelet names it, with a cgroup for the sandbox
// and for each container.
type kubeletPod struct {
	*testCgroup          // of the test, above kubepods
	uid, pod    string   // its UID and its cgroup
	made        []string // paths of all cgroups, parents first
	job         Job
	sandbox     *exec.Cmd
}

// newKubeletPod makes a pod with a sandbox and two containers with two processes each.
func newKubeletPod(t *testing.T) *kubeletPod {
	t.Helper()
	p := &kubeletPod{testCgroup: newTestCgroup(t), uid: "8f2a6d0e-31c4"}
	t.Cleanup(p.removeAll)
	p.make(p.path + "/kubepods")
	p.pod = p.path + "/kubepods/pod" + p.uid
	p.make(p.pod)
	p.sandbox = p.start("sandbox", "exec sleep 1000")
	p.job = Job{
		Order: evict.Order{UID: p.uid, Pod: "default/p", Hard: true}, SandboxID: "s", Reported: true,
		SandboxPID: p.sandbox.Process.Pid, SandboxStart: startOf(t, p.sandbox.Process.Pid),
		Guard: &evict.Guard{
			Protected: map[int]string{1: "pid 1", os.Getpid(): "evictd"}, StartTimes: map[int]uint64{},
			Inits: map[int]string{p.sandbox.Process.Pid: "s"},
		},
	}
	for _, id := range []string{"c1", "c2"} {
		cmd := p.start(id, "sleep 1000 & wait")
		g, err := p.hierarchy.Open(p.pod + "/" + id)
		if err != nil {
			t.Fatal(err)
		}
		p.job.Containers = append(p.job.Containers, evict.RunningContainer{
			ID: id, Name: id, Cgroup: p.pod + "/" + id, CgroupID: g.ID(), InitPID: cmd.Process.Pid, InitStart: startOf(t, cmd.Process.Pid),
		})
		g.Close()
		p.job.Guard.Inits[cmd.Process.Pid] = id
		p.waitFor(id+" has two processes", func() bool { return len(p.in(id)) == 2 })
	}
	return p
}

// roots are the mounts in which testCgroup has its cgroup.
func (p *kubeletPod) roots() (roots []string) {
	for _, dir := range p.dirs {
		roots = append(roots, strings.TrimSuffix(dir, p.path))
	}
	return roots
}

func (p *kubeletPod) make(path string) {
	p.t.Helper()
	for _, root := range p.roots() {
		if p.hierarchy.Version == cgroup.V2 {
			// On v2 a cgroup has the controllers that its parent enables.
			if err := kerneltest.EnableControllers(root+filepath.Dir(path), "memory", "pids"); err != nil {
				p.t.Fatal(err)
			}
		}
		if err := os.Mkdir(root+path, 0o755); err != nil {
			p.t.Fatal(err)
		}
	}
	p.made = append(p.made, path)
}

func (p *kubeletPod) removeAll() {
	for _, path := range slices.Backward(p.made) {
		for _, root := range p.roots() {
			(&testCgroup{t: p.t, dirs: []string{root + path}}).remove()
		}
	}
}

// start runs a script in a new cgroup below the pod's.
func (p *kubeletPod) start(name, script string) *exec.Cmd {
	p.t.Helper()
	p.make(p.pod + "/" + name)
	return p.run(name, script)
}

// run runs a script in a cgroup below the pod's.
func (p *kubeletPod) run(name, script string) *exec.Cmd {
	p.t.Helper()
	at := testCgroup{t: p.t, hierarchy: p.hierarchy, path: p.pod + "/" + name}
	for _, root := range p.roots() {
		at.dirs = append(at.dirs, root+at.path)
	}
	return at.run(script)
}

// startMonitor starts a process in a cgroup below the pod's that the guard has as the monitor of a
// container.
func (p *kubeletPod) startMonitor() (pid int) {
	p.t.Helper()
	pid = p.start("monitor", "exec sleep 1000").Process.Pid
	p.job.Guard.Protected[pid], p.job.Guard.StartTimes[pid] = "the shim of container c1", startOf(p.t, pid)
	return pid
}

// in returns the processes of a cgroup below the pod's.
func (p *kubeletPod) in(name string) []int { return p.pidsIn(p.roots()[0] + p.pod + "/" + name) }

// fencer is a Fencer that records its calls.
type fencer struct {
	mu    sync.Mutex
	jobs  []Job
	at    time.Time
	err   error
	block chan struct{} // if not nil, Fence returns when it is closed
	// forbidden is what Allowed returns.
	forbidden error
	// answered and waiting are what Answered returns.
	answered, waiting bool
}

func (f *fencer) Allowed(*Job) error { return f.forbidden }

func (f *fencer) Answered(string) (answered, waiting bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.answered, f.waiting
}

func (f *fencer) Fence(job *Job) error {
	f.mu.Lock()
	f.jobs, f.at = append(f.jobs, *job), time.Now()
	f.mu.Unlock()
	if f.block != nil {
		<-f.block
	}
	return f.err
}

func (f *fencer) calls() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.jobs)
}

// killer returns a Killer whose runtime fails the test when it is called.
func (p *kubeletPod) killer(reports *progressLog, f Fencer) *Killer {
	runtime := &fakeRuntime{}
	p.t.Cleanup(func() {
		if len(runtime.calls) > 0 {
			p.t.Errorf("the runtime was asked %q; want nothing", runtime.calls)
		}
	})
	k := NewKiller(p.hierarchy, "/proc", runtime, reports.record)
	k.Fencer = f
	return k
}

// reportedKillPaths are killPaths for a pod of the kubelet.
func reportedKillPaths(p *kubeletPod, k *Killer) map[string]func() {
	kills := map[string]func(){}
	for kind, kill := range killPaths {
		kills[kind] = func() { kill(p.testCgroup, k, p.job) }
	}
	return kills
}

// eachReportedKill runs a test for each way to kill a pod of the kubelet.
func eachReportedKill(t *testing.T, test func(t *testing.T, p *kubeletPod, k *Killer, f *fencer, reports *progressLog, kill func())) {
	for kind := range killPaths {
		t.Run(kind, func(t *testing.T) {
			p, f, reports := newKubeletPod(t), &fencer{}, &progressLog{}
			k := p.killer(reports, f)
			test(t, p, k, f, reports, reportedKillPaths(p, k)[kind])
		})
	}
}
