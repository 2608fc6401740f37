package hot

import (
	"context"
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/lanes"
)

// newThread makes a thread with the fixture's fakes.
func (s *fixture) newThread() *Thread {
	s.t.Helper()
	th, err := New(Options{Arbiter: s.arbiter, Reader: s.reader, Killer: s.killer, DryRunKiller: s.dryRunKiller})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { th.Close() })
	return th
}

// runThread runs the thread until the test ends.
func runThread(t *testing.T, th *Thread) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- th.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v; want no error", err)
		}
	})
}

// nextAlarm waits for the next alarm for the loop.
func (s *fixture) nextAlarm() lanes.Alarm {
	s.t.Helper()
	select {
	case r := <-s.arbiter.Alarms():
		return r
	case <-time.After(20 * time.Second):
		s.t.Fatal("no alarm for the loop after 20s")
		return lanes.Alarm{}
	}
}

// eventSource raises an alarm when its eventfd is written to.
type eventSource struct {
	fd    int
	calls int
}

func newEventSource(t *testing.T) *eventSource {
	t.Helper()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return &eventSource{fd: fd}
}

func (e *eventSource) FD() int        { return e.fd }
func (e *eventSource) Events() uint32 { return unix.EPOLLIN }
func (e *eventSource) Ready(now time.Time) (lanes.Alarm, bool) {
	var count [8]byte
	_, err := unix.Read(e.fd, count[:])
	e.calls++
	return lanes.Alarm{Lane: "event", Seen: now}, err == nil
}

func (e *eventSource) notify(t *testing.T) {
	t.Helper()
	if _, err := unix.Write(e.fd, []byte{1, 0, 0, 0, 0, 0, 0, 0}); err != nil {
		t.Fatal(err)
	}
}

func TestThread(t *testing.T) {
	s := newFixture(t, 500, 300)
	s.reader.available = 900 * mi
	th := s.newThread()
	th.Publish(s.table(0, time.Now()))
	source := newEventSource(t)
	if err := th.Add(source); err != nil {
		t.Fatal(err)
	}
	runThread(t, th)
	source.notify(t)
	if r := s.nextAlarm(); r.Lane != "event" {
		t.Errorf("alarm of %q; want event", r.Lane)
	}
	if uids, _ := s.takeKills(); !slices.Equal(uids, []string{"p0"}) {
		t.Errorf("killed %q; want p0", uids)
	}
	if err := th.Raise(lanes.Alarm{Lane: "poll"}); err != nil {
		t.Fatal(err)
	}
	if r := s.nextAlarm(); r.Lane != "poll" || th.Count(Declined) != 1 {
		t.Errorf("alarm of %q, %d declined; want poll, 1: a victim is in flight", r.Lane, th.Count(Declined))
	}
	if err := th.Remove(source); err != nil {
		t.Fatal(err)
	}
	calls := source.calls
	source.notify(t)
	if err := th.Raise(lanes.Alarm{Lane: "poll"}); err != nil {
		t.Fatal(err)
	}
	s.nextAlarm()
	if err := th.Remove(source); !errors.Is(err, errUnknownSource) || source.calls != calls {
		t.Errorf("second Remove() = %v, %d further calls; want errUnknownSource and 0", err, source.calls-calls)
	}
}

// Alarms that are raised while one is waiting do not block.
func TestRaiseDoesNotWait(t *testing.T) {
	s := newFixture(t, 500)
	th := s.newThread()
	for range 100 {
		if err := th.Raise(lanes.Alarm{Lane: "poll"}); err != nil {
			t.Fatal(err)
		}
	}
	runThread(t, th)
	s.nextAlarm()
	if got := th.processed(); got != 1 {
		t.Errorf("%d alarms processed; want 1 for all", got)
	}
}

func TestExecute(t *testing.T) {
	s := newFixture(t, 500, 300)
	th := s.newThread()
	request := &KillRequest{Handles: []Handle{s.pods[1], s.pods[0]}, Guard: &evict.Guard{}}
	if err := th.Execute(t.Context(), request, time.Millisecond); !errors.Is(err, ErrBusy) {
		t.Fatalf("Execute() of a thread that does not run = %v; want ErrBusy", err)
	}
	runThread(t, th)
	dry := &KillRequest{Handles: []Handle{s.pods[0]}, Guard: &evict.Guard{}, DryRun: true}
	if err := th.Execute(t.Context(), dry, time.Minute); err != nil || !slices.Equal(s.dryRunKiller.names(), []string{"p0"}) {
		t.Errorf("Execute() in dry run = %v, checked %q; want p0", err, s.dryRunKiller.names())
	}
	if s.killer.n > 0 {
		t.Fatalf("killed %q; want none, because the first request was withdrawn", s.killer.names())
	}
	request = &KillRequest{Handles: request.Handles, Guard: request.Guard}
	if err := th.Execute(t.Context(), request, time.Minute); err != nil || !slices.Equal(s.killer.names(), []string{"p1", "p0"}) {
		t.Errorf("Execute() = %v, killed %q; want p1, p0", err, s.killer.names())
	}
	if len(request.Results) != 2 || request.Results[1].Processes != 1 {
		t.Errorf("results = %+v; want one for each pod", request.Results)
	}
}

func TestWarmUp(t *testing.T) {
	for _, tt := range []struct {
		name   string
		unread bool
		usage  int64
	}{
		{"pods read", false, 0},
		// As if the first reading of kubepods takes too long (memory.AsyncReader).
		{"pods not read", true, math.MaxInt64},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newFixture(t, 500)
			s.reader.noKubepods, s.reader.usage = tt.unread, tt.usage
			o := Options{Arbiter: s.arbiter, Reader: s.reader, Killer: s.killer, DryRunKiller: s.dryRunKiller}
			if got := WarmUp(o, s.pods[0]); got != Killed {
				t.Errorf("warm-up = %v; want %v", got, Killed)
			}
			if uids, generation := s.takeKills(); s.killer.n > 0 || s.dryRunKiller.n != 1 || len(uids) > 0 || generation != 0 {
				t.Errorf("killed %q, checked %d, queued %q; want one checked, and no kill queued", s.killer.names(), s.dryRunKiller.n, uids)
			}
		})
	}
}

// After an alarm that came a little early, the thread takes more readings.
func TestEarlyAlarm(t *testing.T) {
	s := newFixture(t, 500, 300)
	th := s.newThread()
	th.Publish(s.table(0, time.Now()))
	alarm := func() { th.onAlarm(lanes.Alarm{Lane: "bpf", Seen: time.Now()}) }
	s.reader.available = 1500 * mi
	alarm()
	if th.early.rechecksLeft != 0 {
		t.Errorf("%d rechecks after an alarm far from the threshold; want 0", th.early.rechecksLeft)
	}
	s.reader.available = 1030 * mi
	alarm()
	above := time.Now()
	th.iterate(0)
	th.iterate(0)
	if th.early.rechecksLeft != maxRechecks-2 || s.killer.n > 0 || th.Count(NotConfirmed) != 2 {
		t.Errorf("%d rechecks, killed %q, %d alarms not confirmed; want %d, none, 2", th.early.rechecksLeft, s.killer.names(), th.Count(NotConfirmed), maxRechecks-2)
	}
	s.reader.available = 900 * mi
	below := time.Now()
	th.iterate(0)
	kills, _ := s.arbiter.TakeKills(nil)
	if len(kills) != 1 || th.early.rechecksLeft != 0 || th.Count(Killed) != 1 {
		t.Fatalf("%d kills, %d rechecks; want 1, 0", len(kills), th.early.rechecksLeft)
	}
	if r := kills[0].Alarm; r.Lane != "bpf" || r.LastAbove.Before(above) || r.LastAbove.After(below) || r.Seen.Before(below) {
		t.Errorf("alarm of the kill = %+v; want the lane's, with the times of the thread's own readings", r)
	}
	s.reader.available = 1030 * mi
	alarm()
	s.reader.available = 2048 * mi
	th.iterate(0)
	if th.early.rechecksLeft != 0 {
		t.Errorf("%d rechecks after memory was freed; want 0", th.early.rechecksLeft)
	}
}

// While pods that end without evictd cover a crossing, of which no lane raises another alarm, the
// thread takes more readings: what is left may fall below half of the threshold.
func TestCoveredCrossing(t *testing.T) {
	s := newFixture(t, 500, 300)
	s.in.Pods[1].Ending = true
	s.state, _ = evict.Step(s.state, s.in, time.Now())
	th := s.newThread()
	th.Publish(s.table(0, time.Now()))
	s.reader.available = 900 * mi
	th.onAlarm(lanes.Alarm{Lane: "bpf", Seen: time.Now()})
	s.nextAlarm()
	for range 2 * maxRechecks {
		th.iterate(0)
	}
	if th.early.rechecksLeft == 0 || s.killer.n > 0 || th.Count(Declined) != 1 || len(s.arbiter.Alarms()) > 0 {
		t.Errorf("%d rechecks, killed %q, %d declined, %d alarms for the loop; want some, none, 1, 0",
			th.early.rechecksLeft, s.killer.names(), th.Count(Declined), len(s.arbiter.Alarms()))
	}
	s.reader.available = 500 * mi
	th.iterate(0)
	if uids, _ := s.takeKills(); len(uids) != 2 || th.early.rechecksLeft != 0 {
		t.Errorf("killed %q below half of the threshold, %d rechecks; want both, 0", uids, th.early.rechecksLeft)
	}
}

// An alarm that came early may be followed by a covered crossing, and that by a recovery.
func TestCoveredAfterEarlyAlarm(t *testing.T) {
	s := newFixture(t, 500, 300)
	s.in.Pods[1].Ending = true
	s.state, _ = evict.Step(s.state, s.in, time.Now())
	th := s.newThread()
	th.Publish(s.table(0, time.Now()))
	s.reader.available = 1030 * mi
	th.onAlarm(lanes.Alarm{Lane: "bpf", Seen: time.Now()})
	s.nextAlarm()
	for _, available := range []int64{900, 900, 1030, 900} {
		s.reader.available = available * mi
		th.iterate(0)
	}
	if th.Count(Declined) != 2 || th.early.rechecksLeft != maxRechecks {
		t.Errorf("%d crossings reported, %d rechecks; want 2, %d", th.Count(Declined), th.early.rechecksLeft, maxRechecks)
	}
	s.reader.available = 2048 * mi
	if th.iterate(0); th.early.rechecksLeft != 0 || s.killer.n > 0 {
		t.Errorf("%d rechecks after memory was freed, killed %q; want 0, none", th.early.rechecksLeft, s.killer.names())
	}
}

// Do runs a function on the thread, and waits for it until the context ends.
func TestDo(t *testing.T) {
	s := newFixture(t, 500)
	th := s.newThread()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if th.Do(ended, func() {}) {
		t.Error("Do() on a thread that does not run = true; want false")
	}
	runThread(t, th)
	on := 0
	if !th.Do(t.Context(), func() { on = unix.Gettid() }) || on == 0 || on == unix.Gettid() {
		t.Errorf("Do() = false, or ran on thread %d; want it on another thread than %d", on, unix.Gettid())
	}
}
