package watchdog

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel"
)

const devicePath = "/dev/watchdog"

// loadSoftdog loads softdog so that it writes to the kernel's log instead of resetting the machine.
func loadSoftdog(t *testing.T) {
	t.Helper()
	if os.Getenv("EVICTD_TEST_VM") != "1" {
		t.Skip("softdog is loaded in the virtual machine only (make test-vm)")
	}
	_ = exec.Command("rmmod", "softdog").Run()
	if out, err := exec.Command("modprobe", "softdog", "soft_noboot=1").CombinedOutput(); err != nil {
		t.Skipf("no softdog: %v: %s", err, out)
	}
}

// kernelLog returns a function that waits until the kernel logs a text.
func kernelLog(t *testing.T) (logs func(text string, within time.Duration) bool) {
	t.Helper()
	fd, err := unix.Open("/dev/kmsg", unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if _, err := unix.Seek(fd, 0, unix.SEEK_END); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 8192)
	return func(text string, within time.Duration) bool {
		for end := time.Now().Add(within); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			for n, err := unix.Read(fd, buf); err == nil; n, err = unix.Read(fd, buf) {
				if bytes.Contains(buf[:n], []byte(text)) {
					return true
				}
			}
		}
		return false
	}
}

const triggered = "softdog: Triggered"

func open(t *testing.T, timeout time.Duration) *Device {
	t.Helper()
	d, err := Open(devicePath)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	if got, err := d.SetTimeout(timeout); err != nil || got != timeout {
		t.Fatalf("SetTimeout(%s) = %s, %v", timeout, got, err)
	}
	return d
}

func disarm(t *testing.T, d *Device) {
	t.Helper()
	if err := d.Disarm(); err != nil {
		t.Errorf("Disarm: %v", err)
	}
}

func TestDevice(t *testing.T) {
	loadSoftdog(t)
	attributes, err := ReadAttributes("/sys", devicePath)
	if want := (Attributes{"Software Watchdog", false}); err != nil || attributes != want {
		t.Errorf("ReadAttributes = %+v, %v; want %+v", attributes, err, want)
	}
	d := open(t, 30*time.Second)
	info, err := d.Info()
	if want := (Info{"Software Watchdog", true, true}); err != nil || info != want {
		t.Errorf("Info = %+v, %v; want %+v", info, err, want)
	}
	if _, err := d.SetTimeout(100_000 * time.Second); err == nil {
		t.Error("SetTimeout takes 100,000 s")
	}
	if got, err := d.Timeout(); err != nil || got != 30*time.Second {
		t.Errorf("Timeout after a refused SetTimeout = %s, %v; want 30s", got, err)
	}
	if _, err := Open(devicePath); !errors.Is(err, ErrBusy) {
		t.Errorf("Open of an open device = %v; want ErrBusy", err)
	}
	if _, err := Open("/dev/watchdog0"); !errors.Is(err, ErrBusy) {
		t.Errorf("Open of the other name = %v; want ErrBusy", err)
	}
	for _, path := range []string{devicePath, "/dev/watchdog0"} {
		if holder, ok := Holder(kernel.FS("/proc"), path); !ok || !strings.Contains(holder, "watchdog.test") {
			t.Errorf("Holder(%s) = %s, %t; want this test", path, holder, ok)
		}
	}
	disarm(t, d)
	if holder, ok := Holder(kernel.FS("/proc"), devicePath); ok {
		t.Errorf("Holder after Disarm = %s", holder)
	}
}

func TestFeeding(t *testing.T) {
	loadSoftdog(t)
	logs := kernelLog(t)
	d := open(t, 4*time.Second)
	for range 6 {
		if logs(triggered, time.Second) {
			t.Fatal("the watchdog fires although it is fed")
		}
		if err := d.Feed(); err != nil {
			t.Fatal(err)
		}
	}
	if !logs(triggered, 30*time.Second) {
		t.Error("the watchdog does not fire without feeding")
	}
	disarm(t, d)
	if logs(triggered, 10*time.Second) {
		t.Error("the watchdog fires after Disarm")
	}
}

// The kernel feeds a device that is closed without disarming: agent/selffence counts on not more than that.
func TestCloseFeedsOnce(t *testing.T) {
	loadSoftdog(t)
	logs := kernelLog(t)
	d := open(t, 8*time.Second)
	if logs(triggered, 5*time.Second) {
		t.Fatal("the watchdog fires early")
	}
	closed := time.Now()
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if !logs(triggered, 40*time.Second) {
		t.Fatal("the watchdog does not fire after Close")
	}
	if after := time.Since(closed); after < 6*time.Second {
		t.Errorf("fired %s after Close; want the timeout of 8s: the kernel feeds it", after)
	}
	again := open(t, 8*time.Second)
	disarm(t, again)
	if err := again.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
}
