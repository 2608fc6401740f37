package bpf

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Forks counts the tasks of the node in the kernel, threads included, and wakes
// up whoever waits for [Forks.FD] when they have become too many. Its count is one
// less only an RCU grace period after a task's pid is free again: it is ahead of the
// kernel's own by as many tasks as have gone that recently, and that may be thousands.
//
// One goroutine at a time may call its methods.
type Forks struct {
	hooked *hooked
	tasks  mapped[forksTasks]
	alarms ringbuf
	fd     int
}

var forkHooks = []hook{
	{"task", "task_newtask", forksProgForked, forksProgForkedClassic},
	{"sched", "sched_process_free", forksProgFreed, forksProgFreedClassic},
}

// OpenForks attaches to the tracepoints of tasks that begin and of such that the
// kernel gives back. An error wraps [ErrUnavailable] where asking again does not
// help.
func OpenForks() (_ *Forks, err error) {
	spec, err := loadForks()
	if err != nil {
		return nil, err
	}
	spec.Maps[forksMapAlarms].MaxEntries = uint32(os.Getpagesize())
	f := &Forks{fd: -1}
	if f.hooked, err = attachEither(spec, nil, forkHooks); err != nil {
		return nil, refused("count tasks", err)
	}
	defer func() {
		if err != nil {
			_ = f.Close()
		}
	}()
	maps := f.hooked.collection.Maps
	if f.tasks, err = mapArray[forksTasks](maps[forksMapCounts], unix.PROT_READ|unix.PROT_WRITE); err != nil {
		return nil, fmt.Errorf("count tasks: %w", err)
	}
	if f.alarms, err = mapRingbuf(maps[forksMapAlarms]); err != nil {
		return nil, fmt.Errorf("count tasks: %w", err)
	}
	f.fd = maps[forksMapAlarms].FD()
	return f, nil
}

// Via says how the programs are attached.
func (f *Forks) Via() Via { return f.hooked.via }

// FD returns the descriptor that is readable (EPOLLIN) after an alarm, until
// [Forks.Disarm]. It is -1 after Close.
func (f *Forks) FD() int { return f.fd }

// Count returns how many more tasks there are than when this was opened; it is
// negative where they are less. It is 0 after Close.
func (f *Forks) Count() int64 {
	if f.tasks.entries == nil {
		return 0
	}
	return int64(atomic.LoadUint64(&f.tasks.first().Count))
}

// Raised returns how many alarms there were since this was opened.
func (f *Forks) Raised() uint64 {
	if f.tasks.entries == nil {
		return 0
	}
	return atomic.LoadUint64(&f.tasks.first().Raised)
}

// Arm asks for one alarm, with the first fork that takes the count to limit or
// above, in place of what was asked for before. It takes no system call.
func (f *Forks) Arm(limit int64) {
	if f.tasks.entries == nil {
		return
	}
	f.Disarm()
	t := f.tasks.first()
	atomic.StoreUint64(&t.Limit, uint64(limit))
	atomic.StoreUint64(&t.Armed, 1)
}

// Disarm asks for no alarm, and takes in what was raised.
func (f *Forks) Disarm() {
	if f.tasks.entries == nil {
		return
	}
	atomic.StoreUint64(&f.tasks.first().Armed, 0)
	for f.alarms.next(func([]byte) {}) { // it tells nothing but that it is there
	}
}

// Close detaches from the tracepoints. Further calls do nothing.
func (f *Forks) Close() error {
	f.fd = -1
	if err := errors.Join(f.alarms.unmap(), f.tasks.unmap(), f.hooked.Close()); err != nil {
		return fmt.Errorf("close count of tasks: %w", err)
	}
	return nil
}
