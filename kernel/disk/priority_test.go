package disk

import (
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel/kerneltest"
	"github.com/evictd/evictd/kernel/process"
)

// A thread made by a process of high priority has ordinary priority, yields and comes
// back, at the word of other threads.
func TestThread(t *testing.T) {
	kerneltest.NeedsRaise(t)
	threads, ask, answers := make(chan *Thread), make(chan struct{}), make(chan int)
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
		if want := uintptr(ioprioClassBest<<ioprioClassShift | ioprioLeast); errno != 0 || io != want {
			t.Errorf("I/O priority %#x, %v; want %#x", io, errno, want)
		}
		threads <- locked
		for range ask {
			s, err := process.ThreadScheduling()
			if err != nil {
				t.Error(err)
			}
			answers <- s.Nice
		}
		locked.Ended()
		close(answers)
	}()
	locked := <-threads
	want := func(nice int) {
		t.Helper()
		ask <- struct{}{}
		if got := <-answers; got != nice {
			t.Errorf("nice %d; want %d", got, nice)
		}
	}
	want(0)
	for _, yield := range []bool{true, false, true} {
		if err := locked.Yield(yield); err != nil {
			t.Errorf("Yield(%t): %v", yield, err)
		}
		want(map[bool]int{true: 19, false: 0}[yield])
	}
	close(ask)
	<-answers
	if err := locked.Yield(false); err != nil || locked.tid != 0 {
		t.Errorf("Yield of a thread that has ended: %v; want nothing done", err)
	}
	// Where the priority could not be raised again it stays.
	if err := (&Thread{tid: -1, fixed: true}).Yield(true); err != nil {
		t.Errorf("Yield where it could not be undone: %v", err)
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
	for began := before; ; {
		now, err := ThreadTime()
		if err != nil || now < began {
			t.Fatalf("ThreadTime = %v, %v; want no less than %v", now, err, began)
		}
		if now > began+time.Millisecond {
			return
		}
	}
}
