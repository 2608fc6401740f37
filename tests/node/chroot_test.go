package node

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// chrootEnv is the environment variable with a directory in which this test binary creates a root directory, to run
// tests in it.
const chrootEnv = "NODE_TEST_CHROOT_INTO"

// TestInPlainChroot repeats tests in a root directory as debootstrap and chroot create it: not a mount point, and
// without /etc/hosts.
func TestInPlainChroot(t *testing.T) {
	if err := Check(""); err != nil {
		t.Skipf("needs %v", err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	cmd := exec.Command(self, "-test.v", "-test.run=^(TestPodsOfEachClass|TestHogInAPodWritesStamps|TestSharedMemorySize|TestCloseAfterKillRuntime)$")
	cmd.Env = append(os.Environ(), chrootEnv+"="+root)
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	// A private mount namespace, so that removing root never follows the bind mounts.
	cmd.SysProcAttr = &unix.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
	if err := cmd.Run(); err != nil {
		t.Errorf("in a chroot: %v", err)
	}
	if left, err := filepath.Glob(filepath.Join(root, "etc/*")); err != nil || len(left) > 0 {
		t.Errorf("/etc of the chroot has %q, %v; want it empty as before", left, err)
	}
}

// enterChroot creates the root directory and re-executes the test binary in it. It returns only on error.
func enterChroot(root string) error {
	all, err := mounts()
	if err != nil {
		return err
	}
	for _, m := range all {
		if err := unix.Mount("", m.point, "", unix.MS_PRIVATE, ""); err != nil {
			return fmt.Errorf("make %s private: %w", m.point, err)
		}
	}
	entries, err := os.ReadDir("/")
	if err != nil {
		return err
	}
	for _, e := range entries {
		from, to := filepath.Join("/", e.Name()), filepath.Join(root, e.Name())
		switch {
		case e.Type()&os.ModeSymlink != 0:
			target, err := os.Readlink(from)
			if err != nil {
				return err
			}
			if err := os.Symlink(target, to); err != nil {
				return err
			}
		case e.IsDir():
			if err := os.Mkdir(to, 0o755); err != nil {
				return err
			}
			if e.Name() == "etc" {
				continue
			}
			if err := unix.Mount(from, to, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
				return fmt.Errorf("bind %s: %w", from, err)
			}
		}
	}
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	if err := unix.Chroot(root); err != nil {
		return fmt.Errorf("chroot: %w", err)
	}
	if err := os.Chdir(dir); err != nil {
		return err
	}
	if err := os.Unsetenv(chrootEnv); err != nil {
		return err
	}
	return unix.Exec(os.Args[0], os.Args, os.Environ())
}
