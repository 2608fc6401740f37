package clusterlabs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// directory returns a directory that only this user can write to.
func directory(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// install writes an agent fence_x, a shell script. In it $dir is its directory.
func install(t *testing.T, script string) (dir string) {
	t.Helper()
	dir = directory(t)
	if !strings.HasPrefix(script, "#!") {
		script = "#!/bin/sh\ndir=" + dir + "\n" + script
	}
	// A process that another goroutine forks would keep the file open for writing: it could not be executed then.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(filepath.Join(dir, "fence_x"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// newDevice returns a device with an agent that is a shell script.
func newDevice(t *testing.T, script string, parameters map[string]string, secrets ...string) (d *Device, dir string) {
	t.Helper()
	dir = install(t, script)
	d, err := New(Options{dir, "fence_x", parameters, secrets})
	if err != nil {
		t.Fatal(err)
	}
	return d, dir
}

func read(t *testing.T, path ...string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// await returns when the condition is met.
func await(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within 10s", what)
		}
	}
}

// pid returns the number in a file that an agent writes.
func pid(t *testing.T, path ...string) int {
	t.Helper()
	n := 0
	await(t, "process ID in "+filepath.Join(path...), func() bool {
		b, _ := os.ReadFile(filepath.Join(path...))
		var err error
		n, err = strconv.Atoi(strings.TrimSpace(string(b)))
		return err == nil && strings.HasSuffix(string(b), "\n")
	})
	return n
}

// wantGone fails unless a process ends: the kernel may need a moment for it, and init to reap it.
func wantGone(t *testing.T, pid int) {
	t.Helper()
	await(t, fmt.Sprintf("end of process %d", pid), func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return errors.Is(unix.Kill(pid, 0), unix.ESRCH) || err != nil || strings.Contains(string(stat), ") Z ")
	})
}
