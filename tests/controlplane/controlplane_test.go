package controlplane

import (
	"errors"
	"testing"
	"time"

	"github.com/evictd/evictd/tests/daemon"
	"github.com/evictd/evictd/tests/node"
)

// last returns the process that was started last.
func (c *ControlPlane) last() *daemon.Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.processes[len(c.processes)-1]
}

// TestRestart: a scheduler that has ended is started again.
func TestRestart(t *testing.T) {
	c, err := Start(t.Context(), Options{})
	if errors.Is(err, ErrMissing) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := c.StartScheduler(); err != nil {
		t.Fatal(err)
	}
	first := c.last()
	if err := first.Kill(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(node.ScaleTimeout(30 * time.Second)); c.last() == first; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the scheduler was not started again")
		}
	}
}
