package kerneltest

import (
	"fmt"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// MountHanging mounts a FUSE filesystem without a server. System calls on it block until
// release is called, and then fail. It is unmounted when the test ends. The test is
// skipped without root or FUSE.
func MountHanging(t testing.TB, point string) (release func()) {
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
