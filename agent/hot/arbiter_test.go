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
		t.Errorf("process() after the loop acquired the generation = %v, killed %q; want %v, and no kill", got, s.killer.names(), Superseded)
	}
	if s.arbiter.Acquire(0) {
		t.Error("generation 0 was acquired twice")
	}
	// A table of an older generation is not used; one of the new generation is.
	s.publish(s.table(0, time.Now()))
	if got := s.alarm("bpf"); got != Superseded {
		t.Errorf("process() with a stale table = %v; want %v", got, Superseded)
	}
	s.publish(s.table(1, time.Now()))
	if got := s.alarm("bpf"); got != Killed {
		t.Errorf("process() with a table of the loop's next step = %v; want %v", got, Killed)
	}
	if s.arbiter.Acquire(1) {
		t.Error("acquired a generation from before the kill; want not")
	}
	if _, generation := s.takeKills(); !s.arbiter.Acquire(generation) {
		t.Error("could not acquire the generation after the kill")
	}
}

// While a thread is killing, no other can acquire a generation.
func TestAcquireDuringKill(t *testing.T) {
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

// The loop steals the generation of a kill that hangs. When that kill returns, it is not
// queued, and later decisions work.
func TestSteal(t *testing.T) {
	s := newFixture(t, 500, 300)
	s.publish(s.table(0, time.Now()))
	s.reader.available = 900 * mi
	if s.arbiter.Steal(0) {
		t.Error("stole a generation that no thread has acquired")
	}
	s.killer.during = func() {
		if _, generation := s.arbiter.TakeKills(nil); !s.arbiter.Steal(generation) || s.arbiter.Steal(generation) {
			t.Error("could not steal the generation during a kill, or twice; want it once")
		}
		if !s.arbiter.Acquire(2) {
			t.Error("could not acquire the next generation")
		}
	}
	if got := s.alarm("bpf"); got != Superseded || s.killer.n != 1 {
		t.Errorf("process() during Steal = %v, killed %q; want %v, and p0", got, s.killer.names(), Superseded)
	}
	if uids, generation := s.takeKills(); len(uids) > 0 || generation != 3 {
		t.Errorf("queued %q, generation %d; want no kill, 3", uids, generation)
	}
	s.killer.during = nil
	if got := s.alarm("bpf"); got != Superseded {
		t.Errorf("process() with the old table = %v; want %v", got, Superseded)
	}
	s.publish(s.table(3, time.Now()))
	if got := s.alarm("bpf"); got != Killed {
		t.Errorf("process() with the loop's next table = %v; want %v", got, Killed)
	}
}

// If a generation is stolen between two kills, the loop drops the reference of the first,
// which is queued, and the thread that of the second.
func TestStealBetweenKills(t *testing.T) {
	s := newFixture(t, 500, 300)
	s.publish(s.table(0, time.Now()))
	s.reader.available = 400 * mi
	s.killer.during = func() {
		if s.killer.n == 2 && !s.arbiter.Steal(0) {
			t.Error("could not steal the generation during the second kill")
		}
	}
	if got := s.alarm("bpf"); got != Superseded || s.killer.n != 2 {
		t.Fatalf("process() = %v, killed %q; want %v, both", got, s.killer.names(), Superseded)
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

// If Steal and the end of a kill happen at the same time, the next generation can be
// acquired.
func TestStealAtRelease(t *testing.T) {
	for range 20_000 {
		a := NewArbiter()
		a.acquireUntilRelease(0)
		var both sync.WaitGroup
		both.Go(func() { a.release(0) })
		stolen := a.Steal(0)
		both.Wait()
		_, generation := a.TakeKills(nil)
		if want := map[bool]uint64{true: 2, false: 1}[stolen]; generation != want || !a.Acquire(generation) {
			t.Fatalf("stolen %t: generation %d, which can't be acquired; want %d", stolen, generation, want)
		}
	}
}

// A thread whose generation was stolen and the one that kills after it have queues of their
// own.
func TestSeparateQueues(t *testing.T) {
	s := newFixture(t, 500, 300)
	var other decider
	other.setUp(&Options{Arbiter: s.arbiter, Reader: s.reader, Killer: s.dryRunKiller, DryRunKiller: s.dryRunKiller})
	s.arbiter.acquireUntilRelease(0)
	k := s.queue.next()
	s.arbiter.Steal(0) // before k is queued
	other.publish(s.table(2, time.Now()))
	s.reader.available = 900 * mi
	if got := other.process(lanes.Alarm{Lane: WatchdogLane}); got != Killed {
		t.Fatalf("process() next to a thread that hangs = %v; want %v", got, Killed)
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
