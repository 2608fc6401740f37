package lanes

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/evictd/evictd/bpf"
)

// Tasks is the observer of pid.available (agent/tasks), which reads the kernel's count of
// tasks while the forks lane is up.
type Tasks interface {
	// Use makes the observer read a counter; with nil it reads none.
	Use(TaskCounter) error
	// Missed reports whether the counter should have raised an alarm and did not.
	Missed() bool
}

// TaskCounter is the kernel's count of tasks: see [bpf.Forks].
type TaskCounter interface {
	FD() int
	Count() int64
	Alarms() uint64
	Arm(limit int64)
	Disarm()
}

// errMissedTasks degrades the lane.
var errMissedTasks = errors.New("missed an alarm: more tasks were created than the limit that was armed")

// forksLane is the lane that counts new tasks. Its alarms go to [Tasks], as they do not
// concern memory.
type forksLane struct {
	tasks  Tasks
	alarms *atomic.Uint64

	forks  *bpf.Forks
	before uint64 // alarms before it was opened
}

// open implements lane.
func (l *forksLane) open(time.Time, *laneInput) (err error) {
	if l.forks, err = bpf.OpenForks(); err != nil {
		return err
	}
	l.before = l.alarms.Load()
	return l.tasks.Use(l.forks)
}

// reconcile implements lane.
func (l *forksLane) reconcile(time.Time, *laneInput) error {
	l.alarms.Store(l.before + l.forks.Alarms())
	if l.tasks.Missed() {
		return errMissedTasks
	}
	return nil
}

// close implements lane.
func (l *forksLane) close() error {
	if l.forks == nil {
		return nil
	}
	err := errors.Join(l.tasks.Use(nil), l.forks.Close())
	l.forks = nil
	return err
}
