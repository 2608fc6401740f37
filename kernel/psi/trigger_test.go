package psi

import (
	"bufio"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/epoll"
	"github.com/evictd/evictd/kernel/kerneltest"
)

func TestUnprivileged(t *testing.T) {
	for _, tt := range []struct{ c, want Condition }{
		{Condition{Some, 50 * time.Millisecond, 500 * time.Millisecond}, Condition{Some, 200 * time.Millisecond, 2 * time.Second}},
		{Condition{Full, time.Microsecond, 500 * time.Millisecond}, Condition{Full, 4 * time.Microsecond, 2 * time.Second}},
		{Condition{Full, 2100 * time.Millisecond, 2100 * time.Millisecond}, Condition{Full, 4 * time.Second, 4 * time.Second}},
		{Condition{Some, time.Microsecond, 1999 * time.Millisecond}, Condition{Some, 2 * time.Microsecond, 2 * time.Second}},
		{Condition{Some, 9 * time.Second, 9 * time.Second}, Condition{Some, 10 * time.Second, 10 * time.Second}},
		{Condition{Some, time.Second, 2 * time.Second}, Condition{Some, time.Second, 2 * time.Second}},
		{Condition{Full, 7 * time.Second, 10 * time.Second}, Condition{Full, 7 * time.Second, 10 * time.Second}},
	} {
		if got := tt.c.Unprivileged(); got != tt.want {
			t.Errorf("(%v).Unprivileged() = %v; want %v", tt.c, got, tt.want)
		}
	}
}

func TestArmRefused(t *testing.T) {
	proc := kernel.FS(kerneltest.Tree(t, map[string]string{"pressure/memory": ""}))
	for _, c := range []Condition{
		{},
		{Some, time.Millisecond, 499 * time.Millisecond},
		{Some, time.Millisecond, 10001 * time.Millisecond},
		{Full, 0, time.Second},
		{Full, -time.Millisecond, time.Second},
		{Full, 1001 * time.Millisecond, time.Second},
		{Kind(3), time.Millisecond, time.Second},
	} {
		if trigger, err := Arm(proc, ForMemory, c); err == nil || errors.Is(err, kernel.ErrUnavailable) {
			t.Errorf("Arm(%v) = %v, %v; want an error other than ErrUnavailable", c, trigger, err)
		}
	}
	if _, err := Arm(kernel.FS(t.TempDir()), ForMemory, Condition{Some, time.Millisecond, time.Second}); !errors.Is(err, kernel.ErrUnavailable) {
		t.Errorf("Arm() without the file = %v; want %v", err, kernel.ErrUnavailable)
	}
}

// Arm writes the format that the kernel parses (kernel/sched/psi.c:
// psi_trigger_create), with a last byte that the kernel overwrites.
func TestArmWrites(t *testing.T) {
	root := kerneltest.Tree(t, map[string]string{"pressure/io": ""})
	trigger, err := Arm(kernel.FS(root), ForIO, Condition{Full, 150*time.Millisecond + time.Nanosecond, time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer trigger.Close()
	got, err := os.ReadFile(kernel.FS(root).Path("pressure", "io"))
	if want := "full 150001 1000000\x00"; string(got) != want || err != nil {
		t.Errorf("Arm() wrote %q, %v; want %q", got, err, want)
	}
	if want := (Condition{Full, 150001 * time.Microsecond, time.Second}); trigger.Armed() != want {
		t.Errorf("Armed() = %v; want %v", trigger.Armed(), want)
	}
}

func TestClose(t *testing.T) {
	root := kerneltest.Tree(t, map[string]string{"pressure/cpu": ""})
	trigger, err := Arm(kernel.FS(root), ForCPU, Condition{Some, time.Millisecond, time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if fd := trigger.FD(); fd < 0 {
		t.Errorf("FD() = %d; want a descriptor", fd)
	}
	for range 2 {
		if err := trigger.Close(); err != nil {
			t.Errorf("Close() = %v; want nil", err)
		}
	}
	if fd := trigger.FD(); fd != -1 {
		t.Errorf("FD() after Close = %d; want -1", fd)
	}
	if _, err := trigger.Total(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Total() after Close = %v; want %v", err, os.ErrClosed)
	}
}

// armHere arms a trigger on this machine, or skips the test.
func armHere(t *testing.T, r Resource, c Condition) *Trigger {
	t.Helper()
	trigger, err := Arm("/proc", r, c)
	switch {
	case errors.Is(err, kernel.ErrUnavailable):
		t.Skip("needs a kernel with PSI, booted with psi=1: ", err)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, unix.EROFS):
		t.Skip("needs CAP_SYS_RESOURCE, or Linux 6.5, and a writable /proc/pressure: ", err)
	case err != nil:
		t.Fatal(err)
	}
	t.Cleanup(func() { trigger.Close() })
	return trigger
}

// privileged reports whether this process has CAP_SYS_RESOURCE.
func privileged(t *testing.T) bool {
	t.Helper()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		t.Fatal(err)
	}
	return sets[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}

// The kernel accepts any window with CAP_SYS_RESOURCE, and multiples of 2 s without.
func TestArmHere(t *testing.T) {
	for _, asked := range []Condition{
		{Some, 50 * time.Millisecond, 500 * time.Millisecond},
		{Full, 300 * time.Millisecond, 3 * time.Second},
		{Some, 100 * time.Millisecond, 2 * time.Second},
	} {
		want := asked
		if !privileged(t) {
			want = asked.Unprivileged()
		}
		for _, r := range []Resource{ForMemory, ForIO} {
			trigger := armHere(t, r, asked)
			if trigger.Armed() != want {
				t.Errorf("Arm(%s, %v) armed %v; want %v", r, asked, trigger.Armed(), want)
			}
			if total, err := trigger.Total(); total < 0 || err != nil {
				t.Errorf("Total() = %v, %v", total, err)
			}
			t.Logf("%s: asked for %v, armed %v", r, asked, trigger.Armed())
		}
	}
}

// TestSpin is the body of a process that other tests start. Its threads compete for
// one CPU.
func TestSpin(t *testing.T) {
	if os.Getenv("EVICTD_TEST_SPIN") == "" {
		return // not started by another test
	}
	in := bufio.NewReader(os.Stdin)
	if _, err := in.ReadString('\n'); err != nil { // wait to be moved into the cgroup
		return
	}
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		t.Fatal(err)
	}
	for cpu := range 1024 {
		if set.IsSet(cpu) {
			set.Zero()
			set.Set(cpu)
			break
		}
	}
	var over atomic.Bool
	for range 4 {
		go func() {
			runtime.LockOSThread()
			if err := unix.SchedSetaffinity(0, &set); err != nil {
				panic(err)
			}
			if err := unix.Setpriority(unix.PRIO_PROCESS, 0, 19); err != nil {
				panic(err)
			}
			for !over.Load() { // four threads on one CPU: three wait
			}
		}()
	}
	_, _ = in.ReadString('\n') // wait for the end of the test
	over.Store(true)
}

// spin starts four tasks on one CPU, in the cgroups of these directories, or without any in
// the cgroup of the test.
func spin(t *testing.T, cgroups ...string) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestSpin$")
	cmd.Env = append(os.Environ(), "EVICTD_TEST_SPIN=1", "GOMAXPROCS=6")
	in, _ := kerneltest.Start(t, cmd, cgroups...)
	if _, err := io.WriteString(in, "\n"); err != nil {
		t.Fatal(err)
	}
}

// watch returns a poller of the trigger.
func watch(t *testing.T, trigger *Trigger) *epoll.Poller {
	t.Helper()
	p, err := epoll.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	if err := p.Add(trigger.FD(), unix.EPOLLPRI, 1); err != nil {
		t.Fatal(err)
	}
	return p
}

// wait returns the events of the trigger, or 0 if there is none within 10 s.
func wait(t *testing.T, p *epoll.Poller) (events uint32) {
	t.Helper()
	buf := make([]epoll.Event, 1)
	if _, err := p.Wait(buf, 10*time.Second); err != nil {
		t.Fatal(err)
	}
	return buf[0].Events
}

func TestTriggerFires(t *testing.T) {
	trigger := armHere(t, ForCPU, Condition{Some, 20 * time.Millisecond, 500 * time.Millisecond})
	total, err := trigger.Total()
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	g := NewGrowth(trigger.Armed(), total, start)
	p := watch(t, trigger)
	spin(t)
	// On a busy machine, the kernel may count stalls from before it was armed.
	const maxEvents = 3
	var now time.Time
	for fired := 1; ; fired++ {
		events := wait(t, p)
		now = time.Now()
		if events != unix.EPOLLPRI {
			t.Fatalf("events = %#x; want EPOLLPRI", events)
		}
		if total, err = trigger.Total(); err != nil {
			t.Fatal(err)
		}
		if g.Update(total, now) {
			break
		}
		if fired == maxEvents {
			t.Fatalf("%v fired %d times, but Update(%v) does not confirm it", trigger.Armed(), maxEvents, total)
		}
	}
	t.Logf("%v fired %v after four tasks were started on one CPU", trigger.Armed(), now.Sub(start))
}

// v2 returns the root of a v2 hierarchy, with or without the memory controller.
func v2(t *testing.T) kernel.FS {
	t.Helper()
	for _, root := range []kernel.FS{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		if _, err := os.Stat(root.Path("cgroup.controllers")); err == nil {
			return root
		}
	}
	t.Skip("needs a v2 hierarchy")
	return ""
}

// armIn arms a trigger on cpu.pressure, which needs no controller, so any v2
// hierarchy has it.
func armIn(t *testing.T, root kernel.FS, name string, c Condition) *Trigger {
	t.Helper()
	trigger, err := arm(root.Path(name, "cpu.pressure"), c)
	if errors.Is(err, kernel.ErrUnavailable) || errors.Is(err, fs.ErrPermission) {
		t.Skip("needs pressure of cgroups, and CAP_SYS_RESOURCE or Linux 6.5: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { trigger.Close() })
	return trigger
}

func TestCgroupTriggerFires(t *testing.T) {
	root := v2(t)
	name := kerneltest.Cgroup(t, root)
	trigger := armIn(t, root, name, Condition{Some, 20 * time.Millisecond, 500 * time.Millisecond})
	p := watch(t, trigger)
	start := time.Now()
	spin(t, root.Path(name))
	if events := wait(t, p); events != unix.EPOLLPRI {
		t.Errorf("events = %#x; want EPOLLPRI", events)
	}
	t.Logf("%v fired %v after four tasks were started on one CPU", trigger.Armed(), time.Since(start))
	if total, err := trigger.Total(); err != nil || total < trigger.Armed().Stall {
		t.Errorf("Total() = %v, %v; want %v or more", total, err, trigger.Armed().Stall)
	}
}

func TestCgroupTriggerGone(t *testing.T) {
	root := v2(t)
	name := kerneltest.Cgroup(t, root)
	trigger := armIn(t, root, name, Condition{Some, time.Second, 2 * time.Second})
	p := watch(t, trigger)
	if err := os.Remove(root.Path(name)); err != nil {
		t.Fatal(err)
	}
	events := wait(t, p) // the removal must wake the waiting poller
	if events&unix.EPOLLERR == 0 {
		t.Errorf("events after the cgroup was removed = %#x; want EPOLLERR", events)
	}
	t.Logf("events: %#x", events)
	if _, err := trigger.Total(); !errors.Is(err, cgroup.ErrGone) {
		t.Errorf("Total() = %v; want %v", err, cgroup.ErrGone)
	}
}

func TestArmCgroup(t *testing.T) {
	h, err := cgroup.Find("/sys/fs/cgroup")
	if err != nil {
		t.Skip("needs a mounted cgroup filesystem: ", err)
	}
	name := kerneltest.Cgroup(t, h.Memory)
	c, err := h.Open(name)
	if err != nil {
		t.Skip("needs the memory controller for the root's children: ", err)
	}
	defer c.Close()
	asked := Condition{Some, time.Second, 2 * time.Second}
	trigger, err := ArmCgroup(h, c, ForMemory, asked)
	_, noPSI := os.Stat("/proc/pressure/memory")
	if h.Version != cgroup.V2 || noPSI != nil {
		if !errors.Is(err, kernel.ErrUnavailable) {
			t.Errorf("ArmCgroup() on %s (pressure of the node: %v) = %v; want %v", h.Version, noPSI, err, kernel.ErrUnavailable)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer trigger.Close()
	if trigger.Armed() != asked {
		t.Errorf("Armed() = %v; want %v", trigger.Armed(), asked)
	}
	// A new cgroup at the same path is not the one that was opened.
	if err := os.Remove(h.Memory.Path(name)); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(h.Memory.Path(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if got, err := ArmCgroup(h, c, ForMemory, asked); !errors.Is(err, cgroup.ErrGone) {
		t.Errorf("ArmCgroup() of a cgroup that was replaced = %v, %v; want %v", got, err, cgroup.ErrGone)
	}
}
