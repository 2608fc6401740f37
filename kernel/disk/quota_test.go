package disk

import (
	"errors"
	"path/filepath"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel/kerneltest"
)

// setProject gives a directory a project, as the kubelet does.
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

// projects mounts a filesystem that knows projects, and accounts for them if asked to.
func projects(t *testing.T, fstype string, size int64, options string, mkfs ...string) string {
	t.Helper()
	root, err := kerneltest.TryLoop(t, fstype, size, options, append([]string{"-q"}, mkfs...)...)
	if err != nil {
		t.Skipf("needs project quota (CONFIG_QUOTA, CONFIG_QFMT_V2): %v", err)
	}
	return root
}

func TestReadProject(t *testing.T) {
	testReadProject(t, projects(t, "ext4", 64*mebibyte, "prjquota", "-O", "quota,project", "-E", "quotatype=prjquota"))
}

func TestReadProjectOnXFS(t *testing.T) {
	testReadProject(t, projects(t, "xfs", 512*mebibyte, "prjquota"))
}

func testReadProject(t *testing.T, root string) {
	mine, other := mkdir(t, root, "mine"), mkdir(t, root, "other")
	setProject(t, mine, 4711, flagInherit)
	fill(t, filepath.Join(mkdir(t, mine, "deep", "er"), "f"), 5*mebibyte)
	fill(t, filepath.Join(other, "f"), 7*mebibyte)
	got, err := ReadProject(mine)
	if err != nil {
		t.Fatal(err)
	}
	walked, err := (&Walker{}).Usage(t.Context(), mine)
	if err != nil {
		t.Fatal(err)
	}
	if want := (Project{ID: 4711, Usage: walked}); got != want {
		t.Errorf("ReadProject = %+v; want %+v as a walk finds", got, want)
	}
	if got, err := ReadProject(other); !errors.Is(err, ErrNoProject) {
		t.Errorf("ReadProject of a directory without one = %+v, %v; want ErrNoProject", got, err)
	}
	setProject(t, other, 4712, 0)
	if got, err := ReadProject(other); !errors.Is(err, ErrNoProject) {
		t.Errorf("ReadProject of a directory that does not hand it on = %+v, %v; want ErrNoProject", got, err)
	}
}

// Without accounting, a number that a directory carries tells nothing.
func TestReadProjectNumberAlone(t *testing.T) {
	dir := mkdir(t, projects(t, "ext4", 64*mebibyte, "", "-O", "project"), "d")
	setProject(t, dir, 4711, flagInherit)
	if got, err := ReadProject(dir); !errors.Is(err, ErrNoProject) {
		t.Errorf("ReadProject = %+v, %v; want ErrNoProject", got, err)
	}
}

func TestReadProjectOfOthers(t *testing.T) {
	root := kerneltest.Loop(t, "ext4", 16*mebibyte, "")
	for _, path := range []string{root, "/proc", "/dev/shm"} {
		if got, err := ReadProject(path); !errors.Is(err, ErrNoProject) {
			t.Errorf("ReadProject of %s = %+v, %v; want ErrNoProject", path, got, err)
		}
	}
	if _, err := ReadProject(filepath.Join(root, "none")); !errors.Is(err, unix.ENOENT) {
		t.Errorf("ReadProject of nothing: %v", err)
	}
}
