package cluster

import (
	"runtime"
	"slices"
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
	v := c.grown(w, others...)
	c.until("kill of "+w.name, v.ended)
	return v
}

// grown makes the hog of a workload's pod grow once evictd may evict the pod.
func (c *kubeNode) grown(w *workload, others ...string) *victim {
	c.t.Helper()
	p := c.waitEligible(w, others...)
	v := c.observe(w, &p.Pod)
	c.grow(&p.Pod)
	return v
}

// waitEligible is waitRunning for a pod that evictd may evict.
func (c *kubeNode) waitEligible(w *workload, others ...string) podState {
	c.t.Helper()
	p := c.waitRunning(w, others...)
	c.until("eligible pod of "+w.name, func() bool { return c.eligible(string(p.UID)) })
	return p
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
// after its SIGKILL.
func (c *kubeNode) evictLate(w *workload) *victim {
	c.t.Helper()
	v, end := c.exiting(w)
	time.Sleep(3 * time.Second)
	end()
	c.until("end of "+w.name, v.ended)
	return v
}

// exiting evicts a pod of which the process of a second container ends only when end is called.
func (c *kubeNode) exiting(w *workload) (v *victim, end func()) {
	c.t.Helper()
	p := c.waitRunning(w)
	release := c.traceSecond(w, &p.Pod)
	v = c.grown(w)
	c.until("kill of the first container of "+w.name, func() bool { return len(c.hogs(&p.Pod)) == 0 })
	return v, func() {
		c.t.Helper()
		if v.ended() {
			c.t.Errorf("all processes of %s have ended; want one to wait for its tracer", w.name)
		}
		release()
	}
}

// traceSecond traces the process of a pod's second container until release is called: a traced process waits at its end
// for the tracer.
func (c *kubeNode) traceSecond(w *workload, p *corev1.Pod) (release func()) {
	c.t.Helper()
	var pid int
	c.until("second container of "+w.name, func() bool {
		all := c.processes(p)
		i := slices.IndexFunc(all, func(p process) bool { return len(p.args) > 1 && p.args[1] == "hold" })
		if i >= 0 {
			pid = all[i].pid
		}
		return i >= 0
	})
	detach := make(chan struct{})
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
		<-detach
		ended <- unix.PtraceDetach(pid)
	}()
	if err := <-traced; err != nil {
		c.t.Fatalf("trace process %d: %v", pid, err)
	}
	return func() {
		c.t.Helper()
		close(detach)
		if err := <-ended; err != nil {
			c.t.Fatalf("stop tracing process %d: %v", pid, err)
		}
	}
}

// whilePaused evicts a pod while the API server is stopped, and runs f before it continues.
func (c *kubeNode) whilePaused(w *workload, f func(*victim)) {
	c.t.Helper()
	c.waitEligible(w)
	c.pauseAPI()
	v := c.evict(w)
	f(v)
	c.resumeAPI()
	v.check()
}
