package lanes

import (
	"errors"
	"os/exec"
	"sync/atomic"
	"testing"
	"time"
)

// fakeTasks is a watch over tasks that keeps what it is given.
type fakeTasks struct {
	used   []TaskCounter
	missed bool
}

func (f *fakeTasks) Use(c TaskCounter) error {
	f.used = append(f.used, c)
	return nil
}

func (f *fakeTasks) Missed() bool { return f.missed }

// The watch over tasks has the counter as long as the lane is open, and says when
// it should be opened anew.
func TestForksLane(t *testing.T) {
	watch := &fakeTasks{}
	l := &forks{tasks: watch, raised: new(atomic.Uint64)}
	if err := l.close(); err != nil || len(watch.used) != 0 {
		t.Fatalf("close() of a lane that was never opened = %v, %d counters; want nothing done", err, len(watch.used))
	}
	for opened := range 2 {
		if err := l.open(time.Now(), &watched{}); never(err) {
			t.Skip("needs CAP_BPF and CAP_PERFMON: ", err)
		} else if err != nil {
			t.Fatal(err)
		}
		counter := watch.used[len(watch.used)-1]
		counter.Arm(counter.Count() - 1<<20)
		for deadline := time.Now().Add(20 * time.Second); counter.Raised() == 0 && time.Now().Before(deadline); {
			if err := exec.Command("true").Run(); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.tend(time.Now(), &watched{}); err != nil {
			t.Errorf("tend() = %v; want nil", err)
		}
		if n := l.raised.Load(); n != uint64(opened+1) {
			t.Errorf("%d alarms after %d; want all that there were since the start", n, opened+1)
		}
		watch.missed = true
		if err := l.tend(time.Now(), &watched{}); !errors.Is(err, errMissed) {
			t.Errorf("tend() = %v; want %v", err, errMissed)
		}
		watch.missed = false
		if err := l.close(); err != nil || watch.used[len(watch.used)-1] != nil {
			t.Errorf("close() = %v, the watch has %v; want it to have none", err, watch.used[len(watch.used)-1])
		}
	}
}
