package hot

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/lanes"
)

// If the loop and the thread decide at the same time, one pod is killed: the second to
// acquire the generation has to decide again.
func TestSuperseded(t *testing.T) {
	s := newFixture(t, 500, 300)
	s.publish(s.table(0, time.Now()))
	s.reader.available = 900 * mi
	if !s.arbiter.Acquire(0) {
		t.Fatal("the loop could not acquire generation 0")
	}
	if got := s.alarm("bpf"); got != Superseded || s.killer.n > 0 {
		t.Errorf("handle() after the loop acquired the generation = %v, killed %q; want outrun, and no kill", got, s.killer.names())
	}
	if s.arbiter.Acquire(0) {
		t.Error("generation 0 was acquired twice")
	}
	// A table of an older generation is not used; one of the new generation is.
	s.publish(s.table(0, time.Now()))
	if got := s.alarm("bpf"); got != Superseded {
		t.Errorf("handle() with a stale table = %v; want outrun", got)
	}
	s.publish(s.table(1, time.Now()))
	if got := s.alarm("bpf"); got != Killed {
		t.Errorf("handle() with a table of the loop's next step = %v; want struck", got)
	}
	if s.arbiter.Acquire(1) {
		t.Error("acquired a generation from before the kill; want not")
	}
	if _, generation := s.takeKills(); !s.arbiter.Acquire(generation) {
		t.Error("could not acquire the generation after the kill")
	}
}

// While a thread is killing, no other can acquire a generation.
func TestClaimDuringKill(t *testing.T) {
	s := newFixture(t, 500)
	s.publish(s.table(0, time.Now()))
	s.reader.available = 900 * mi
	s.killer.during = func() {
		_, generation := s.arbiter.TakeKills(nil)
		if s.arbiter.Acquire(generation) || s.arbiter.Acquire(generation+1) {
			t.Error("acquired a generation during a kill; want not")
		}
	}
	s.alarm("bpf")
	if s.killer.n != 1 {
		t.Errorf("killed %q; want p0", s.killer.names())
	}
}

// The loop takes the generation from a kill that hangs. When that kill returns, it is not
// queued, and later decisions work.
func TestSeize(t *testing.T) {
	s := newFixture(t, 500, 300)
	s.publish(s.table(0, time.Now()))
	s.reader.available = 900 * mi
	if s.arbiter.Steal(0) {
		t.Error("seized a generation that no thread has acquired")
	}
	s.killer.during = func() {
		if _, generation := s.arbiter.TakeKills(nil); !s.arbiter.Steal(generation) || s.arbiter.Steal(generation) {
			t.Error("could not seize the generation during a kill, or twice; want it once")
		}
		if !s.arbiter.Acquire(2) {
			t.Error("could not acquire the next generation")
		}
	}
	if got := s.alarm("bpf"); got != Superseded || s.killer.n != 1 {
		t.Errorf("handle() during a seizure = %v, killed %q; want outrun, and p0", got, s.killer.names())
	}
	if uids, generation := s.takeKills(); len(uids) > 0 || generation != 3 {
		t.Errorf("queued %q, generation %d; want no kill, 3", uids, generation)
	}
	s.killer.during = nil
	if got := s.alarm("bpf"); got != Superseded {
		t.Errorf("handle() with the old table = %v; want outrun", got)
	}
	s.publish(s.table(3, time.Now()))
	if got := s.alarm("bpf"); got != Killed {
		t.Errorf("handle() with the loop's next table = %v; want struck", got)
	}
}

// If a generation is seized between two kills, the loop drops the reference of the first,
// which is queued, and the thread that of the second.
func TestSeizeBetweenKills(t *testing.T) {
	s := newFixture(t, 500, 300)
	s.publish(s.table(0, time.Now()))
	s.reader.available = 400 * mi
	s.killer.during = func() {
		if s.killer.n == 2 && !s.arbiter.Steal(0) {
			t.Error("could not seize the generation during the second kill")
		}
	}
	if got := s.alarm("bpf"); got != Superseded || s.killer.n != 2 {
		t.Fatalf("handle() = %v, killed %q; want outrun, both", got, s.killer.names())
	}
	kills, generation := s.arbiter.TakeKills(nil)
	if len(kills) != 1 || kills[0].Pod.UID != "p0" || generation != 2 {
		t.Fatalf("queued %+v, generation %d; want p0, 2", kills, generation)
	}
	kills[0].Handle.Unref()
	for _, p := range s.pods {
		if p.refs != 0 {
			t.Errorf("%s has %d references left; want 0", p.name, p.refs)
		}
	}
}

// If a seizure and the end of a kill happen at the same time, the next generation can be
// acquired.
func TestSeizeAtRelease(t *testing.T) {
	for range 20_000 {
		d := NewArbiter()
		d.acquireLease(0)
		var both sync.WaitGroup
		both.Go(func() { d.release(0) })
		seized := d.Steal(0)
		both.Wait()
		_, generation := d.TakeKills(nil)
		if want := map[bool]uint64{true: 2, false: 1}[seized]; generation != want || !d.Acquire(generation) {
			t.Fatalf("seized %t: generation %d, which can't be acquired; want %d", seized, generation, want)
		}
	}
}

// A thread that was believed to hang and the one that took its place have queues of their
// own.
func TestSeparateQueues(t *testing.T) {
	s := newFixture(t, 500, 300)
	var other decider
	other.setUp(&Options{Arbiter: s.arbiter, Reader: s.reader, Killer: s.dryRunKiller, DryRunKiller: s.dryRunKiller})
	s.arbiter.acquireLease(0)
	k := s.queue.next()
	s.arbiter.Steal(0) // before k is queued
	other.publish(s.table(2, time.Now()))
	s.reader.available = 900 * mi
	if got := other.handle(lanes.Alarm{Lane: WatchdogLane}); got != Killed {
		t.Fatalf("handle() next to a thread that hangs = %v; want struck", got)
	}
	*k = Kill{Pod: &s.in.Pods[1]}
	s.queue.commit()
	if uids, _ := s.takeKills(); !slices.Equal(uids, []string{"p1", "p0"}) {
		t.Errorf("queued %q; want p1, p0", uids)
	}
}

// The thread stops killing while the loop takes no kills.
func TestQueueFull(t *testing.T) {
	sizes := make([]int64, maxKills+10)
	for i := range sizes {
		sizes[i] = 100
	}
	s := newFixture(t, sizes...)
	s.publish(s.table(0, time.Now()))
	for i := range sizes {
		s.reader.available = 1023*mi - int64(i)*100*mi
		s.alarm("bpf")
	}
	uids, _ := s.takeKills()
	if len(uids) != maxKills || s.killer.n != maxKills {
		t.Errorf("killed %d, queued %d; want %d", s.killer.n, len(uids), maxKills)
	}
	s.alarm("bpf")
	if uids, _ := s.takeKills(); len(uids) == 0 {
		t.Error("no pod was killed after the queue was drained; want one")
	}
}
