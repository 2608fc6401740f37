package disk

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel/kerneltest"
)

func TestRemoveTree(t *testing.T) {
	root := kerneltest.Tree(t, map[string]string{
		"pod/main/0.log": "x", "pod/main/1.log": "x", "pod/empty/": "", "pod/link@": "/etc", "outside/file": "x", "pod/out@": "../outside", "file": "x",
	})
	for _, name := range []string{"pod", "file", "not-there", "not/there"} {
		path := filepath.Join(root, name)
		if err := RemoveTree(path); err != nil {
			t.Errorf("RemoveTree(%s) = %v", name, err)
		}
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s exists after RemoveTree (%v)", name, err)
		}
	}
	if _, err := os.Stat(filepath.Join(root, "outside/file")); err != nil {
		t.Errorf("a symbolic link was followed: %v", err)
	}
}

// RemoveTree keeps a mount point in the directory, whether another filesystem, or a
// directory or a file of the same one is mounted there.
func TestRemoveTreeMounts(t *testing.T) {
	for _, kind := range []string{"tmpfs", "directory", "file", "top"} {
		root := kerneltest.Tree(t, map[string]string{"pod/a/0.log": "x", "pod/mnt/": "", "pod/z/0.log": "x", "pod/file": "", "outside/kept": "x"})
		kept := filepath.Join(root, "pod/mnt/kept")
		switch kind {
		case "tmpfs":
			kerneltest.Mount(t, "tmpfs", filepath.Join(root, "pod/mnt"), "tmpfs", 0, "size=64k")
			kerneltest.Write(t, root, map[string]string{"pod/mnt/kept": "x"})
		case "directory":
			kerneltest.Mount(t, filepath.Join(root, "outside"), filepath.Join(root, "pod/mnt"), "", unix.MS_BIND, "")
		case "file":
			kept = filepath.Join(root, "pod/file")
			kerneltest.Mount(t, filepath.Join(root, "outside/kept"), kept, "", unix.MS_BIND, "")
		case "top":
			kept = filepath.Join(root, "pod/kept")
			kerneltest.Mount(t, filepath.Join(root, "outside"), filepath.Join(root, "pod"), "", unix.MS_BIND, "")
		}
		if err := RemoveTree(filepath.Join(root, "pod")); !errors.Is(err, ErrMountPoint) {
			t.Errorf("%s: RemoveTree() = %v; want ErrMountPoint", kind, err)
		}
		if b, err := os.ReadFile(kept); err != nil || string(b) != "x" {
			t.Errorf("%s: content of the mount = %q, %v; want it unchanged", kind, b, err)
		}
		for _, gone := range []string{"pod/a", "pod/z"} {
			if _, err := os.Stat(filepath.Join(root, gone)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s: %s exists after RemoveTree (%v)", kind, gone, err)
			}
		}
	}
}
