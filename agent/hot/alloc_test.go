//go:build !race

package hot

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/lanes"
	"github.com/evictd/evictd/agent/memory"
	"github.com/evictd/evictd/kernel/cgroup"
)

// From the alarm to the kill nothing is allocated, with a refresh and a ranking of 500 pods.
func TestKillAllocatesNothing(t *testing.T) {
	sizes := make([]int64, 500)
	for i := range sizes {
		sizes[i] = int64(i)
	}
	s := newFixture(t, sizes...)
	s.reader.available = 900 * mi
	const runs = 20
	table := s.table(0, staleTime())
	s.publish(table)
	alarm := lanes.Alarm{Lane: "bpf", Seen: time.Now()}
	if n := testing.AllocsPerRun(runs, func() {
		table.Decision.UsageTime = time.Time{}
		if got := s.process(alarm); got != Killed {
			t.Fatalf("process() = %v; want %v", got, Killed)
		}
		s.reader.available -= 600 * mi
	}); n != 0 {
		t.Errorf("%v allocations from the alarm to the kill; want 0", n)
	}
	if s.killer.n <= runs || s.pods[499].memoryReads == 0 {
		t.Errorf("killed %d, memory.stat of the first read %d times; want more than %d, and one", s.killer.n, s.pods[499].memoryReads, runs)
	}
}

// The same with readings of this machine.
func TestReadAllocatesNothing(t *testing.T) {
	h, err := cgroup.Find("/sys/fs/cgroup")
	if err != nil {
		t.Skip("needs cgroups: ", err)
	}
	read, err := memory.OpenAsyncReader(memory.Options{Procfs: "/proc", Hierarchy: h, CgroupRoot: "/"}, nil)
	if err != nil {
		t.Skip("needs this machine's memory to be readable: ", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- read.Run(ctx) }()
	defer func() {
		cancel()
		if err := errors.Join(<-done, read.Close()); err != nil {
			t.Errorf("the reader ended with %v; want no error", err)
		}
	}()
	s := newFixture(t, 500)
	s.decider.reader = read
	s.publish(s.table(0, staleTime()))
	s.alarm("bpf") // without kubepods, the reader searches for it once a second
	if n := testing.AllocsPerRun(20, func() { s.alarm("bpf") }); n != 0 {
		t.Errorf("%v allocations for an alarm that is not confirmed; want 0", n)
	}
	if s.Count(NotConfirmed) == 0 {
		t.Skip("needs 1 GiB of memory to be available")
	}
}
