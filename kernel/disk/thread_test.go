package disk

import (
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel/kerneltest"
	"github.com/evictd/evictd/kernel/process"
)

// A thread started by a process of high priority has normal priority. Other threads
// can make it yield and return.
func TestThread(t *testing.T) {
	kerneltest.RequireRaisePriority(t)
	threads, requests, nices := make(chan *Thread), make(chan struct{}), make(chan int)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with its priority
		if err := process.SetThreadNice(-7); err != nil {
			t.Error(err)
		}
		locked, err := LockThread()
		if err != nil {
			t.Errorf("LockThread: %v", err)
		}
		io, _, errno := unix.Syscall(unix.SYS_IOPRIO_GET, ioprioWhoProcess, 0, 0)
		if want := uintptr(ioprioClassBest<<ioprioClassShift | ioprioLowest); errno != 0 || io != want {
			t.Errorf("I/O priority %#x, %v; want %#x", io, errno, want)
		}
		threads <- locked
		for range requests {
			s, err := process.ThreadScheduling()
			if err != nil {
				t.Error(err)
			}
			nices <- s.Nice
		}
		locked.MarkEnded()
		close(nices)
	}()
	locked := <-threads
	want := func(nice int) {
		t.Helper()
		requests <- struct{}{}
		if got := <-nices; got != nice {
			t.Errorf("nice value %d; want %d", got, nice)
		}
	}
	want(0)
	for _, yield := range []bool{true, false, true} {
		if err := locked.Yield(yield); err != nil {
			t.Errorf("Yield(%t): %v", yield, err)
		}
		want(map[bool]int{true: 19, false: 0}[yield])
	}
	close(requests)
	<-nices
	if err := locked.Yield(false); err != nil || locked.tid != 0 {
		t.Errorf("Yield of a thread that has ended = %v; want no operation", err)
	}
	// If the priority could not be raised again, it is not lowered.
	if err := (&Thread{tid: -1, fixed: true}).Yield(true); err != nil {
		t.Errorf("Yield of a thread whose priority can't be raised = %v; want nil", err)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if s, err := process.ThreadScheduling(); err != nil || s.Nice == 19 {
		t.Errorf("another thread's scheduling is %+v, %v", s, err)
	}
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
