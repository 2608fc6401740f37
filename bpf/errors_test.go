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

// answer is what a process says that lacks something.
type answer struct {
	Unavailable bool
	Error       string
}

func say(err error) {
	a := answer{Unavailable: errors.Is(err, ErrUnavailable)}
	if err != nil {
		a.Error = err.Error()
	}
	_ = json.NewEncoder(os.Stdout).Encode(a)
	os.Exit(0)
}

func open() error {
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
	say(open())
}

func runWithoutCapability(t *testing.T) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	runtime.LockOSThread() // privileges are a thread's
	if err := unix.Capset(&header, &none[0]); err != nil {
		t.Fatal(err)
	}
	say(open())
}

func TestUnavailable(t *testing.T) {
	openSampler(t, Options{}) // or what follows says nothing
	for _, test := range []struct {
		body, want string
		clone      uintptr
	}{
		{"no btf", "BTF", unix.CLONE_NEWNS},
		{"no capability", "CAP_BPF", 0},
	} {
		t.Run(test.body, func(t *testing.T) {
			cmd := body(test.body)
			cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: test.clone}
			out, err := cmd.Output()
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			var got answer
			if err := json.Unmarshal(out, &got); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			t.Log(got.Error)
			if !got.Unavailable || !strings.Contains(got.Error, test.want) {
				t.Errorf("OpenSampler() = %q, unavailable %v; want it unavailable for want of %s", got.Error, got.Unavailable, test.want)
			}
		})
	}
}
