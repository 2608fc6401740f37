package memory

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

	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/kernel/process"
)

// AsyncReader reads a [Memory] for a thread that must not block. memory.stat of kubepods can
// block until the kernel has flushed it (kernel/cgroup/rstat.c), so a reader thread reads
// it with a deadline. After the deadline the signal is Unreadable, and the usage with page
// cache is read directly. Only one goroutine may call its methods, besides Run.
type AsyncReader struct {
	memory  *Memory
	onStart func()
	// tid is the reader thread's if onStart has given it real-time priority, else 0.
	tid atomic.Int64
	// slowed is set if the reader thread has lost its priority, because a read took longer
	// than its deadline.
	slowed atomic.Bool
	// wakeFD and doneFD are eventfds: the kernel wakes the thread that waits, without Go's
	// scheduler.
	wakeFD, doneFD       int
	deadline             time.Duration
	requested, completed atomic.Uint64 // sequence numbers of readings
	pollDone             [1]unix.PollFd
	// usageFD is the file with the usage of kubepods; -1 for none. offeredFD is the newer file
	// by which takeUsageFD replaces it, plus 1; 0 for none.
	usageFD   int
	offeredFD atomic.Int64

	// The current reading, of pod or, if that is nil, of kubepods. Only the reader thread uses
	// these fields until the reading is completed.
	pod         Pod
	now         time.Time
	allocatable signal.Observation
	kubepods    kubepodsReading
	podUsage    podUsage
}

// Pod is a pod whose memory.stat is read. Memory returns the working set and the anonymous
// part of it, in bytes. ok is false if it can't be read.
type Pod interface {
	Memory() (workingSet, anonymous int64, ok bool)
}

// podUsage is the result of [Pod].Memory.
type podUsage struct {
	workingSet, anonymous int64
	ok                    bool
}

// ReadTimeout bounds how long an alarm waits for memory.stat of kubepods, and how long for
// that of all pods together, and so for the kernel's flush.
const ReadTimeout = 10 * time.Millisecond

var errDeadline = fmt.Errorf("read memory of kubepods: no result within %v", ReadTimeout)

// OpenAsyncReader opens the files of the signals. Until Run runs, kubepods can't be read.
// The reader thread calls onStart to set its priority: the calling thread waits for it, so
// it needs the same one. At normal priority it was seen to wait 6 ms for a busy CPU. After
// the deadline the thread finishes its read without real-time priority: a read that the
// kernel does not end for long could occupy a CPU, and reach the limit at which the kernel
// kills evictd (RLIMIT_RTTIME). onStart may be nil.
func OpenAsyncReader(o Options, onStart func()) (*AsyncReader, error) {
	memory, err := Open(o)
	if err != nil {
		return nil, err
	}
	if onStart == nil {
		onStart = func() {}
	}
	a := &AsyncReader{memory: memory, onStart: onStart, wakeFD: -1, doneFD: -1, usageFD: -1, deadline: ReadTimeout}
	memory.onOpen = a.offerUsageFD
	for _, fd := range []*int{&a.wakeFD, &a.doneFD} {
		if *fd, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
			return nil, errors.Join(fmt.Errorf("wait for a memory reading: %w", os.NewSyscallError("eventfd2", err)), a.Close())
		}
	}
	a.pollDone[0] = unix.PollFd{Fd: int32(a.doneFD), Events: unix.POLLIN}
	return a, nil
}

// Close closes all descriptors. Run must have returned, and no other method may run.
// Further calls do nothing.
func (a *AsyncReader) Close() error {
	errs := []error{a.memory.Close()}
	a.takeUsageFD()
	for _, fd := range []*int{&a.wakeFD, &a.doneFD, &a.usageFD} {
		if *fd >= 0 {
			errs = append(errs, os.NewSyscallError("close", unix.Close(*fd)))
			*fd = -1
		}
	}
	return errors.Join(errs...)
}

// Run is the reader thread. It returns when ctx ends.
func (a *AsyncReader) Run(ctx context.Context) error {
	runtime.LockOSThread() // never unlocked: the thread has a priority and must not run other goroutines
	a.onStart()
	if s, err := process.ThreadScheduling(); err == nil && s.Policy == process.FIFO {
		a.tid.Store(int64(unix.Gettid()))
		defer a.tid.Store(0)
	}
	var notified sync.WaitGroup
	notified.Add(1)
	stop := context.AfterFunc(ctx, func() { defer notified.Done(); notify(a.wakeFD) })
	defer func() {
		if !stop() {
			notified.Wait() // Close may close wakeFD afterwards
		}
	}()
	wake := [1]unix.PollFd{{Fd: int32(a.wakeFD), Events: unix.POLLIN}}
	for {
		if _, err := unix.Poll(wake[:], -1); err != nil && err != unix.EINTR {
			return fmt.Errorf("wait for a memory reading: %w", os.NewSyscallError("poll", err))
		}
		if ctx.Err() != nil {
			return nil
		}
		drain(a.wakeFD)
		seq := a.requested.Load()
		if seq == a.completed.Load() {
			continue
		}
		if a.slowed.Swap(false) {
			a.onStart()
		}
		if a.pod == nil {
			a.allocatable, a.kubepods = a.memory.readKubepods(a.now)
		} else {
			a.podUsage.workingSet, a.podUsage.anonymous, a.podUsage.ok = a.pod.Memory()
			a.pod = nil
		}
		a.completed.Store(seq)
		notify(a.doneFD)
	}
}

// Read implements [Reader]. It allocates only when it opens kubepods.
func (a *AsyncReader) Read(now, _ time.Time, into *signal.Observations) Node {
	node := a.memory.readNode(now, into)
	if a.request(nil, now, a.deadline) {
		into[signal.AllocatableMemoryAvailable] = a.allocatable
		a.kubepods.applyTo(&node)
		return node
	}
	into[signal.AllocatableMemoryAvailable] = unreadable(now, errDeadline)
	a.takeUsageFD()
	readUsage(a.usageFD).applyTo(&node)
	return node
}

// ReadNode implements [Files]. It does not allocate.
func (a *AsyncReader) ReadNode(now time.Time, into *signal.Observations) Node {
	return a.memory.readNode(now, into)
}

// ReadPod implements [Reader]. It does not allocate.
func (a *AsyncReader) ReadPod(p Pod, limit time.Duration) (workingSet, anonymous int64, ok bool) {
	if !a.request(p, time.Time{}, limit) {
		return 0, 0, false
	}
	return a.podUsage.workingSet, a.podUsage.anonymous, a.podUsage.ok
}

// offerUsageFD duplicates the usage file that Memory has opened, for the calling thread:
// Memory closes its own when the cgroup is gone.
func (a *AsyncReader) offerUsageFD(usage int) {
	fd, err := unix.FcntlInt(uintptr(usage), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return // the calling thread keeps the old file
	}
	if old := a.offeredFD.Swap(int64(fd) + 1); old > 0 {
		unix.Close(int(old) - 1)
	}
}

// takeUsageFD replaces usageFD with the file that was opened last.
func (a *AsyncReader) takeUsageFD() {
	fd := a.offeredFD.Swap(0)
	if fd == 0 {
		return
	}
	if a.usageFD >= 0 {
		unix.Close(a.usageFD)
	}
	a.usageFD = int(fd) - 1
}

// request makes the reader thread read p or, if that is nil, kubepods, and reports whether
// it finished within limit. While an earlier reading has not finished, it returns false at
// once.
func (a *AsyncReader) request(p Pod, now time.Time, limit time.Duration) bool {
	if a.completed.Load() != a.requested.Load() {
		return false
	}
	drain(a.doneFD)
	a.now, a.pod = now, p
	seq := a.requested.Add(1)
	notify(a.wakeFD)
	for start := time.Now(); a.completed.Load() != seq; {
		left := limit - time.Since(start)
		if left <= 0 {
			a.endPriority()
			return false
		}
		timeout := unix.NsecToTimespec(int64(left))
		_, _ = unix.Ppoll(a.pollDone[:], &timeout, nil) // the loop condition shows the result
		drain(a.doneFD)
	}
	return true
}

// endPriority takes the reader thread's priority away. The thread sets it again before its
// next read, which begins after this.
func (a *AsyncReader) endPriority() {
	if tid := a.tid.Load(); tid != 0 && process.EndFIFO(int(tid)) == nil {
		a.slowed.Store(true)
	}
}

var eventfdOne = binary.NativeEndian.AppendUint64(nil, 1)

// notify makes an eventfd readable, and drain resets it. Neither blocks. Errors do not
// matter: an eventfd that is not readable needs no reset.
func notify(fd int) { _, _ = unix.Write(fd, eventfdOne) }

func drain(fd int) {
	var count [8]byte
	_, _ = unix.Read(fd, count[:])
}
