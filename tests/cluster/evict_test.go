package cluster

import (
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/evictd/evictd/agent/control"
	evictsignal "github.com/evictd/evictd/agent/signal"
)

// restartTime is how long after the kill a victim is observed at least: the kubelet restarts
// a container within two seconds, and tries again after ten.
const restartTime = 5 * time.Second

// startEnforcing starts evictd and waits until it evicts beside the kubelet.
func (c *kubeNode) startEnforcing() {
	c.t.Helper()
	c.startEvictd("enforce")
	c.until("enforcement beside the kubelet", func() bool { return !c.status().Mode.DryRun })
}

// evict makes the hog of a workload's pod grow, and returns when evictd has killed the pod.
// The others are pods of the workload that are not meant.
func (c *kubeNode) evict(w *workload, others ...string) *victim {
	c.t.Helper()
	p := c.waitRunning(w, others...)
	c.until("eligible pod of "+w.name, func() bool { return c.eligible(string(p.UID)) })
	v := c.observe(w, &p.Pod)
	c.grow(&p.Pod)
	c.until("kill of "+w.name, v.ended)
	return v
}

// eligible reports whether evictd may evict a pod, and has its facts and usage.
func (c *kubeNode) eligible(uid string) bool {
	e, err := control.NewClient(c.control()).Explain(c.t.Context(), evictsignal.AllocatableMemoryAvailable)
	return err == nil && slices.ContainsFunc(e.Ranking, func(r control.Candidate) bool { return r.UID == uid && r.Facts != nil && !r.NoStats })
}

// check waits for the end of an eviction and fails the test for each problem. The kubelet may
// drop the reason of one eviction in a hundred ([tally.judge]), so one in a test may have none.
func (v *victim) check() {
	v.c.t.Helper()
	e := v.result()
	v.c.t.Logf("%s %s: %v", v.w.kind, v.w.name, &e)
	for _, p := range e.problems {
		if p.kind == problemReason {
			v.c.lost++
		}
		report := v.c.t.Errorf
		if p.kind == problemDeleted || p.kind == problemLate || p.kind == problemReason && v.c.lost <= 1 {
			report = v.c.t.Logf
		}
		report("%s %s: %s: %s", v.w.kind, v.w.name, p.kind, p.text)
	}
	if len(e.problems) > 0 {
		v.c.t.Logf("%s %s:%s", v.w.kind, v.w.name, v.history(&e))
	}
}

// TestEvictions: of a hog of each kind of workload, no process runs after the kill, its final
// status is that of an eviction, its controller replaces it, and an evicted Job does not
// fail.
func TestEvictions(t *testing.T) {
	if !inNamespaces(t) {
		return
	}
	c := startKubeNode(t)
	c.startEnforcing()
	sidecar := hogWith("sidecar", "hold", "-bytes", "8388608")
	sidecar["restartPolicy"] = "Always"
	withSidecar := podSpec("Always", hogContainer("main"))
	withSidecar["initContainers"] = []fields{sidecar, hogWith("init", "pause", "-h")} // prints its flags and ends
	inInit := podSpec("Always", hogWith("main", "hold", "-bytes", "8388608"))
	inInit["initContainers"] = []fields{sidecar, hogContainer("init")}
	workloads := []*workload{
		{"deployment", "Deployment", podSpec("Always", hogContainer("main"))},
		{"statefulset", "StatefulSet", podSpec("Always", hogContainer("main"))},
		{"daemonset", "DaemonSet", podSpec("Always", hogContainer("main"))},
		{"job", "Job", podSpec("Never", hogContainer("main"))},
		{"bare", "Pod", podSpec("Never", hogContainer("main"))},
		{"sidecar", "Deployment", withSidecar},
		{"init", "Deployment", inInit},
	}
	for _, w := range workloads {
		c.create(w)
	}
	late := &workload{"late", "StatefulSet", podSpec("Always", hogContainer("main"), hogWith("late", "hold", "-bytes", "8388608"))}
	c.create(late)
	var victims []*victim
	for _, w := range workloads {
		victims = append(victims, c.evict(w))
	}
	lateVictim := c.evictLate(late)
	time.Sleep(restartTime)
	for _, v := range append(victims, lateVictim) {
		v.check()
	}
	job := decode[struct {
		Status struct {
			Failed     int
			Conditions []struct{ Type, Message string }
		}
	}](t, c.must("GET", workloadPaths["Job"]+"/job", ""))
	if job.Status.Failed > 0 || len(job.Status.Conditions) > 0 {
		t.Errorf("status of the evicted Job = %+v; want it to run", job.Status)
	}
}

// evictLate evicts a pod of which a second container's process needs three seconds to end
// after its SIGKILL: it is traced, and a traced process waits at its end for the tracer.
func (c *kubeNode) evictLate(w *workload) *victim {
	c.t.Helper()
	p := c.waitRunning(w)
	var pid int
	c.until("second container of "+w.name, func() bool {
		i := slices.IndexFunc(c.processes(&p.Pod), func(p process) bool { return len(p.args) > 1 && p.args[1] == "hold" })
		if i >= 0 {
			pid = c.processes(&p.Pod)[i].pid
		}
		return i >= 0
	})
	release := make(chan struct{})
	traced, ended := make(chan error, 1), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // a tracer is a thread
		defer runtime.UnlockOSThread()
		_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(pid), 0, unix.PTRACE_O_TRACEEXIT, 0, 0)
		if errno != 0 {
			traced <- errno
			return
		}
		traced <- nil
		<-release
		ended <- unix.PtraceDetach(pid)
	}()
	if err := <-traced; err != nil {
		c.t.Fatalf("trace process %d: %v", pid, err)
	}
	c.until("eligible pod of "+w.name, func() bool { return c.eligible(string(p.UID)) })
	v := c.observe(w, &p.Pod)
	c.grow(&p.Pod)
	c.until("kill of the first container of "+w.name, func() bool { return len(c.hogs(&p.Pod)) == 0 })
	time.Sleep(3 * time.Second)
	if v.ended() {
		c.t.Errorf("process %d has ended; want it to wait for its tracer", pid)
	}
	close(release)
	if err := <-ended; err != nil {
		c.t.Fatalf("stop tracing process %d: %v", pid, err)
	}
	c.until("end of "+w.name, v.ended)
	return v
}

// TestEvictionFaults: evictions end as they must if a part of the system is stopped or
// killed between the kill and the report.
func TestEvictionFaults(t *testing.T) {
	if !inNamespaces(t) {
		return
	}
	c := startKubeNode(t)
	c.startEnforcing()
	workloads := []*workload{
		{"paused", "StatefulSet", podSpec("Always", hogContainer("main"))},
		{"agent", "Deployment", podSpec("Always", hogContainer("main"))},
		{"reporter", "StatefulSet", podSpec("Always", hogContainer("main"))},
		{"kubelet", "Deployment", podSpec("Always", hogContainer("main"))},
	}
	for _, w := range workloads {
		c.create(w)
	}
	c.pausedServer(workloads[0])
	c.killedAgent(workloads[1])
	c.killedReporter(workloads[2])
	c.killedKubelet(workloads[3])
}

// whilePaused evicts a pod while the API server is stopped, and runs f before it continues.
func (c *kubeNode) whilePaused(w *workload, f func(*victim)) {
	c.t.Helper()
	p := c.waitRunning(w)
	c.until("eligible pod of "+w.name, func() bool { return c.eligible(string(p.UID)) })
	c.pauseAPI()
	v := c.observe(w, &p.Pod)
	c.grow(&p.Pod)
	c.until("kill of "+w.name, v.ended)
	f(v)
	c.resumeAPI()
	v.check()
}

func (c *kubeNode) pausedServer(w *workload) {
	c.t.Helper()
	c.whilePaused(w, func(*victim) { time.Sleep(10 * time.Second) })
}

func (c *kubeNode) killedAgent(w *workload) {
	c.t.Helper()
	c.whilePaused(w, func(v *victim) {
		v.interrupted = true
		c.until("fence of "+w.name, v.isFenced)
		kill(c.t, c.cmd)            // the order may not be saved yet: the mark of the fence has it
		time.Sleep(3 * time.Second) // the kubelet tries to restart the pod
		c.startAgent()
	})
}

func (c *kubeNode) killedReporter(w *workload) {
	c.t.Helper()
	c.whilePaused(w, func(*victim) {
		kill(c.t, c.kube)
		c.startKube()
	})
}

// killedKubelet restarts the kubelet while the pod is fenced and not reported yet.
func (c *kubeNode) killedKubelet(w *workload) {
	c.t.Helper()
	p := c.waitRunning(w)
	c.until("eligible pod of "+w.name, func() bool { return c.eligible(string(p.UID)) })
	signal(c.t, c.kube, syscall.SIGSTOP)
	v := c.evict(w)
	kill(c.t, c.kubelet)
	c.startKubelet()
	c.until("restart that fails", func() bool {
		states := c.events.of(string(p.UID))
		return slices.ContainsFunc(states[len(states)-1].Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
			return s.State.Waiting != nil && s.State.Waiting.Reason != "ContainerCreating"
		})
	})
	signal(c.t, c.kube, syscall.SIGCONT)
	v.check()
}
