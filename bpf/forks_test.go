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

// waitAlarm reports whether there is an alarm within a time.
func (f *Forks) waitAlarm(patience time.Duration) bool {
	fds := []unix.PollFd{{Fd: int32(f.FD()), Events: unix.POLLIN}}
	deadline := time.Now().Add(patience)
	for {
		n, err := unix.Poll(fds, int(max(time.Until(deadline), 0)/time.Millisecond))
		if !errors.Is(err, unix.EINTR) {
			return n == 1
		}
	}
}

// The count rises with new processes, and falls some time after they have exited.
func TestForksCount(t *testing.T) {
	f := openForks(t)
	if f.Attachment() != AttachRaw {
		t.Errorf("Attachment() = %s; want %s", f.Attachment(), AttachRaw)
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
	// Other processes of the machine start and exit, too, but fewer.
	if n := f.Count() - before; n < some/2 {
		t.Errorf("the count rose by %d with %d new processes; want at least half", n, some)
	}
	with := f.Count()
	for _, cmd := range sleepers {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	for deadline := time.Now().Add(20 * time.Second); with-f.Count() < some/2; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the count fell by %d in 20 s after %d processes exited; want at least half", with-f.Count(), some)
		}
	}
}

// Each Arm allows one alarm.
func TestForksAlarm(t *testing.T) {
	f := openForks(t)
	fork := func() { runHook(t, f.attached, forksProgForked) }
	free := func() { runHook(t, f.attached, forksProgFreed) }
	const far = 1 << 20
	fork()
	if f.waitAlarm(0) || f.Alarms() != 0 {
		t.Fatal("alarm without Arm")
	}
	f.Arm(f.Count() + far)
	fork()
	if f.waitAlarm(0) || f.Alarms() != 0 {
		t.Fatalf("alarm %d forks before the limit", far)
	}
	f.Arm(f.Count() - far)
	fork()
	fork()
	if !f.waitAlarm(0) || f.Alarms() != 1 {
		t.Fatalf("%d alarms above the limit; want 1, and the descriptor readable", f.Alarms())
	}
	f.Disarm()
	fork()
	if f.waitAlarm(0) || f.Alarms() != 1 {
		t.Fatalf("%d alarms, descriptor readable: %v after Disarm; want 1, false", f.Alarms(), f.waitAlarm(0))
	}
	for range 5000 { // more than the ring has room for
		f.Arm(f.Count() - far)
		free()
		fork()
	}
	if !f.waitAlarm(0) || f.Alarms() != 5001 {
		t.Errorf("%d alarms; want 5001", f.Alarms())
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	f.Arm(0)
	f.Disarm()
	if f.Count() != 0 || f.Alarms() != 0 || f.FD() != -1 {
		t.Errorf("after Close: count %d, %d alarms, descriptor %d; want 0, 0 and -1", f.Count(), f.Alarms(), f.FD())
	}
}

// A real fork that brings the count to the limit makes the descriptor readable.
func TestForksWake(t *testing.T) {
	f := openForks(t)
	f.Arm(f.Count() + 1)
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	if !f.waitAlarm(20 * time.Second) {
		t.Errorf("no alarm after a fork; count %d", f.Count())
	}
}

// The classic tracepoints count as well.
func TestForksClassic(t *testing.T) {
	mountTracefs(t)
	spec, err := loadForks()
	if err != nil {
		t.Fatal(err)
	}
	spec.Maps[forksMapAlarms].MaxEntries = uint32(os.Getpagesize())
	h, err := attach(spec, nil, forkHooks, AttachClassic)
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
			t.Fatalf("count %d after starting processes for 20 s; want it above 0", count())
		}
		cmd := exec.Command("sleep", "0.1")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	}
}
