package lanes

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/evictd/evictd/bpf"
)

// Tasks is the watch over tasks that counts with what the kernel counts.
type Tasks interface {
	// Use hands a counter over, in place of the one before; nil is none.
	Use(TaskCounter) error
	// Missed reports whether the counter should have raised an alarm, and did not.
	Missed() bool
}

// TaskCounter is what the kernel counts with, as [bpf.Forks] tells it.
type TaskCounter interface {
	FD() int
	Count() int64
	Raised() uint64
	Arm(limit int64)
	Disarm()
}

// errMissed is what degrades a lane that has not raised when it should have.
var errMissed = errors.New("more tasks have come than this lane was told, and it did not raise")

// forks is the lane of tasks that begin. Its alarms go to the watch over tasks, as
// they are not about memory.
type forks struct {
	tasks  Tasks
	raised *atomic.Uint64

	forks  *bpf.Forks
	before uint64 // alarms until it was opened
}

// open implements lane.
func (l *forks) open(time.Time, *watched) (err error) {
	if l.forks, err = bpf.OpenForks(); err != nil {
		return err
	}
	l.before = l.raised.Load()
	return l.tasks.Use(l.forks)
}

// tend implements lane.
func (l *forks) tend(time.Time, *watched) error {
	l.raised.Store(l.before + l.forks.Raised())
	if l.tasks.Missed() {
		return errMissed
	}
	return nil
}

// close implements lane.
func (l *forks) close() error {
	if l.forks == nil {
		return nil
	}
	err := errors.Join(l.tasks.Use(nil), l.forks.Close())
	l.forks = nil
	return err
}
