package act

import (
	"context"
	"sync/atomic"
	"testing"
	"time"
)

// A job is done on the thread, on the caller's where that hangs, and always before
// do returns.
func TestPriorityThread(t *testing.T) {
	var none *Urgent
	done := false
	if none.do(func() { done = true }); !done {
		t.Error("without a thread the job was not done")
	}
	u, err := NewUrgent()
	if err != nil {
		t.Fatal(err)
	}
	var started atomic.Bool
	u.Started = func() { started.Store(true) }
	done = false
	if u.do(func() { done = true }); !done || started.Load() {
		t.Errorf("before it runs: done %v, started %v; want it done by the caller", done, started.Load())
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		u.Run(ctx)
	}()
	for !u.running.Load() {
		time.Sleep(time.Millisecond)
	}
	done = false
	if u.do(func() { done = true }); !done {
		t.Error("on the thread the job was not done")
	}
	hangs, release := make(chan struct{}), make(chan struct{})
	freed := make(chan struct{})
	go func() {
		defer close(freed)
		u.do(func() {
			close(hangs)
			<-release
		})
	}()
	<-hangs
	done = false
	if u.do(func() { done = true }); !done {
		t.Error("beside a job that hangs, the next was not done")
	}
	close(release)
	<-freed
	cancel()
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Fatal("Run has not ended 20s after its context")
	}
	if !started.Load() {
		t.Error("Started was not called")
	}
	// One that came as the thread ended.
	u.running.Store(true)
	time.AfterFunc(10*time.Millisecond, func() { u.running.Store(false) })
	done = false
	if u.do(func() { done = true }); !done {
		t.Error("when the thread had ended, the job was not done")
	}
}
