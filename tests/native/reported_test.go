package native_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/act"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/loop"
	"github.com/evictd/evictd/agent/podfence"
	"github.com/evictd/evictd/agent/pods"
	"github.com/evictd/evictd/cri"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/tests/node"
)

// These tests kill pods of a kubelet as evictd does when evictd-kube reports the eviction, with the inventory, the killer
// and the fences of this process.

// reportedKill is what kills the pods of a node.
type reportedKill struct {
	t         *testing.T
	hierarchy *cgroup.Hierarchy
	inventory *pods.Inventory
	fences    *podfence.Table
	killer    *act.Killer

	mu       sync.Mutex
	reports  []act.Progress
	asked    []string // of the runtime
	fencedAt time.Time
}

func newReportedKill(t *testing.T, n *node.Node) *reportedKill {
	t.Helper()
	h, err := cgroup.Find("/sys/fs/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	client, err := cri.Connect(n.Endpoint())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	k := &reportedKill{t: t, hierarchy: h, inventory: pods.New(pods.Options{Hierarchy: h, Procfs: "/proc", Runtime: pods.NewCRI(client, n.Endpoint())})}
	t.Cleanup(func() { k.inventory.Close() })
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	// Where evictd has its own.
	marks, err := os.MkdirTemp("/run", "evictd-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(marks) })
	k.fences, _, err = podfence.Open(podfence.Options{File: filepath.Join(marks, "fences"), BootID: string(boot[:36]), Hierarchy: h})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.fences.Close() })
	k.killer = act.NewKiller(h, "/proc", k, func(p act.Progress) {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.reports = append(k.reports, p)
	})
	k.killer.Fencer = k
	return k
}

// Allowed implements act.Fencer.
func (k *reportedKill) Allowed(*act.Job) error { return nil }

// Answered implements act.Fencer.
func (k *reportedKill) Answered(string) (answered, waiting bool) { return false, false }

// Fence implements act.Fencer.
func (k *reportedKill) Fence(job *act.Job) error {
	var containers []string
	for _, c := range job.Containers {
		containers = append(containers, c.Cgroup)
	}
	f, err := k.fences.Prepare(job.Order.UID, containers)
	if err != nil {
		return err
	}
	defer f.Close()
	err = f.Set("order", "")
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fencedAt = time.Now()
	return err
}

// StopContainer and StopSandbox implement act.Runtime.
func (k *reportedKill) StopContainer(_ context.Context, id string, _ time.Duration) error {
	return k.ask("stop container " + id)
}

func (k *reportedKill) StopSandbox(_ context.Context, id string) error {
	return k.ask("stop sandbox " + id)
}

func (k *reportedKill) ask(call string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.asked = append(k.asked, call)
	return nil
}

// job returns the job of a hard eviction of a pod, as the loop makes it.
func (k *reportedKill) job(p *pod) act.Job {
	k.t.Helper()
	if err := k.inventory.Sync(k.t.Context()); err != nil {
		k.t.Fatal(err)
	}
	s := k.inventory.Measure(time.Now())
	job := loop.Job(evict.Order{UID: p.UID, Pod: p.key(), Hard: true}, &s, k.inventory.Guard())
	if job.Owned || len(job.Containers) == 0 || job.SandboxPID != p.PID {
		k.t.Fatalf("job = %+v; want one of a kubelet's pod with sandbox process %d", job, p.PID)
	}
	for _, c := range job.Containers {
		if c.Cgroup == "" {
			k.t.Fatalf("container %s: %s; want its cgroup proven", c.Name, c.Unproven)
		}
	}
	job.Reported = true
	return job
}

// kill kills the pod of a job and returns when the eviction has finished.
func (k *reportedKill) kill(job act.Job) {
	k.killer.Evict(k.t.Context(), job)
	k.killer.Wait()
}

// stages returns the stages that were reported, and the last error.
func (k *reportedKill) stages() (stages []act.Stage, err error) {
	for _, p := range k.reports {
		stages = append(stages, p.Stage)
		err = p.Err
	}
	return stages, err
}

// sleepIn starts a process in a new cgroup below the pod's.
func sleepIn(t *testing.T, h *cgroup.Hierarchy, p *pod) (pid int) {
	t.Helper()
	dir := h.Memory.Path(p.Cgroup, "extra")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		eventually(t, "removal of "+dir, func() bool { return os.Remove(dir) == nil })
	})
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0); err != nil {
		t.Fatal(err)
	}
	return cmd.Process.Pid
}

// TestReportedKill: of a kubelet's pod no process is left but the sandbox's and a guarded one. No container of it starts
// until the fence is lifted, and the runtime was not asked to stop it.
//
// Complexity: one pod goes through all stages of an eviction.
//
//gocyclo:ignore
func TestReportedKill(t *testing.T) {
	n := limitedNode(t, gibibyte)
	spec := node.PodSpec{Name: "web", Annotations: kubeletAnnotations("api"), Containers: []node.ContainerSpec{
		{Name: "main", Args: holdArgs(16 * mebibyte)}, {Name: "second"}, {Name: "sidecar"},
	}}
	other := runPod(t, n, node.PodSpec{Name: "other", Annotations: kubeletAnnotations("api"), Containers: oneContainer(nil)})
	p := runPod(t, n, spec)
	k := newReportedKill(t, n)
	job := k.job(p)
	// What follows starts after the job was made.
	startCreated, err := n.CreateContainer(t.Context(), p.Pod, spec, node.ContainerSpec{Name: "created"})
	if err != nil {
		t.Fatal(err)
	}
	startNew, err := n.CreateContainer(t.Context(), p.Pod, spec, node.ContainerSpec{Name: "new"})
	if err != nil {
		t.Fatal(err)
	}
	if err := startNew(t.Context()); err != nil {
		t.Fatal(err)
	}
	created := createWithRunc(t, n, p)
	guarded := sleepIn(t, k.hierarchy, p)
	guard := *job.Guard
	guard.Protected = maps.Clone(guard.Protected)
	guard.Protected[guarded] = "a kubelet"
	job.Guard = &guard
	if got := len(processes(t, p.Cgroup)); got != 7 {
		t.Fatalf("%d processes in the pod; want 7: the sandbox, three containers, a new one, one of runc and a guarded one", got)
	}

	k.kill(job)
	p.containersMustDie()
	if got, want := processes(t, p.Cgroup), []int{p.PID, guarded}; !slices.Equal(got, slices.Sorted(slices.Values(want))) {
		t.Errorf("processes left in the pod: %v; want the sandbox's and the guarded one, %v", got, want)
	}
	mustLive(t, other)
	stages, err := k.stages()
	wrong := (*act.WrongVictimError)(nil)
	if want := []act.Stage{act.Signalled, act.FirstGone, act.LastGone, act.Finished}; !slices.Equal(stages, want) || !errors.As(err, &wrong) || wrong.PID != guarded {
		t.Errorf("stages = %v, error %v; want %v, and an error about the guarded process", stages, err, want)
	}

	for what, start := range map[string]func() error{
		"the container created before the kill": func() error { return startCreated(t.Context()) },
		"the container that runc created": func() error {
			out, err := created.run(t.Context(), "start", created.id)
			if err != nil {
				err = fmt.Errorf("%w: %s", err, out)
			}
			return err
		},
		"a new container": func() error {
			start, err := n.CreateContainer(t.Context(), p.Pod, spec, node.ContainerSpec{Name: "again"})
			if err != nil {
				t.Fatal(err)
			}
			return start(t.Context())
		},
	} {
		if err := start(); err == nil {
			t.Errorf("%s has started; want it refused", what)
		} else {
			t.Logf("%s: %v", what, err)
		}
	}
	if got := processes(t, p.Cgroup); len(got) != 2 {
		t.Errorf("processes after the attempts: %v; want two", got)
	}
	if report, err := k.fences.Check(); len(report.Set) != 1 || len(report.Changed) > 0 || err != nil {
		t.Errorf("Check() = %+v, %v; want the fence set", report, err)
	}

	eventually(t, "exit of the containers in CRI", func() bool {
		now, err := n.Pod(t.Context(), p.ID)
		if err != nil {
			t.Fatal(err)
		}
		exited := 0
		for _, c := range now.Containers {
			if !c.Running && c.ExitCode == 137 {
				exited++
			}
		}
		return now.Ready && exited == 4 // three and the new one
	})
	if len(k.asked) > 0 {
		t.Errorf("the runtime was asked %q; want nothing", k.asked)
	}

	if lifted, err := k.fences.LiftAll(); lifted != 1 || err != nil {
		t.Fatalf("LiftAll() = %d, %v; want 1", lifted, err)
	}
	start, err := n.CreateContainer(t.Context(), p.Pod, spec, node.ContainerSpec{Name: "after"})
	if err != nil {
		t.Fatal(err)
	}
	if err := start(t.Context()); err != nil {
		t.Errorf("container after the fence was lifted: %v", err)
	}
}

// TestFenceIsFast: the fence is set soon after the kill, on both ways to kill.
func TestFenceIsFast(t *testing.T) {
	n := limitedNode(t, gibibyte)
	k := newReportedKill(t, n)
	reaper, err := act.NewReaper()
	if err != nil {
		t.Fatal(err)
	}
	defer reaper.Close()
	fast := act.NewFastKiller(reaper)
	defer fast.Close()
	spec := node.PodSpec{Name: "web", Annotations: kubeletAnnotations("api"), Containers: oneContainer(holdArgs(mebibyte))}
	p := runPod(t, n, spec)
	kills := 20
	if os.Getenv("EVICTD_TEST_VM") != "" {
		kills = 4 // each takes seconds there
	}
	var took []time.Duration
	for i := range kills {
		job := k.job(p)
		k.reports = nil
		if i%2 == 0 {
			k.kill(job)
		} else {
			handle, err := act.Prepare(k.hierarchy, "/proc", job)
			if err != nil {
				t.Fatal(err)
			}
			k.killer.Follow(t.Context(), job, handle, fast.Kill(handle, job.Guard))
			k.killer.Wait()
		}
		if stages, err := k.stages(); !slices.Contains(stages, act.LastGone) || err != nil {
			t.Fatalf("stages = %v, %v; want the pod killed", stages, err)
		}
		took = append(took, k.fencedAt.Sub(k.reports[0].Time))
		if _, err := k.fences.LiftAll(); err != nil {
			t.Fatal(err)
		}
		start, err := n.CreateContainer(t.Context(), p.Pod, spec, node.ContainerSpec{Name: fmt.Sprint("main", i), Args: holdArgs(mebibyte)})
		if err != nil {
			t.Fatal(err)
		}
		if err := start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(took)
	t.Logf("from the first SIGKILL to the fence, of %d kills: median %v, all %v", kills, took[len(took)/2], took)
	if median := took[len(took)/2]; median > node.ScaleTimeout(time.Second) {
		t.Errorf("median = %v; want less than a second", median)
	}
}
