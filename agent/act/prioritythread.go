package act

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// PriorityThread is a thread, usually of real-time priority, that signals containers with many
// processes. A thread of normal priority gets too little CPU time next to thousands of
// forking tasks to signal faster than they fork. The thread and its caller wait in the
// kernel, because a wake-up by Go's scheduler needs a thread of normal priority.
type PriorityThread struct {
	// OnStart is called on the thread, to set its priority. It may be nil.
	OnStart func()

	wakeFD  int         // an eventfd, incremented for each job
	busy    atomic.Bool // a caller has a job on the thread
	job     atomic.Pointer[threadJob]
	running atomic.Bool
}

type threadJob struct {
	do    func()
	done  int         // an eventfd
	ended atomic.Bool // because Go does not take an eventfd for synchronization
}

// NewPriorityThread returns a [PriorityThread] without a thread; Run provides it. The
// eventfd is never closed.
func NewPriorityThread() (*PriorityThread, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create priority thread: %w", os.NewSyscallError("eventfd2", err))
	}
	return &PriorityThread{wakeFD: fd}, nil
}

// Run runs the thread until ctx ends.
func (t *PriorityThread) Run(ctx context.Context) {
	runtime.LockOSThread() // never unlocked: the thread has a priority and must not run other goroutines
	if t.OnStart != nil {
		t.OnStart()
	}
	defer context.AfterFunc(ctx, func() { wakeEventFD(t.wakeFD) })()
	t.running.Store(true)
	defer t.running.Store(false)
	var count [8]byte
	for ctx.Err() == nil {
		_, _ = unix.Read(t.wakeFD, count[:]) // after EINTR the loop reads again
		if job := t.job.Swap(nil); job != nil {
			job.do()
			job.ended.Store(true)
			wakeEventFD(job.done)
		}
	}
}

// do runs a job on the thread and returns when it has ended. It runs the job on the
// caller's thread if the thread is busy or does not run. t may be nil.
func (t *PriorityThread) do(job func()) {
	if t == nil || !t.running.Load() || !t.busy.CompareAndSwap(false, true) {
		job()
		return
	}
	defer t.busy.Store(false)
	done, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		job()
		return
	}
	defer unix.Close(done)
	own := &threadJob{do: job, done: done}
	t.job.Store(own)
	wakeEventFD(t.wakeFD)
	for fds := []unix.PollFd{{Fd: int32(done), Events: unix.POLLIN}}; ; {
		// The end of the thread wakes no caller, so check for it every 100 ms.
		if n, _ := unix.Poll(fds, 100); n > 0 && own.ended.Load() {
			return
		}
		if !t.running.Load() && t.job.CompareAndSwap(own, nil) {
			job() // the thread has ended before it took the job
			return
		}
	}
}

// wakeEventFD adds one to an eventfd, which wakes its reader.
func wakeEventFD(fd int) {
	_, _ = unix.Write(fd, binary.NativeEndian.AppendUint64(nil, 1)) // the counter can't overflow, so this does not block or fail
}
