package kerneltest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

var cgroupsMade atomic.Int64

// Cgroup makes a cgroup below the root of each tree and returns its path, which is
// the same in all of them and of no other test. See [MakeCgroup].
func Cgroup[Root ~string](t testing.TB, roots ...Root) string {
	t.Helper()
	name := fmt.Sprintf("/evictd-test-%d-%d", os.Getpid(), cgroupsMade.Add(1))
	for _, root := range roots {
		MakeCgroup(t, filepath.Join(string(root), name))
	}
	return name
}

// MakeCgroup makes one of the kernel's cgroups. When the test ends the cgroup is
// removed, as soon as the last process has left it: the test ends its processes by
// a cleanup of its own. Without root, or in a tree that can't be written to, the
// test is skipped.
func MakeCgroup(t testing.TB, dir string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes cgroups")
	}
	err := os.Mkdir(dir, 0o755)
	if errors.Is(err, unix.EROFS) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.ENOENT) {
		t.Skip("needs a writable cgroup tree: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
			err := os.Remove(dir) // EBUSY until the last process has left
			if err == nil || errors.Is(err, os.ErrNotExist) {
				return
			}
			if time.Now().After(end) {
				t.Errorf("remove cgroup: %v", err)
				return
			}
		}
	})
}
