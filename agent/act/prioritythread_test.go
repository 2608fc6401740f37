package act

import (
	"context"
	"sync/atomic"
	"testing"
	"time"
)

// do runs a job on the thread, or on the caller's thread if that one is busy or does not
// run, and returns after the job.
func TestPriorityThread(t *testing.T) {
	var none *PriorityThread
	done := false
	if none.do(func() { done = true }); !done {
		t.Error("without a thread: job not done")
	}
	u, err := NewPriorityThread()
	if err != nil {
		t.Fatal(err)
	}
	var started atomic.Bool
	u.OnStart = func() { started.Store(true) }
	done = false
	if u.do(func() { done = true }); !done || started.Load() {
		t.Errorf("before Run: done %v, started %v; want it done by the caller", done, started.Load())
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
		t.Error("on the thread: job not done")
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
		t.Error("while the thread is busy: job not done")
	}
	close(release)
	<-freed
	cancel()
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Fatal("Run has not returned 20s after its context ended")
	}
	if !started.Load() {
		t.Error("the start function was not called")
	}
	// A job that is given while the thread ends.
	u.running.Store(true)
	time.AfterFunc(10*time.Millisecond, func() { u.running.Store(false) })
	done = false
	if u.do(func() { done = true }); !done {
		t.Error("after the thread has ended: job not done")
	}
}
