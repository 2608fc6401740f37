package kerneltest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

var cgroupsCreated atomic.Int64

// Cgroup creates a cgroup of the same path in each hierarchy, by [MakeCgroup], and
// returns the path. It is unique to the test.
func Cgroup[Root ~string](t testing.TB, roots ...Root) string {
	t.Helper()
	name := fmt.Sprintf("/evictd-test-%d-%d", os.Getpid(), cgroupsCreated.Add(1))
	for _, root := range roots {
		MakeCgroup(t, filepath.Join(string(root), name))
	}
	return name
}

// EnableControllers enables controllers in the children of a v2 cgroup, whose directory it
// gets: such as memory. It fails if the cgroup does not have them all.
func EnableControllers(dir string, controllers ...string) error {
	return os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+strings.Join(controllers, " +")), 0)
}

// MakeCgroup creates a real cgroup. When the test ends, it waits for the last
// process to leave the cgroup and removes it; the test kills its processes in a
// cleanup of its own. The test is skipped without root, and if the hierarchy is not
// writable.
func MakeCgroup(t testing.TB, dir string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to create cgroups")
	}
	err := os.Mkdir(dir, 0o755)
	if errors.Is(err, unix.EROFS) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.ENOENT) {
		t.Skip("needs a writable cgroup hierarchy: ", err)
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
