package bpf

import (
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func openForks(t *testing.T) *Forks {
	t.Helper()
	f, err := OpenForks()
	if errors.Is(err, os.ErrPermission) {
		t.Skip("needs CAP_BPF and CAP_PERFMON: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Errorf("Close() = %v; want nil", err)
		}
	})
	return f
}

// alarmed waits for an alarm.
func (f *Forks) alarmed(patience time.Duration) bool {
	fds := []unix.PollFd{{Fd: int32(f.FD()), Events: unix.POLLIN}}
	deadline := time.Now().Add(patience)
	for {
		n, err := unix.Poll(fds, int(max(time.Until(deadline), 0)/time.Millisecond))
		if !errors.Is(err, unix.EINTR) {
			return n == 1
		}
	}
}

// Processes that are started are counted while they are there, and some time after.
func TestForksCount(t *testing.T) {
	f := openForks(t)
	if f.Via() != ViaRaw {
		t.Errorf("Via() = %s; want %s", f.Via(), ViaRaw)
	}
	const some = 50
	before := f.Count()
	var sleepers []*exec.Cmd
	for range some {
		cmd := exec.Command("sleep", "60")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		sleepers = append(sleepers, cmd)
	}
	// Others on the machine come and go meanwhile; not that many.
	if n := f.Count() - before; n < some/2 {
		t.Errorf("the count rose by %d with %d processes more", n, some)
	}
	with := f.Count()
	for _, cmd := range sleepers {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	for deadline := time.Now().Add(20 * time.Second); with-f.Count() < some/2; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the count fell by %d in 20 s after %d processes had ended", with-f.Count(), some)
		}
	}
}

// One alarm for each time that it is armed, and none when it is not.
func TestForksRaise(t *testing.T) {
	f := openForks(t)
	fork := func() { fire(t, f.attached, forksProgForked) }
	free := func() { fire(t, f.attached, forksProgFreed) }
	const far = 1 << 20
	fork()
	if f.alarmed(0) || f.Raised() != 0 {
		t.Fatal("raised, and was never armed")
	}
	f.Arm(f.Count() + far)
	fork()
	if f.alarmed(0) || f.Raised() != 0 {
		t.Fatalf("raised %d forks before the limit", far)
	}
	f.Arm(f.Count() - far)
	fork()
	fork()
	if !f.alarmed(0) || f.Raised() != 1 {
		t.Fatalf("%d alarms above the limit; want 1, to be read", f.Raised())
	}
	f.Disarm()
	fork()
	if f.alarmed(0) || f.Raised() != 1 {
		t.Fatalf("%d alarms, %v to be read, when it was not armed; want 1 and none", f.Raised(), f.alarmed(0))
	}
	for range 5000 { // more than the ring holds
		f.Arm(f.Count() - far)
		free()
		fork()
	}
	if !f.alarmed(0) || f.Raised() != 5001 {
		t.Errorf("%d alarms; want 5001", f.Raised())
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	f.Arm(0)
	f.Disarm()
	if f.Count() != 0 || f.Raised() != 0 || f.FD() != -1 {
		t.Errorf("after Close: count %d, %d alarms, descriptor %d; want 0, 0 and -1", f.Count(), f.Raised(), f.FD())
	}
}

// A real fork that takes the count to the limit wakes the waiter up.
func TestForksWake(t *testing.T) {
	f := openForks(t)
	f.Arm(f.Count() + 1)
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	if !f.alarmed(20 * time.Second) {
		t.Errorf("no alarm after a fork; count %d", f.Count())
	}
}

// The classic tracepoints count as well.
func TestForksClassic(t *testing.T) {
	tracefs(t)
	spec, err := loadForks()
	if err != nil {
		t.Fatal(err)
	}
	spec.Maps[forksMapAlarms].MaxEntries = uint32(os.Getpagesize())
	h, err := attach(spec, nil, forkHooks, ViaClassic)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	count := func() int64 {
		var raw forksTasks
		if err := h.collection.Maps[forksMapCounts].Lookup(uint32(0), &raw); err != nil {
			t.Fatal(err)
		}
		return int64(raw.Count)
	}
	for deadline := time.Now().Add(20 * time.Second); count() <= 0; {
		if time.Now().After(deadline) {
			t.Fatalf("count %d while processes are started; want more", count())
		}
		cmd := exec.Command("sleep", "0.1")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	}
}
