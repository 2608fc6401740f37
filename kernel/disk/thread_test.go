package disk

import (
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel/kerneltest"
	"github.com/evictd/evictd/kernel/process"
)

// A thread started by a process of high priority has normal priority, and does not change
// that of other threads.
func TestLockThread(t *testing.T) {
	kerneltest.RequireRaisePriority(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with its priority
		if err := process.SetThreadNice(-7); err != nil {
			t.Error(err)
		}
		if err := LockThread(); err != nil {
			t.Errorf("LockThread: %v", err)
		}
		io, _, errno := unix.Syscall(unix.SYS_IOPRIO_GET, ioprioWhoProcess, 0, 0)
		if want := uintptr(ioprioClassBest<<ioprioClassShift | ioprioLowest); errno != 0 || io != want {
			t.Errorf("I/O priority %#x, %v; want %#x", io, errno, want)
		}
		if s, err := process.ThreadScheduling(); err != nil || s.Nice != 0 {
			t.Errorf("scheduling %+v, %v; want nice 0", s, err)
		}
	}()
	<-done
}

func TestThreadTime(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, err := ThreadTime()
	if err != nil {
		t.Fatal(err)
	}
	for {
		now, err := ThreadTime()
		if err != nil || now < before {
			t.Fatalf("ThreadTime = %v, %v; want at least %v", now, err, before)
		}
		if now > before+time.Millisecond {
			return
		}
	}
}
