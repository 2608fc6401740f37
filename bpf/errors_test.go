package bpf

import (
	"encoding/json"
	"errors"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// openResult is the result of OpenSampler in a helper process.
type openResult struct {
	Unavailable bool
	Error       string
}

func printResult(err error) {
	a := openResult{Unavailable: errors.Is(err, ErrUnavailable)}
	if err != nil {
		a.Error = err.Error()
	}
	_ = json.NewEncoder(os.Stdout).Encode(a)
	os.Exit(0)
}

func openAll() error {
	ring, err := OpenRing()
	if err != nil {
		return err
	}
	_, err = OpenSampler(ring, Options{})
	return err
}

func runWithoutBTF(t *testing.T) {
	if err := unix.Mount("none", "/sys/kernel/btf", "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	printResult(openAll())
}

func runWithoutCapability(t *testing.T) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	runtime.LockOSThread() // capabilities belong to a thread
	if err := unix.Capset(&header, &none[0]); err != nil {
		t.Fatal(err)
	}
	printResult(openAll())
}

func TestUnavailable(t *testing.T) {
	openSampler(t, Options{}) // skips if the sampler is not available anyway
	for _, test := range []struct {
		body, want string
		clone      uintptr
	}{
		{"no btf", "BTF", unix.CLONE_NEWNS},
		{"no capability", "CAP_BPF", 0},
	} {
		t.Run(test.body, func(t *testing.T) {
			cmd := helperProcess(test.body)
			cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: test.clone}
			out, err := cmd.Output()
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			var got openResult
			if err := json.Unmarshal(out, &got); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			t.Log(got.Error)
			if !got.Unavailable || !strings.Contains(got.Error, test.want) {
				t.Errorf("OpenSampler() = %q, unavailable %v; want it unavailable because of %s", got.Error, got.Unavailable, test.want)
			}
		})
	}
}
