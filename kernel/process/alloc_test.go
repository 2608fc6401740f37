//go:build !race

package process

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/kerneltest"
)

// The race detector moves every buffer that the kernel fills to the heap. Only calls
// without an error must not allocate.
func TestSignalAllocates(t *testing.T) {
	p, err := Open(os.Getpid())
	if err != nil {
		t.Skip("needs pidfd_open: ", err)
	}
	defer p.Close()
	if n := testing.AllocsPerRun(100, func() {
		if err := p.Signal(unix.Signal(0)); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("Signal allocates %v times; want 0", n)
	}
	if n := testing.AllocsPerRun(100, func() {
		if ended, err := p.Exited(); ended || err != nil {
			t.Fatal(ended, err)
		}
	}); n != 0 {
		t.Errorf("Exited allocates %v times; want 0", n)
	}
}

// In a process frozen by the v1 freezer, SIGKILL stays pending, so that ReleaseMemory can be
// called repeatedly.
func TestReleaseMemoryAllocates(t *testing.T) {
	const freezer = "/sys/fs/cgroup/freezer"
	dir := freezer + kerneltest.Cgroup(t, freezer)
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	write := func(file, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, file), []byte(content), 0); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(func() {
		write("freezer.state", "THAWED")
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	write("cgroup.procs", strconv.Itoa(cmd.Process.Pid))
	write("freezer.state", "FROZEN")
	eventually(t, "freeze", func() bool {
		state, err := os.ReadFile(filepath.Join(dir, "freezer.state"))
		return err == nil && string(state) == "FROZEN\n"
	})
	p, err := Open(cmd.Process.Pid)
	if err != nil {
		t.Skip("needs pidfd_open: ", err)
	}
	defer p.Close()
	if err := p.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := p.ReleaseMemory(); errors.Is(err, kernel.ErrUnavailable) {
		t.Skip("needs process_mrelease: ", err)
	}
	if n := testing.AllocsPerRun(100, func() {
		if err := p.ReleaseMemory(); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("ReleaseMemory allocates %v times; want 0", n)
	}
}

func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Errorf("%s: not within 10 s", what)
			return
		}
	}
}

func TestStartTimeAtAllocates(t *testing.T) {
	dir, err := unix.Open("/proc", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(dir)
	own, err := ReadStat("/proc", os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() {
		if start, err := StartTimeAt(dir, own.PID); err != nil || start != own.StartTime {
			t.Errorf("StartTimeAt() = %d, %v; want %d", start, err, own.StartTime)
		}
	}); n != 0 {
		t.Errorf("StartTimeAt allocates %v times; want 0", n)
	}
	if start, err := StartTimeAt(dir, 1<<22+1); err != unix.ENOENT {
		t.Errorf("StartTimeAt() of an unused pid = %d, %v; want ENOENT", start, err)
	}
}
