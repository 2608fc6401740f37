package act

import (
	"context"
	"testing"
)

// After its end a Reaper takes no more tasks, so that the caller does not count on it.
func TestReaperEnded(t *testing.T) {
	r, err := NewReaper()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r.Run(ctx)
	h := &KillHandle{}
	h.refs.Store(1)
	if r.finish(h, &containerFDs{}, true) {
		t.Error("finish() = true after Run has ended; want false")
	}
	r.releaseMemory(h, -1)
	if got := h.refs.Load(); got != 1 {
		t.Errorf("the handle has %d references; want only the caller's", got)
	}
}
