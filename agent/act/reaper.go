package act

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Reaper has threads for the parts of a kill that can block.
//
// It releases the memory of dying processes by process_mrelease(2) (Linux 5.15), which
// helps if they get too little CPU time to exit. If a process's mmap lock is held by a
// thread that hangs in the kernel, a thread of the Reaper hangs with it; processes then
// release their memory only by exiting.
//
// It also finishes kills. It writes cgroup.kill, which blocks while the cgroup tree is
// changed, or signals the processes that a [FastKiller] left, which takes longer the more
// cgroups and processes there are.
type Reaper struct {
	processes, cgroups queue
	// OnStart is called on the thread that finishes kills, to set its priority: the
	// victims compete with it for CPU time. It may be nil.
	OnStart func()

	reserve fdReserve // of the thread that finishes kills
	stopped atomic.Bool
	hung    atomic.Bool // a thread has not ended in time
}

// reapTask is a dying process or a container whose kill is to be finished. It has a
// reference of the handle.
type reapTask struct {
	handle *KillHandle
	fd     int // the pidfd of a dying process; unused for a container
	// For a container: checked means that all its processes were read and none is
	// guarded.
	container *containerFDs
	checked   bool
}

// queue is the queue of one kind of thread.
type queue struct {
	tasks chan reapTask
	// wakeFD is an eventfd, incremented once for each task. The thread sleeps in the
	// kernel and is woken by the kernel, not by Go's scheduler, which can be late.
	wakeFD int
}

// releaseThreads is the number of threads that release memory. queueSize is the length
// of each queue.
const releaseThreads, queueSize = 2, 64

// NewReaper returns a Reaper that does nothing until it runs.
func NewReaper() (*Reaper, error) {
	r := &Reaper{processes: queue{wakeFD: -1}, cgroups: queue{wakeFD: -1}}
	for _, q := range []*queue{&r.processes, &r.cgroups} {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_SEMAPHORE)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("create reaper: %w", os.NewSyscallError("eventfd2", err)), r.Close())
		}
		*q = queue{make(chan reapTask, queueSize), fd}
	}
	r.reserve.fill()
	return r, nil
}

// reaperStopTimeout bounds how long Run waits for its threads at the end: one that hangs
// in the kernel with its victim must not keep evictd from exiting.
const reaperStopTimeout = time.Second

// Run runs the threads until ctx ends. It is called once.
func (r *Reaper) Run(ctx context.Context) {
	var threads sync.WaitGroup
	for range releaseThreads {
		threads.Go(func() { r.serve(&r.processes, func(d reapTask) { mrelease(d.fd) }) })
	}
	threads.Go(func() {
		if r.OnStart != nil {
			// Never unlocked: the thread has a priority and must not run other goroutines.
			runtime.LockOSThread()
			r.OnStart()
		}
		r.serve(&r.cgroups, r.finishKill)
	})
	<-ctx.Done()
	r.stopped.Store(true)
	for range releaseThreads {
		r.processes.wake()
	}
	r.cgroups.wake()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		threads.Wait()
	}()
	select {
	case <-ended:
	case <-time.After(reaperStopTimeout):
		r.hung.Store(true)
	}
}

// serve runs the tasks of a queue on a locked thread.
func (r *Reaper) serve(q *queue, work func(reapTask)) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for q.wait() && !r.stopped.Load() {
		select {
		case d := <-q.tasks:
			work(d)
			d.handle.Unref()
		default:
		}
	}
}

// Close closes the eventfds and the reserve, after the last use of the Reaper. It leaves
// them open if a thread hangs, because it may use them later. Further calls do nothing.
func (r *Reaper) Close() error {
	if r.hung.Load() {
		return nil
	}
	errs := []error{r.reserve.close()}
	for _, q := range []*queue{&r.processes, &r.cgroups} {
		if q.wakeFD >= 0 {
			errs = append(errs, os.NewSyscallError("close", unix.Close(q.wakeFD)))
			q.wakeFD = -1
		}
	}
	return errors.Join(errs...)
}

// wait returns true when the thread is woken, for a task or by Run at its end, and false if
// the eventfd is closed.
func (q *queue) wait() bool {
	var count [8]byte
	for {
		if _, err := unix.Read(q.wakeFD, count[:]); err != unix.EINTR {
			return err == nil
		}
	}
}

// wake wakes one thread.
func (q *queue) wake() {
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	_, _ = unix.Write(q.wakeFD, one[:]) // the counter can't overflow, so this does not block or fail
}

// enqueue queues a task if there is room, and takes a reference of its handle until the
// task is done. It does not block or allocate.
func (q *queue) enqueue(d reapTask) bool {
	h := d.handle
	if !h.refInUse() {
		return false
	}
	select {
	case q.tasks <- d:
		q.wake()
		return true
	default:
		h.Unref()
		return false
	}
}

// releaseMemory queues the release of a signalled process's memory, if there is room.
func (r *Reaper) releaseMemory(h *KillHandle, fd int) {
	if !r.stopped.Load() {
		r.processes.enqueue(reapTask{handle: h, fd: fd})
	}
}

// finish queues the rest of a container's kill. It returns false if the queue is full, or
// if Run has ended or is about to.
func (r *Reaper) finish(h *KillHandle, m *containerFDs, checked bool) bool {
	return !r.stopped.Load() && r.cgroups.enqueue(reapTask{handle: h, container: m, checked: checked})
}

// finishKill finishes the kill of a container. It drops errors: Killer.Follow meets them
// again.
func (r *Reaper) finishKill(d reapTask) {
	m := d.container
	if d.checked && m.killFD >= 0 {
		killCgroup(m.killFD)
		return
	}
	v := m.startVictim(d.handle)
	defer v.close()
	if outOfDescriptors(v.kill(d.handle.procfs)) {
		_ = r.reserve.close()
		_ = v.kill(d.handle.procfs)
		r.reserve.fill()
	}
	m.finisherSignalled.Store(int64(len(v.signalled)))
}

var one = [...]byte{'1'}

// killCgroup writes cgroup.kill. It drops errors: a cgroup that is gone has no process,
// and Killer.Follow finds the processes left by any other error.
func killCgroup(fd int) {
	for {
		if _, err := unix.Write(fd, one[:]); err != unix.EINTR {
			return
		}
	}
}

// mrelease calls process_mrelease(2), again while the kernel could release only a part of
// the memory (EAGAIN; mm/oom_kill.c: __oom_reap_task_mm). While the mmap lock is contended,
// the call waits instead.
func mrelease(fd int) {
	for range maxReleaseAttempts {
		if _, _, errno := unix.Syscall(unix.SYS_PROCESS_MRELEASE, uintptr(fd), 0, 0); errno != unix.EAGAIN {
			return
		}
	}
}
