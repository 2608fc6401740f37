package act

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Urgent is a thread that signals where there is much to signal: among thousands
// of tasks that fork, a thread like theirs gets too little of the processors to be
// faster than they are. Who has a job for it and the thread itself wait in the
// kernel: to go through Go's scheduler takes a thread like all others.
type Urgent struct {
	// Started is called on the thread, to give it a priority. It may be nil.
	Started func()

	bell    int         // an eventfd, rung for the job
	busy    atomic.Bool // somebody has a job for it
	job     atomic.Pointer[urgentJob]
	running atomic.Bool
}

type urgentJob struct {
	do    func()
	done  int         // an eventfd
	ended atomic.Bool // what Go's memory model goes by
}

// NewUrgent returns one that has no thread until it runs. Its descriptor is kept for
// as long as the process lives.
func NewUrgent() (*Urgent, error) {
	bell, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make bell: %w", os.NewSyscallError("eventfd2", err))
	}
	return &Urgent{bell: bell}, nil
}

// Run has the thread until ctx ends.
func (u *Urgent) Run(ctx context.Context) {
	runtime.LockOSThread() // and never unlocked: a thread with a priority is not for others
	if u.Started != nil {
		u.Started()
	}
	defer context.AfterFunc(ctx, func() { ring(u.bell) })()
	u.running.Store(true)
	defer u.running.Store(false)
	var count [8]byte
	for ctx.Err() == nil {
		_, _ = unix.Read(u.bell, count[:]) // interrupted, it is asked again
		if job := u.job.Swap(nil); job != nil {
			job.do()
			job.ended.Store(true)
			ring(job.done)
		}
	}
}

// do runs a job on the thread, or on the caller's where another has the thread, and
// returns when it has ended. u may be nil.
func (u *Urgent) do(job func()) {
	if u == nil || !u.running.Load() || !u.busy.CompareAndSwap(false, true) {
		job()
		return
	}
	defer u.busy.Store(false)
	done, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		job()
		return
	}
	defer unix.Close(done)
	mine := &urgentJob{do: job, done: done}
	u.job.Store(mine)
	ring(u.bell)
	for fds := []unix.PollFd{{Fd: int32(done), Events: unix.POLLIN}}; ; {
		if n, _ := unix.Poll(fds, int(lookAgain.Milliseconds())); n > 0 && mine.ended.Load() {
			return
		}
		if !u.running.Load() && u.job.CompareAndSwap(mine, nil) {
			job() // the thread has ended meanwhile
			return
		}
	}
}

// lookAgain is how often it is looked whether the thread is still there.
const lookAgain = 100 * time.Millisecond

// ring adds one to an eventfd, which wakes who waits for it.
func ring(fd int) {
	_, _ = unix.Write(fd, binary.NativeEndian.AppendUint64(nil, 1)) // it waits for nothing and can't fail
}
