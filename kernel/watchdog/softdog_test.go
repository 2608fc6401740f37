package watchdog

import (
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/kerneltest"
)

const devicePath = "/dev/watchdog"

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

func TestSoftdogDevice(t *testing.T) {
	kerneltest.Softdog(t)
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

func TestSoftdogFeeding(t *testing.T) {
	fired := kerneltest.Softdog(t)
	d := open(t, 4*time.Second)
	for range 6 {
		if fired(time.Second) {
			t.Fatal("the watchdog fires although it is fed")
		}
		if err := d.Feed(); err != nil {
			t.Fatal(err)
		}
	}
	if !fired(30 * time.Second) {
		t.Error("the watchdog does not fire without feeding")
	}
	disarm(t, d)
	if fired(10 * time.Second) {
		t.Error("the watchdog fires after Disarm")
	}
}

// The kernel feeds a device that is closed without disarming: agent/selffence counts on not more than that.
func TestSoftdogCloseFeedsOnce(t *testing.T) {
	fired := kerneltest.Softdog(t)
	d := open(t, 8*time.Second)
	if fired(5 * time.Second) {
		t.Fatal("the watchdog fires early")
	}
	closed := time.Now()
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if !fired(40 * time.Second) {
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

// A unit with evictd's restrictions opens the device with the drop-in of agent/selffence/README.md, and not without it.
func TestSoftdogInUnit(t *testing.T) {
	fired := kerneltest.Softdog(t)
	if _, err := exec.LookPath("systemd-run"); err != nil {
		t.Skip("needs systemd-run")
	}
	for _, test := range []struct {
		dropIn []string
		opens  bool
	}{
		{[]string{"PrivateDevices=no", "DevicePolicy=closed", "DeviceAllow=/dev/watchdog rw"}, true},
		{[]string{"PrivateDevices=yes"}, false},
		{[]string{"PrivateDevices=no", "DevicePolicy=closed"}, false},
	} {
		args := []string{"--wait", "--pipe", "--quiet"}
		for _, property := range append([]string{"CapabilityBoundingSet=CAP_KILL", "NoNewPrivileges=yes", "ProtectSystem=strict", "PrivateMounts=yes",
			"SystemCallFilter=@system-service"}, test.dropIn...) {
			args = append(args, "--property="+property)
		}
		out, err := exec.Command("systemd-run", append(args, "sh", "-c", "printf V > /dev/watchdog")...).CombinedOutput()
		if opens := err == nil; opens != test.opens {
			t.Errorf("%q: opens the device: %t, %v %s; want %t", test.dropIn, opens, err, out, test.opens)
		}
	}
	if fired(time.Second) {
		t.Error("the watchdog fires")
	}
}
