package native_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/meminfo"
	"github.com/evictd/evictd/tests/node"
)

// reserve is the memory that must stay available on the machine next to a hog: a quarter of the total, at most 4 GiB.
func reserve(total int64) int64 { return min(total/4, 4*gibibyte) }

// nodeHog returns the size of a hog for memory.available: an eighth of the machine's memory, at most 2 GiB.
func nodeHog(t *testing.T) int64 {
	t.Helper()
	info, err := meminfo.Read(kernel.FS("/proc"))
	if err != nil {
		t.Fatal(err)
	}
	return min(int64(info.MemTotal)/8, 2*gibibyte)
}

// nodeThreshold returns a hard threshold on memory.available that a hog of that size crosses after half of its growth,
// so that other processes on the machine have little influence. The node and its pods must be running.
func nodeThreshold(t *testing.T, hog int64) string {
	t.Helper()
	available, activeFile := nodeAvailable(t, hog)
	// memoryAccounting ignores file cache: other processes determine its size, and evictd would wait while file cache
	// explains the crossing.
	return fmt.Sprintf("memoryAccounting: available\nenforceNodeAllocatable: []\nevictionHard: {memory.available: %d}", available+activeFile-hog/2)
}

// nodeAvailable returns memory.available as a kubelet computes it, and the active file cache, which the kubelet counts
// as used. It skips the test if the machine has too little memory for a hog of that size.
func nodeAvailable(t *testing.T, hog int64) (available, activeFile int64) {
	t.Helper()
	info, err := meminfo.Read(kernel.FS("/proc"))
	if err != nil {
		t.Fatal(err)
	}
	if available, needed := int64(info.MemAvailable), hog+reserve(int64(info.MemTotal)); available < needed {
		t.Skipf("needs %d MiB of available memory: there are %d", needed/mebibyte, available/mebibyte)
	}
	root := openCgroup(t, "/")
	defer root.Close()
	memory, err := root.Memory()
	if err != nil {
		t.Fatal(err)
	}
	return int64(info.MemTotal) - int64(info.Hugetlb) - int64(memory.WorkingSet), int64(memory.ActiveFile)
}

// TestMemoryOutsideThePods: a process outside of the pods uses the memory, so evicting all pods would not help. One
// pod is evicted per back-off, the record names the other cgroup, and the pressure ends when that process exits.
func TestMemoryOutsideThePods(t *testing.T) {
	n := startNode(t, gibibyte)
	var pods []*pod
	for i := range 4 {
		pods = append(pods, runPod(t, n, node.PodSpec{
			Name: fmt.Sprint("pod", i), Containers: oneContainer(holdArgs(int64(64-8*i) * mebibyte)),
		}).waitUsage(int64(64-8*i)*mebibyte))
	}
	size := nodeHog(t)
	threshold := nodeThreshold(t, size)
	// The minimum reclaim is more than all pods can free together, and less than the pods and the hog can.
	d := startDaemon(t, n, threshold+"\nevictionMinimumReclaim: {memory.available: 320Mi}", pods...)
	outside, end := hogOutside(t, n, size)
	pods[0].mustDie()
	first := d.waitRecord(pods[0])
	checkKilled(t, &first, pods[0])
	// Other cgroups of the machine may use more.
	named := slices.ContainsFunc(first.SystemCgroups, func(c evict.CgroupUsage) bool { return c.Cgroup == outside })
	if !first.Futile || len(first.SystemCgroups) > 5 || !named {
		t.Errorf("record of the first pod: futile %t, system cgroups %+v; want true and %s among at most five", first.Futile, first.SystemCgroups, outside)
	}
	d.waitLog("evicting pods can't relieve the signal", outside)
	second := d.waitRecord(pods[1])
	if apart := second.Decided.Sub(first.Decided); apart < time.Second || !second.Futile {
		t.Errorf("second victim %v after the first, futile %t; want it futile, after the back-off of 1s", apart, second.Futile)
	}
	end()
	s := d.waitStatus("end of the pressure", func(s *control.Status) bool { return len(s.Futile) == 0 && !met(s) })
	// The fourth victim comes at least 7 s after the first: after back-offs of 1 s, 2 s and 4 s.
	if n := len(s.Records); n > 3 && s.Records[3].Decided.Sub(first.Decided) < 7*time.Second {
		t.Errorf("%d victims, the last %v after the first; want one per back-off, which doubles", n, s.Records[3].Decided.Sub(first.Decided))
	}
	mustLive(t, pods[len(s.Records):]...)
}

// met reports whether a threshold of one of the memory signals is met.
func met(s *control.Status) bool {
	for _, name := range []signal.Signal{signal.MemoryAvailable, signal.AllocatableMemoryAvailable} {
		for _, th := range s.Signals[name].Thresholds {
			if th.Met {
				return true
			}
		}
	}
	return false
}

// hogOutside runs a hog in a cgroup of the node that belongs to no pod. It returns the cgroup's path and a function
// that kills the hog.
func hogOutside(t *testing.T, n *node.Node, bytes int64) (path string, end func()) {
	t.Helper()
	e, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	if path, err = n.MakeCgroup("outside", bytes+128*mebibyte); err != nil {
		t.Fatal(err)
	}
	procs := filepath.Join(memoryMount(t), path, "cgroup.procs")
	cmd := exec.Command("/bin/sh", append([]string{"-c", `echo $$ >"$1" && shift && exec "$@"`, "sh", procs, e.hog}, holdArgs(bytes)...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	end = func() {
		_ = cmd.Process.Kill() // fails only if it has already exited
		_ = cmd.Wait()
	}
	t.Cleanup(end)
	return path, end
}

// memoryMount returns the mount point of the hierarchy with the memory controller.
func memoryMount(t *testing.T) string {
	t.Helper()
	const v1 = "/sys/fs/cgroup/memory"
	if _, err := os.Stat(filepath.Join(v1, "cgroup.procs")); err == nil {
		return v1
	}
	return "/sys/fs/cgroup"
}

// TestFrozenVictim: a frozen container is killed; on v1 its processes exit only after evictd has thawed it.
func TestFrozenVictim(t *testing.T) {
	n := startNode(t, gibibyte)
	victim := runPod(t, n, node.PodSpec{Name: "victim", Containers: oneContainer(holdArgs(400 * mebibyte))}).waitUsage(400 * mebibyte)
	pusher := runPod(t, n, node.PodSpec{Name: "pusher", Containers: oneContainer(growArgs(200 * mebibyte))})
	freeze(t, victim)
	d := startDaemon(t, n, hardThreshold("512Mi")+"\nprotect: {names: [default/pusher]}", victim, pusher)
	pusher.grow()
	victim.mustDie()
	d.checkVictims(victim)
	mustLive(t, pusher)
	rec := d.waitRecord(victim)
	checkKilled(t, &rec, victim)
	checkRanksFirst(t, &rec, victim)
	if took := rec.LastGone.Sub(rec.SignalSent); took > promptLimit {
		t.Errorf("the frozen victim was gone %v after its signal; want less than %v", took, promptLimit)
	}
}

// freeze freezes a pod's first container, and thaws it at the end of the test.
func freeze(t *testing.T, p *pod) {
	t.Helper()
	c := openCgroup(t, p.Containers[0].Cgroup)
	if c == nil {
		t.Fatalf("the cgroup of %s is gone", p.Name)
	}
	t.Cleanup(func() {
		_ = c.Thaw() // fails if the pod was evicted
		c.Close()
	})
	if err := c.Freeze(); err != nil {
		t.Skipf("needs a freezer: %v", err)
	}
	eventually(t, "frozen container", func() bool {
		frozen, err := c.Frozen()
		if err != nil {
			t.Fatal(err)
		}
		return frozen
	})
}

// TestSharedMemoryHog: files in /dev/shm outlive the container's processes and are freed once the sandbox has been
// stopped. The kill alone does not cover the deficit, so the other pod is protected.
func TestSharedMemoryHog(t *testing.T) {
	n := startNode(t, gibibyte)
	other := runPod(t, n, node.PodSpec{Name: "other", Containers: oneContainer(holdArgs(64 * mebibyte))}).waitUsage(64 * mebibyte)
	hog := runPod(t, n, node.PodSpec{Name: "hog", ShmBytes: 600 * mebibyte, Containers: oneContainer(
		[]string{"tmpfs", "-delay", "1h", "-bytes", fmt.Sprint(520 * mebibyte), "-rate", fmt.Sprint(200 * mebibyte)},
	)})
	d := startDaemon(t, n, hardThreshold("512Mi")+"\nprotect: {names: [default/other]}", other, hog)
	hog.grow()
	hog.mustDie()
	d.waitStatus("freed shared memory", func(s *control.Status) bool {
		available := s.Signals[signal.AllocatableMemoryAvailable].Available
		return available != nil && *available > 900*mebibyte
	})
	d.checkVictims(hog)
	mustLive(t, other)
	rec := d.waitRecord(hog)
	checkKilled(t, &rec, hog)
	if rec.Expected > 64*mebibyte {
		t.Errorf("expected of a hog of shared memory = %d MiB; want at most 64, because a kill alone does not free it", rec.Expected/mebibyte)
	}
}

// TestStoppedVictim: SIGKILL also ends a process that SIGSTOP has stopped.
func TestStoppedVictim(t *testing.T) {
	n := startNode(t, gibibyte)
	victim := runPod(t, n, node.PodSpec{Name: "victim", Containers: oneContainer(holdArgs(400 * mebibyte))}).waitUsage(400 * mebibyte)
	pusher := runPod(t, n, node.PodSpec{Name: "pusher", Containers: oneContainer(growArgs(200 * mebibyte))})
	if err := unix.PidfdSendSignal(victim.procs[1].fd, unix.SIGSTOP, nil, 0); err != nil {
		t.Fatal(err)
	}
	d := startDaemon(t, n, hardThreshold("512Mi")+"\nprotect: {names: [default/pusher]}", victim, pusher)
	pusher.grow()
	victim.mustDie()
	d.checkVictims(victim)
	mustLive(t, pusher)
	if line := d.log.String(); strings.Contains(line, "stuck") {
		t.Error("the log mentions a stuck victim; want none")
	}
}
