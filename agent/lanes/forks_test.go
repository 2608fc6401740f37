package lanes

import (
	"errors"
	"os/exec"
	"sync/atomic"
	"testing"
	"time"
)

// fakeTasks is a Tasks that records its counters.
type fakeTasks struct {
	used   []TaskCounter
	missed bool
}

func (f *fakeTasks) Use(c TaskCounter) error {
	f.used = append(f.used, c)
	return nil
}

func (f *fakeTasks) Missed() bool { return f.missed }

// Tasks has the counter while the lane is open, and a missed alarm is an error of reconcile.
func TestForksLane(t *testing.T) {
	tasks := &fakeTasks{}
	l := &forksLane{tasks: tasks, alarms: new(atomic.Uint64)}
	if err := l.close(); err != nil || len(tasks.used) != 0 {
		t.Fatalf("close() of a lane that was never opened = %v, %d counters; want nothing done", err, len(tasks.used))
	}
	for opened := range 2 {
		if err := l.open(time.Now(), &laneInput{}); permanent(err) {
			t.Skip("needs CAP_BPF and CAP_PERFMON: ", err)
		} else if err != nil {
			t.Fatal(err)
		}
		counter := tasks.used[len(tasks.used)-1]
		counter.Arm(counter.Count() - 1<<20)
		for deadline := time.Now().Add(20 * time.Second); counter.Alarms() == 0 && time.Now().Before(deadline); {
			if err := exec.Command("true").Run(); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.reconcile(time.Now(), &laneInput{}); err != nil {
			t.Errorf("reconcile() = %v; want nil", err)
		}
		if n := l.alarms.Load(); n != uint64(opened+1) {
			t.Errorf("%d alarms; want %d, all since the start", n, opened+1)
		}
		tasks.missed = true
		if err := l.reconcile(time.Now(), &laneInput{}); !errors.Is(err, errMissedTasks) {
			t.Errorf("reconcile() = %v; want %v", err, errMissedTasks)
		}
		tasks.missed = false
		if err := l.close(); err != nil || tasks.used[len(tasks.used)-1] != nil {
			t.Errorf("close() = %v, counter %v; want none", err, tasks.used[len(tasks.used)-1])
		}
	}
}
