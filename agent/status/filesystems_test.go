package status

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/disks"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/loop"
	"github.com/evictd/evictd/agent/signal"
)

// TestSystemDirectories checks that explain reports the search for the largest
// directories if no pod fills the disk.
func TestSystemDirectories(t *testing.T) {
	watch := disks.New(disks.Options{Procfs: "/proc", NodePath: t.TempDir()})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- watch.Run(ctx) }()
	defer func() { cancel(); <-done }()
	for watch.MountPoint(signal.NodeFsAvailable) == "" {
		time.Sleep(time.Millisecond)
	}
	b := New(Options{Disks: watch, UsageMeter: disks.NewUsageMeter(disks.UsageMeterOptions{Procfs: "/proc"})})
	v := &loop.View{Futile: []evict.Futility{{Signal: signal.NodeFsAvailable}}}
	if got := b.systemDirectories(signal.NodeFsAvailable, v); !strings.Contains(got, "search for the largest directories") {
		t.Errorf("systemDirectories() before the search is complete = %q", got)
	}
	for _, s := range []signal.Signal{signal.NodeFsInodesFree, signal.MemoryAvailable} {
		if got := b.systemDirectories(s, v); got != "" {
			t.Errorf("systemDirectories(%s), which is not futile, = %q; want none", s, got)
		}
	}
}
