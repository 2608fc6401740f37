package kerneltest

import (
	"bytes"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Softdog loads Linux's software watchdog so that it writes to the kernel's log instead of resetting the machine. The
// returned function waits until it fires, at most for a time. Outside the virtual machine the test is skipped.
func Softdog(t testing.TB) (fired func(within time.Duration) bool) {
	t.Helper()
	if os.Getenv("EVICTD_TEST_VM") != "1" {
		t.Skip("softdog is loaded in the virtual machine only (make test-vm)")
	}
	_ = exec.Command("rmmod", "softdog").Run() // of an earlier test
	if out, err := exec.Command("modprobe", "softdog", "soft_noboot=1").CombinedOutput(); err != nil {
		t.Skipf("no softdog: %v: %s", err, out)
	}
	fd, err := unix.Open("/dev/kmsg", unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if _, err := unix.Seek(fd, 0, unix.SEEK_END); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 8192)
	return func(within time.Duration) bool {
		for end := time.Now().Add(within); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			for n, err := unix.Read(fd, buf); err == nil; n, err = unix.Read(fd, buf) {
				if bytes.Contains(buf[:n], []byte("softdog: Triggered")) {
					return true
				}
			}
		}
		return false
	}
}
