package disk

import (
	"errors"
	"path/filepath"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel/kerneltest"
)

// setProject sets the quota project of a directory, as the kubelet does.
func setProject(t *testing.T, path string, id, flags uint32) {
	t.Helper()
	fd, err := openDir(unix.AT_FDCWD, path)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	x := fsxattr{project: id, flags: flags}
	const fsIocFsSetXattr = 0x401c5820
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), fsIocFsSetXattr, uintptr(unsafe.Pointer(&x))); errno != 0 {
		t.Fatalf("FS_IOC_FSSETXATTR on %s: %v", path, errno)
	}
}

// mountProjects mounts a filesystem with project IDs, and with project quota if the
// options ask for it.
func mountProjects(t *testing.T, fstype string, size int64, options string, mkfs ...string) string {
	t.Helper()
	root, err := kerneltest.TryMountLoop(t, fstype, size, options, append([]string{"-q"}, mkfs...)...)
	if err != nil {
		t.Skipf("needs project quota (CONFIG_QUOTA, CONFIG_QFMT_V2): %v", err)
	}
	return root
}

func TestReadProject(t *testing.T) {
	testReadProject(t, mountProjects(t, "ext4", 64*mebibyte, "prjquota", "-O", "quota,project", "-E", "quotatype=prjquota"))
}

func TestReadProjectOnXFS(t *testing.T) {
	testReadProject(t, mountProjects(t, "xfs", 512*mebibyte, "prjquota"))
}

func testReadProject(t *testing.T, root string) {
	dir, other := mkdir(t, root, "dir"), mkdir(t, root, "other")
	setProject(t, dir, 4711, flagInherit)
	fill(t, filepath.Join(mkdir(t, dir, "deep", "er"), "f"), 5*mebibyte)
	fill(t, filepath.Join(other, "f"), 7*mebibyte)
	got, err := ReadProject(dir)
	if err != nil {
		t.Fatal(err)
	}
	walked, err := (&Walker{}).Usage(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if want := (Project{ID: 4711, Usage: walked}); got != want {
		t.Errorf("ReadProject = %+v; want %+v as counted by a walk", got, want)
	}
	if got, err := ReadProject(other); !errors.Is(err, ErrNoProject) {
		t.Errorf("ReadProject of a directory without a project = %+v, %v; want ErrNoProject", got, err)
	}
	setProject(t, other, 4712, 0)
	if got, err := ReadProject(other); !errors.Is(err, ErrNoProject) {
		t.Errorf("ReadProject of a directory without FS_XFLAG_PROJINHERIT = %+v, %v; want ErrNoProject", got, err)
	}
}

// A project ID without quota accounting is not a project quota.
func TestReadProjectNumberAlone(t *testing.T) {
	dir := mkdir(t, mountProjects(t, "ext4", 64*mebibyte, "", "-O", "project"), "d")
	setProject(t, dir, 4711, flagInherit)
	if got, err := ReadProject(dir); !errors.Is(err, ErrNoProject) {
		t.Errorf("ReadProject = %+v, %v; want ErrNoProject", got, err)
	}
}

func TestReadProjectUnsupported(t *testing.T) {
	root := kerneltest.MountLoop(t, "ext4", 16*mebibyte, "")
	for _, path := range []string{root, "/proc", "/dev/shm"} {
		if got, err := ReadProject(path); !errors.Is(err, ErrNoProject) {
			t.Errorf("ReadProject of %s = %+v, %v; want ErrNoProject", path, got, err)
		}
	}
	if _, err := ReadProject(filepath.Join(root, "none")); !errors.Is(err, unix.ENOENT) {
		t.Errorf("ReadProject of a missing path = %v; want %v", err, unix.ENOENT)
	}
}
