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

// leaves is what a hog on the whole node must leave the machine: a quarter of a small one, of a large one 4 GiB.
func leaves(total int64) int64 { return min(total/4, 4*gibibyte) }

// nodeHog is the size of a hog that presses on the whole node: an eighth of a small one, of a large one 2 GiB.
func nodeHog(t *testing.T) int64 {
	t.Helper()
	info, err := meminfo.Read(kernel.FS("/proc"))
	if err != nil {
		t.Fatal(err)
	}
	return min(int64(info.MemTotal)/8, 2*gibibyte)
}

// nodeThreshold makes a hard threshold on memory.available that a hog of that size crosses in its middle, so that
// what else the machine does matters little. The pods and the node run already.
func nodeThreshold(t *testing.T, hog int64) string {
	t.Helper()
	available, activeFile := nodeAvailable(t, hog)
	// File cache is left out of the account: how much of it there is is the rest of the machine's doing, and while
	// it explains a crossing evictd would wait.
	return fmt.Sprintf("memoryAccounting: available\nenforceNodeAllocatable: []\nevictionHard: {memory.available: %d}", available+activeFile-hog/2)
}

// nodeAvailable returns memory.available as a kubelet computes it, and how much active file cache it counts as used. It
// skips the test where the machine can't do without hog bytes.
func nodeAvailable(t *testing.T, hog int64) (available, activeFile int64) {
	t.Helper()
	info, err := meminfo.Read(kernel.FS("/proc"))
	if err != nil {
		t.Fatal(err)
	}
	if available, needed := int64(info.MemAvailable), hog+leaves(int64(info.MemTotal)); available < needed {
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

// TestMemoryOutsideThePods: what presses is none of the pods, so that evicting all of them would not help. One goes
// per back-off, the record says who else holds the memory, and when that one leaves, so does the pressure.
func TestMemoryOutsideThePods(t *testing.T) {
	n := startNode(t, gibibyte)
	var pods []*pod
	for i := range 4 {
		pods = append(pods, runPod(t, n, node.PodSpec{
			Name: fmt.Sprint("pod", i), Containers: one(holding(int64(64-8*i) * mebibyte)),
		}).uses(int64(64-8*i)*mebibyte))
	}
	size := nodeHog(t)
	threshold := nodeThreshold(t, size)
	// To come back by so much is more than all pods can bring, from the first one on, and less than they and the hog.
	d := startDaemon(t, n, threshold+"\nevictionMinimumReclaim: {memory.available: 320Mi}", pods...)
	outside, end := hogOutside(t, n, size)
	pods[0].mustDie()
	first := d.ended(pods[0])
	killed(t, &first, pods[0])
	// What else runs on the machine may hold more.
	named := slices.ContainsFunc(first.Outside, func(c evict.CgroupUsage) bool { return c.Cgroup == outside })
	if !first.Futile || len(first.Outside) > 5 || !named {
		t.Errorf("record of the first pod: futile %t, outside %+v; want true and %s among at most five", first.Futile, first.Outside, outside)
	}
	d.logged("evicting pods can't relieve the signal", outside)
	second := d.ended(pods[1])
	if apart := second.Decided.Sub(first.Decided); apart < time.Second || !second.Futile {
		t.Errorf("second victim %v after the first, futile %t; want it futile, after the back-off of 1s", apart, second.Futile)
	}
	end()
	s := d.until("end of the pressure", func(s *control.Status) bool { return len(s.Futile) == 0 && !met(s) })
	// With the third back-off, of 4s, the fourth pod has been safe for 7s after the first.
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

// hogOutside runs a hog in a cgroup of the node's that is no pod's, and returns its path and what ends it.
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
	cmd := exec.Command("/bin/sh", append([]string{"-c", `echo $$ >"$1" && shift && exec "$@"`, "sh", procs, e.hog}, holding(bytes)...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	end = func() {
		_ = cmd.Process.Kill() // ended already, at worst
		_ = cmd.Wait()
	}
	t.Cleanup(end)
	return path, end
}

// memoryMount is where the tree that carries memory is mounted: by itself on v1, else as the only one.
func memoryMount(t *testing.T) string {
	t.Helper()
	const v1 = "/sys/fs/cgroup/memory"
	if _, err := os.Stat(filepath.Join(v1, "cgroup.procs")); err == nil {
		return v1
	}
	return "/sys/fs/cgroup"
}

// TestFrozenVictim: a container that the freezer holds can't die before it is thawed.
func TestFrozenVictim(t *testing.T) {
	n := startNode(t, gibibyte)
	victim := runPod(t, n, node.PodSpec{Name: "victim", Containers: one(holding(400 * mebibyte))}).uses(400 * mebibyte)
	pusher := runPod(t, n, node.PodSpec{Name: "pusher", Containers: one(growing(200 * mebibyte))})
	freeze(t, victim)
	d := startDaemon(t, n, below("512Mi")+"\nprotect: {names: [default/pusher]}", victim, pusher)
	pusher.press()
	victim.mustDie()
	d.victims(victim)
	mustLive(t, pusher)
	rec := d.ended(victim)
	killed(t, &rec, victim)
	ranksFirst(t, &rec, victim)
	if took := rec.LastGone.Sub(rec.SignalSent); took > soon {
		t.Errorf("the frozen victim was gone %v after its signal; want less than %v", took, soon)
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
		_ = c.Thaw() // it is gone, where all went well
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

// TestSharedMemoryHog: what lies in /dev/shm outlives the container's processes and is back once the sandbox has
// stopped. What its kill brings at once does not cover the deficit, so that no other pod may be there to go with it.
func TestSharedMemoryHog(t *testing.T) {
	n := startNode(t, gibibyte)
	other := runPod(t, n, node.PodSpec{Name: "other", Containers: one(holding(64 * mebibyte))}).uses(64 * mebibyte)
	d := newDaemon(t, n, below("512Mi")+"\nprotect: {names: [default/other]}")
	hog := runPod(t, n, node.PodSpec{Name: "hog", ShmBytes: 600 * mebibyte, Containers: one(
		[]string{"tmpfs", "-bytes", fmt.Sprint(520 * mebibyte), "-rate", fmt.Sprint(200 * mebibyte)},
	)})
	d.start()
	d.knows(2)
	hog.mustDie()
	d.until("shared memory that is back", func(s *control.Status) bool {
		available := s.Signals[signal.AllocatableMemoryAvailable].Available
		return available != nil && *available > 900*mebibyte
	})
	d.victims(hog)
	mustLive(t, other)
	rec := d.ended(hog)
	killed(t, &rec, hog)
	if rec.Expected > 64*mebibyte {
		t.Errorf("expected of a hog of shared memory: %d MiB; want little, as a kill alone brings nothing", rec.Expected/mebibyte)
	}
}

// TestStoppedVictim: a process that SIGSTOP holds dies of SIGKILL as any other.
func TestStoppedVictim(t *testing.T) {
	n := startNode(t, gibibyte)
	victim := runPod(t, n, node.PodSpec{Name: "victim", Containers: one(holding(400 * mebibyte))}).uses(400 * mebibyte)
	pusher := runPod(t, n, node.PodSpec{Name: "pusher", Containers: one(growing(200 * mebibyte))})
	if err := unix.PidfdSendSignal(victim.held[1].fd, unix.SIGSTOP, nil, 0); err != nil {
		t.Fatal(err)
	}
	d := startDaemon(t, n, below("512Mi")+"\nprotect: {names: [default/pusher]}", victim, pusher)
	pusher.press()
	victim.mustDie()
	d.victims(victim)
	mustLive(t, pusher)
	if line := d.log.String(); strings.Contains(line, "stuck") {
		t.Error("the log speaks of a stuck victim; want none")
	}
}
