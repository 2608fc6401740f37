package bpf

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Forks counts the tasks of the node in the kernel, threads included, and makes
// [Forks.FD] readable when the count reaches a limit. The count falls an RCU grace
// period after the kernel has released a task's PID, so it is higher than the kernel's
// own count by the tasks that ended in that time, which may be thousands.
//
// Its methods must not be called concurrently.
type Forks struct {
	attached *attachedObject
	tasks    mapped[forksTasks]
	alarms   ringbuf
	fd       int
}

var forkHooks = []hook{
	{"task", "task_newtask", forksProgForked, forksProgForkedClassic},
	{"sched", "sched_process_free", forksProgFreed, forksProgFreedClassic},
}

// OpenForks attaches to the tracepoints of new and of freed tasks. The error wraps
// [ErrUnavailable] if a retry can't help.
func OpenForks() (_ *Forks, err error) {
	spec, err := loadForks()
	if err != nil {
		return nil, err
	}
	spec.Maps[forksMapAlarms].MaxEntries = uint32(os.Getpagesize())
	f := &Forks{fd: -1}
	if f.attached, err = attachEither(spec, nil, forkHooks); err != nil {
		return nil, refused("count tasks", err)
	}
	defer func() {
		if err != nil {
			_ = f.Close()
		}
	}()
	maps := f.attached.collection.Maps
	if f.tasks, err = mapArray[forksTasks](maps[forksMapCounts], unix.PROT_READ|unix.PROT_WRITE); err != nil {
		return nil, fmt.Errorf("count tasks: %w", err)
	}
	if f.alarms, err = mapRingbuf(maps[forksMapAlarms]); err != nil {
		return nil, fmt.Errorf("count tasks: %w", err)
	}
	f.fd = maps[forksMapAlarms].FD()
	return f, nil
}

// Attachment returns how the programs are attached.
func (f *Forks) Attachment() Attachment { return f.attached.attachment }

// FD returns the descriptor that becomes readable (EPOLLIN) with an alarm and stays so
// until [Forks.Disarm]. It returns -1 after Close.
func (f *Forks) FD() int { return f.fd }

// Count returns the number of tasks, less those at the time of [OpenForks]. It may be
// negative. It returns 0 after Close.
func (f *Forks) Count() int64 {
	if f.tasks.entries == nil {
		return 0
	}
	return int64(atomic.LoadUint64(&f.tasks.first().Count))
}

// Alarms returns the number of alarms since [OpenForks]. It returns 0 after Close.
func (f *Forks) Alarms() uint64 {
	if f.tasks.entries == nil {
		return 0
	}
	return atomic.LoadUint64(&f.tasks.first().Raised)
}

// Arm requests one alarm, at the first fork that brings the count to the limit or
// above. It replaces the previous limit and discards a pending alarm. It takes no
// system call.
func (f *Forks) Arm(limit int64) {
	if f.tasks.entries == nil {
		return
	}
	f.Disarm()
	t := f.tasks.first()
	atomic.StoreUint64(&t.Limit, uint64(limit))
	atomic.StoreUint64(&t.Armed, 1)
}

// Disarm cancels the limit and discards a pending alarm.
func (f *Forks) Disarm() {
	if f.tasks.entries == nil {
		return
	}
	atomic.StoreUint64(&f.tasks.first().Armed, 0)
	for f.alarms.next(func([]byte) {}) { // a record has no content
	}
}

// Close detaches the programs. Further calls do nothing.
func (f *Forks) Close() error {
	f.fd = -1
	if err := errors.Join(f.alarms.unmap(), f.tasks.unmap(), f.attached.Close()); err != nil {
		return fmt.Errorf("close count of tasks: %w", err)
	}
	return nil
}
