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

// Where no pod fills a disk, explain says that what does is being looked for.
func TestOutsideDirectories(t *testing.T) {
	watch := disks.New(disks.Options{Procfs: "/proc", NodePath: t.TempDir()})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- watch.Run(ctx) }()
	defer func() { cancel(); <-done }()
	for watch.MountOf(signal.NodeFsAvailable) == "" {
		time.Sleep(time.Millisecond)
	}
	b := New(Options{Disks: watch, Usages: disks.NewUsages(disks.UsageOptions{Procfs: "/proc"})})
	v := &loop.View{Futile: []evict.Futility{{Signal: signal.NodeFsAvailable}}}
	if got := b.outsideDirectories(signal.NodeFsAvailable, v); !strings.Contains(got, "being looked for") {
		t.Errorf("explain before they are known: %q", got)
	}
	for _, s := range []signal.Signal{signal.NodeFsInodesFree, signal.MemoryAvailable} {
		if got := b.outsideDirectories(s, v); got != "" {
			t.Errorf("explain of %s, which is not futile: %q; want nothing", s, got)
		}
	}
}
