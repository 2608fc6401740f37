package kerneltest

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// RequireRaisePriority skips the test if a thread can't raise its priority, which needs
// CAP_SYS_NICE or an RLIMIT_NICE (kernel/sys.c: set_one_prio, can_nice). Root in a
// container often has neither.
func RequireRaisePriority(t testing.TB) {
	t.Helper()
	raised := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with its priority
		err := unix.Setpriority(unix.PRIO_PROCESS, 0, 19)
		if err == nil {
			err = unix.Setpriority(unix.PRIO_PROCESS, 0, -7)
		}
		raised <- err
	}()
	if err := <-raised; err != nil {
		t.Skipf("needs CAP_SYS_NICE to raise a priority: %v", err)
	}
}
