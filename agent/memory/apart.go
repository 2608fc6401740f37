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
)

// Apart takes readings of a [Memory] for a thread that must not wait. What the
// pods use is in memory.stat, which may have to wait until the kernel has summed
// it up (kernel/cgroup/rstat.c): a thread of its own reads it, and what takes it
// too long is Unreadable; their usage with page cache is read at once then. It is
// for one goroutine at a time.
type Apart struct {
	memory *Memory
	// bell and reply are eventfds: whoever sleeps in the kernel is woken by the
	// kernel, without Go's scheduler.
	bell, reply int
	limit       time.Duration
	asked, done atomic.Uint64 // readings
	wait        [1]unix.PollFd
	// usage is the file with the pods' usage, and offer another that is to take its
	// place, plus 1; -1 and 0 are none.
	usage int
	offer atomic.Int64

	// The reading, the reader's until it is done: of a pod, or of all where that is
	// nil.
	pod      Pod
	now      time.Time
	pods     signal.Observation
	kubepods podsMemory
	looked   podMemory
}

// Pod is somebody whose memory.stat is read: the working set and what of it is
// anonymous, in bytes. ok is false where it can't be read.
type Pod interface {
	Memory() (workingSet, anonymous int64, ok bool)
}

// podMemory is what a Pod's Memory said.
type podMemory struct {
	workingSet, anonymous int64
	ok                    bool
}

// apartLimit is how long the pods' memory may take to be read.
const apartLimit = 10 * time.Millisecond

var errLate = fmt.Errorf("read kubepods' memory: it took longer than %v", apartLimit)

// OpenApart opens what the signals are read from. Until Run runs the pods' memory
// can't be read.
func OpenApart(o Options) (*Apart, error) {
	memory, err := Open(o)
	if err != nil {
		return nil, err
	}
	a := &Apart{memory: memory, bell: -1, reply: -1, usage: -1, limit: apartLimit}
	memory.opened = a.opened
	for _, fd := range []*int{&a.bell, &a.reply} {
		if *fd, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
			return nil, errors.Join(fmt.Errorf("read memory apart: %w", os.NewSyscallError("eventfd2", err)), a.Close())
		}
	}
	a.wait[0] = unix.PollFd{Fd: int32(a.reply), Events: unix.POLLIN}
	return a, nil
}

// Close gives the descriptors up, once Run has returned and nobody reads any
// more. Further calls do nothing.
func (a *Apart) Close() error {
	errs := []error{a.memory.Close()}
	a.takeOffer()
	for _, fd := range []*int{&a.bell, &a.reply, &a.usage} {
		if *fd >= 0 {
			errs = append(errs, os.NewSyscallError("close", unix.Close(*fd)))
			*fd = -1
		}
	}
	return errors.Join(errs...)
}

// Run reads what is asked for until ctx ends.
func (a *Apart) Run(ctx context.Context) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var rung sync.WaitGroup
	rung.Add(1)
	stop := context.AfterFunc(ctx, func() { defer rung.Done(); notify(a.bell) })
	defer func() {
		if !stop() {
			rung.Wait() // the bell may be closed then
		}
	}()
	bell := [1]unix.PollFd{{Fd: int32(a.bell), Events: unix.POLLIN}}
	for {
		if _, err := unix.Poll(bell[:], -1); err != nil && err != unix.EINTR {
			return fmt.Errorf("read memory apart: %w", os.NewSyscallError("poll", err))
		}
		if ctx.Err() != nil {
			return nil
		}
		hush(a.bell)
		asked := a.asked.Load()
		if asked == a.done.Load() {
			continue
		}
		if a.pod == nil {
			a.pods, a.kubepods = a.memory.readKubepods(a.now)
		} else {
			a.looked.workingSet, a.looked.anonymous, a.looked.ok = a.pod.Memory()
			a.pod = nil
		}
		a.done.Store(asked)
		notify(a.reply)
	}
}

// Read implements [Reader] with what is read now. It allocates nothing, but
// where kubepods is opened.
func (a *Apart) Read(now, _ time.Time, into *signal.Observations) Node {
	node := a.memory.readNode(now, into)
	if a.ask(nil, now, a.limit) {
		into[signal.AllocatableMemoryAvailable] = a.pods
		a.kubepods.of(&node)
		return node
	}
	into[signal.AllocatableMemoryAvailable] = unreadable(now, errLate)
	a.takeOffer()
	readUsage(a.usage).of(&node)
	return node
}

// ReadNode implements [Files]. It allocates nothing.
func (a *Apart) ReadNode(now time.Time, into *signal.Observations) Node {
	return a.memory.readNode(now, into)
}

// Look implements [Reader]. It allocates nothing.
func (a *Apart) Look(p Pod, limit time.Duration) (workingSet, anonymous int64, ok bool) {
	if !a.ask(p, time.Time{}, limit) {
		return 0, 0, false
	}
	return a.looked.workingSet, a.looked.anonymous, a.looked.ok
}

// opened hands a file with the pods' usage to whoever reads, as one of his own:
// the other is closed when the cgroup is gone.
func (a *Apart) opened(usage int) {
	fd, err := unix.FcntlInt(uintptr(usage), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return // there is none
	}
	if old := a.offer.Swap(int64(fd) + 1); old > 0 {
		unix.Close(int(old) - 1)
	}
}

// takeOffer takes up the file that was opened last.
func (a *Apart) takeOffer() {
	fd := a.offer.Swap(0)
	if fd == 0 {
		return
	}
	if a.usage >= 0 {
		unix.Close(a.usage)
	}
	a.usage = int(fd) - 1
}

// ask has a reading taken, of a pod or, where that is nil, of all, and reports
// whether it was in time. While one that was asked for earlier hangs, none is waited
// for.
func (a *Apart) ask(p Pod, now time.Time, limit time.Duration) bool {
	if a.done.Load() != a.asked.Load() {
		return false
	}
	hush(a.reply)
	a.now, a.pod = now, p
	asked := a.asked.Add(1)
	notify(a.bell)
	for start := time.Now(); a.done.Load() != asked; {
		left := limit - time.Since(start)
		if left <= 0 {
			return false
		}
		timeout := unix.NsecToTimespec(int64(left))
		_, _ = unix.Ppoll(a.wait[:], &timeout, nil) // the loop tells what came of it
		hush(a.reply)
	}
	return true
}

var once = binary.NativeEndian.AppendUint64(nil, 1)

// notify makes an eventfd readable, and hush makes it so no more. They wait for
// nothing; that there was nothing to hush is no error.
func notify(fd int) { _, _ = unix.Write(fd, once) }

func hush(fd int) {
	var count [8]byte
	_, _ = unix.Read(fd, count[:])
}
