package kerneltest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// MountLoop creates a filesystem of a type (ext4, xfs, btrfs) and a size in bytes in a
// file, mounts it with the options and returns the mount point. It is unmounted when
// the test ends. The test is skipped without root or without mkfs for the type.
func MountLoop(t testing.TB, fstype string, size int64, options string, mkfs ...string) string {
	t.Helper()
	point, err := TryMountLoop(t, fstype, size, options, mkfs...)
	if err != nil {
		t.Fatal(err)
	}
	return point
}

// TryMountLoop is MountLoop, but returns an error if the mount fails.
func TryMountLoop(t testing.TB, fstype string, size int64, options string, mkfs ...string) (string, error) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root to mount a filesystem")
	}
	program, err := exec.LookPath("mkfs." + fstype)
	if err != nil {
		t.Skip("needs mkfs." + fstype)
	}
	dir := t.TempDir()
	image, point := filepath.Join(dir, "image"), filepath.Join(dir, "mnt")
	f, err := os.Create(image)
	if err == nil {
		err = f.Truncate(size)
		f.Close()
	}
	if err == nil {
		err = os.Mkdir(point, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := run(program, append(mkfs, image)...); err != nil {
		t.Fatal(err)
	}
	mountOptions := "loop"
	if options != "" {
		mountOptions += "," + options
	}
	if err := run("mount", "-t", fstype, "-o", mountOptions, image, point); err != nil {
		return "", err
	}
	t.Cleanup(func() { Unmount(t, point) })
	return point, nil
}

// Mount calls mount(2), and unmounts when the test ends. The test is skipped if
// the mount fails.
func Mount(t testing.TB, source, target, fstype string, flags uintptr, data string) {
	t.Helper()
	if err := unix.Mount(source, target, fstype, flags, data); err != nil {
		t.Skipf("can't mount %s: %v", strconv.Quote(fstype), err)
	}
	t.Cleanup(func() { Unmount(t, target) })
}

// Unmount unmounts target. A target that is not mounted is not an error.
func Unmount(t testing.TB, target string) {
	t.Helper()
	var err error
	for range 100 {
		if err = unix.Unmount(target, unix.UMOUNT_NOFOLLOW); err != unix.EBUSY {
			break
		}
		time.Sleep(10 * time.Millisecond) // another process has a file of it open
	}
	if err == unix.EBUSY {
		err = unix.Unmount(target, unix.MNT_DETACH)
	}
	if err != nil && err != unix.EINVAL && err != unix.ENOENT {
		t.Errorf("unmount %s: %v", target, err)
	}
}

func run(name string, args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if out, err := exec.CommandContext(ctx, name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %q: %w: %s", name, args, err, out)
	}
	return nil
}
