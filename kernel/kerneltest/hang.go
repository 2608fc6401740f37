package kerneltest

import (
	"fmt"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// Hang mounts a filesystem that nobody answers for: whoever asks it what it has
// waits until release is called, and gets an error then. It is taken away when
// the test ends. Without root, or FUSE, the test is skipped.
func Hang(t testing.TB, point string) (release func()) {
	t.Helper()
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skip("needs /dev/fuse")
	}
	release = sync.OnceFunc(func() { unix.Close(fd) })
	data := fmt.Sprintf("fd=%d,rootmode=40000,user_id=%d,group_id=%d", fd, os.Getuid(), os.Getgid())
	if err := unix.Mount("evictd-hang", point, "fuse", unix.MS_NOSUID|unix.MS_NODEV, data); err != nil {
		release()
		t.Skipf("needs to mount a FUSE filesystem: %v", err)
	}
	t.Cleanup(func() {
		release()
		if err := unix.Unmount(point, unix.MNT_DETACH); err != nil && err != unix.EINVAL {
			t.Errorf("unmount %s: %v", point, err)
		}
	})
	return release
}
