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

// TestOutsideDirectories checks that explain reports the search for the largest
// directories if no pod fills the disk.
func TestOutsideDirectories(t *testing.T) {
	watch := disks.New(disks.Options{Procfs: "/proc", NodePath: t.TempDir()})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- watch.Run(ctx) }()
	defer func() { cancel(); <-done }()
	for watch.MountPoint(signal.NodeFsAvailable) == "" {
		time.Sleep(time.Millisecond)
	}
	b := New(Options{Disks: watch, Usages: disks.NewUsageMeter(disks.UsageMeterOptions{Procfs: "/proc"})})
	v := &loop.View{Futile: []evict.Futility{{Signal: signal.NodeFsAvailable}}}
	if got := b.outsideDirectories(signal.NodeFsAvailable, v); !strings.Contains(got, "search for the largest directories") {
		t.Errorf("outsideDirectories() before the search is complete = %q", got)
	}
	for _, s := range []signal.Signal{signal.NodeFsInodesFree, signal.MemoryAvailable} {
		if got := b.outsideDirectories(s, v); got != "" {
			t.Errorf("outsideDirectories(%s), which is not futile, = %q; want none", s, got)
		}
	}
}
