package hot

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/lanes"
	"github.com/evictd/evictd/agent/signal"
)

// staleTime returns a time from which usage has to be refreshed.
func staleTime() time.Time { return time.Now().Add(-time.Second) }

// Complexity: a check of each field of one kill.
//
//gocyclo:ignore
func TestKill(t *testing.T) {
	s := newFixture(t, 500, 300)
	s.publish(s.table(0, time.Now()))
	s.reader.available = 900 * mi
	seen := time.Now()
	if got := s.process(lanes.Alarm{Lane: "bpf", LastAbove: seen.Add(-time.Millisecond), Seen: seen}); got != Killed {
		t.Fatalf("process() = %v; want %v", got, Killed)
	}
	kills, generation := s.arbiter.TakeKills(nil)
	if len(kills) != 1 || generation != 1 || !slices.Equal(s.killer.names(), []string{"p0"}) {
		t.Fatalf("%d kills of generation %d, killed %q; want p0 alone, of generation 1", len(kills), generation, s.killer.names())
	}
	k := kills[0]
	if k.Pod.UID != "p0" || k.Deficit != 124*mi || k.Expected != 500*mi || k.Observation.Available != 900*mi || k.Result.Processes != 1 {
		t.Errorf("kill = %+v; want p0 with the values of the reading", k)
	}
	if k.Alarm.Lane != "bpf" || k.Alarm.Seen != seen || k.Decided.Before(seen) || k.Unprepared || k.DryRun || k.RankingAge < 0 || k.RankingAge > maxRankingAge {
		t.Errorf("kill = %+v; want the alarm's lane and times, of a prepared pod", k)
	}
	if k.Confirmed.Before(k.Decided) || k.Chosen.Before(k.Confirmed) || time.Now().Before(k.Chosen) {
		t.Errorf("decided %v, confirmed %v, chosen %v; want them in this order, before now", k.Decided, k.Confirmed, k.Chosen)
	}
	if got := k.Candidates(); len(got) != 2 || got[0].UID != "p0" || got[1].UID != "p1" {
		t.Errorf("candidates = %+v; want both pods in their order", got)
	}
	select {
	case r := <-s.arbiter.Alarms():
		if r.Lane != "bpf" {
			t.Errorf("alarm of %q; want bpf", r.Lane)
		}
	default:
		t.Error("the loop received no alarm")
	}
	if again, _ := s.arbiter.TakeKills(nil); len(again) > 0 {
		t.Errorf("%d kills left in the queue; want none", len(again))
	}
}

// No pod is killed for a crossing that is over before it is confirmed.
func TestNotConfirmed(t *testing.T) {
	s := newFixture(t, 500)
	if got := s.alarm("bpf"); got != NotReady {
		t.Errorf("process() without a table = %v; want not ready", got)
	}
	s.publish(s.table(0, time.Now()))
	s.reader.available = 1024 * mi
	if got := s.alarm("bpf"); got != NotConfirmed || s.killer.n > 0 {
		t.Errorf("process() = %v, killed %q; want not confirmed, and no kill", got, s.killer.names())
	}
	if s.Count(NotConfirmed) != 1 || s.processed() != 2 {
		t.Errorf("counts: %d not confirmed of %d; want 1 of 2", s.Count(NotConfirmed), s.processed())
	}
}

// Alarms of several lanes for one crossing kill one pod.
func TestSeveralLanesOneKill(t *testing.T) {
	s := newFixture(t, 500, 300)
	s.publish(s.table(0, time.Now()))
	s.reader.available = 900 * mi
	for _, lane := range []string{"bpf", "memcg", "psi", "poll"} {
		s.alarm(lane)
	}
	if uids, _ := s.takeKills(); !slices.Equal(uids, []string{"p0"}) || s.Count(Declined) != 3 {
		t.Errorf("killed %q, %d alarms declined; want p0, 3", uids, s.Count(Declined))
	}
	// A greater deficit than the victim in flight covers kills another pod.
	s.reader.available = 300 * mi
	s.alarm("bpf")
	if uids, generation := s.takeKills(); !slices.Equal(uids, []string{"p1"}) || generation != 2 {
		t.Errorf("killed %q of generation %d; want p1 of 2", uids, generation)
	}
}

// If a deficit needs more pods than the queue has room for, as many as it has room for are
// killed at once, and the others when the loop has taken those kills.
func TestMoreVictimsThanKills(t *testing.T) {
	sizes := make([]int64, maxKills+6)
	for i := range sizes {
		sizes[i] = 15
	}
	s := newFixture(t, sizes...)
	s.in.Policy.MaxVictims = 100
	s.publish(s.table(0, time.Now()))
	s.reader.available = 0 // 69 pods cover the deficit of 1 GiB
	for i, want := range []int{maxKills, 69 - maxKills} {
		if got := s.alarm("bpf"); got != Killed {
			t.Errorf("alarm %d: process() = %v; want %v", i, got, Killed)
		}
		if uids, generation := s.takeKills(); len(uids) != want || generation != uint64(i+1) {
			t.Errorf("alarm %d: killed %d of generation %d; want %d of %d", i, len(uids), generation, want, i+1)
		}
	}
	if got := s.alarm("bpf"); got != Declined {
		t.Errorf("process() with all victims in flight = %v; want %v", got, Declined)
	}
	for i, p := range s.pods {
		if p.refs != 0 && p.refs != 1 { // the loop drops that of a queued kill
			t.Errorf("pod %d has %d references; want 0, or 1 of its kill", i, p.refs)
		}
	}
}

// If kills wait for the loop, a second alarm kills as many pods as the queue still has room
// for, and a third one none.
func TestMoreVictimsThanRoom(t *testing.T) {
	s := newFixture(t, slices.Repeat([]int64{15}, maxKills+40)...)
	s.in.Policy.MaxVictims = 100
	s.publish(s.table(0, time.Now()))
	for i, step := range []struct {
		available int64
		want      Result
		killed    int
	}{{424 * mi, Killed, 40}, {0, Killed, maxKills}, {0, Superseded, maxKills}} {
		s.reader.available = step.available
		if got := s.alarm("bpf"); got != step.want || s.killer.n != step.killed {
			t.Errorf("alarm %d: process() = %v, killed %d; want %v, %d", i, got, s.killer.n, step.want, step.killed)
		}
	}
	if uids, _ := s.takeKills(); len(uids) != maxKills {
		t.Errorf("queued %d; want %d", len(uids), maxKills)
	}
	if got := s.alarm("bpf"); got != Killed || s.killer.n != 69 {
		t.Errorf("after the queue was drained: process() = %v, killed %d; want %v, 69", got, s.killer.n, Killed)
	}
}

// A crossing by file cache waits until a lane has answered it. The loop gets the answer too,
// also if another alarm is waiting for it.
func TestAnsweredAlarm(t *testing.T) {
	memory := signal.Threshold{Signal: signal.MemoryAvailable}
	threshold := signal.IDOf(&memory)
	s := newFixture(t, 500, 300)
	s.reader.available, s.reader.cache = 900*mi, 500*mi
	s.publish(s.table(0, time.Now()))
	if got := s.process(lanes.Alarm{Lane: "bpf", Threshold: threshold, Seen: time.Now()}); got != Declined || s.arbiter.TakeActNow(threshold) {
		t.Errorf("crossing by file cache: process() = %v; want %v, and no answer for the loop", got, Declined)
	}
	if got := s.process(lanes.Alarm{Lane: "bpf", Threshold: threshold, Seen: time.Now(), ActNow: true}); got != Killed {
		t.Errorf("answered: process() = %v; want %v", got, Killed)
	}
	if diff := cmp.Diff([]string{"p0"}, s.killer.names()); diff != "" {
		t.Errorf("killed (-want +got):\n%s", diff)
	}
	if !s.arbiter.TakeActNow(threshold) || s.arbiter.TakeActNow(threshold) {
		t.Error("TakeActNow() = true not exactly once; want it true, then false")
	}

	above := newFixture(t, 500, 300)
	above.publish(above.table(0, time.Now()))
	if got := above.process(lanes.Alarm{Lane: "bpf", Threshold: threshold, Seen: time.Now(), ActNow: true}); got != NotConfirmed {
		t.Errorf("answered, but above the threshold: process() = %v; want %v", got, NotConfirmed)
	}
	above.reader.available, above.reader.cache = 900*mi, 1600*mi // file cache has grown by more than was available
	if got := above.process(lanes.Alarm{Lane: "poll", Seen: time.Now()}); got != Declined {
		t.Errorf("the next crossing: process() = %v; want %v", got, Declined)
	}
}

// An answer is valid until a reading is above the threshold, also if that reading leads to
// no decision.
func TestAnswerEndsWithCrossing(t *testing.T) {
	s := newFixture(t, 500, 300, 200)
	s.publish(s.table(0, time.Now()))
	s.reader.available = 900 * mi // without cache: answered
	if got := s.alarm("bpf"); got != Killed {
		t.Fatalf("process() = %v; want %v", got, Killed)
	}
	s.reader.available = 2048 * mi
	if got := s.alarm("psi"); got != NotConfirmed {
		t.Fatalf("above: process() = %v; want %v", got, NotConfirmed)
	}
	s.reader.available, s.reader.cache = 900*mi, 1600*mi
	if got := s.alarm("psi"); got == Killed {
		t.Errorf("next crossing, by file cache: process() = %v; want no pod killed for it at once", got)
	}
}

// An answer is not lost if its alarm is dropped for another.
func TestAnswerBehindAnotherAlarm(t *testing.T) {
	memory := signal.Threshold{Signal: signal.MemoryAvailable}
	s := newFixture(t, 500, 300)
	s.reader.available, s.reader.cache = 900*mi, 500*mi
	s.publish(s.table(0, time.Now()))
	answered := lanes.Alarm{Lane: "poll", Threshold: signal.IDOf(&memory), Seen: time.Now(), ActNow: true}
	s.recordAnswer(&answered)
	if got := s.alarm("psi"); got != Killed {
		t.Errorf("process() of another alarm = %v; want %v, because of the answer", got, Killed)
	}
}

func TestLeftToLoop(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(s *fixture)
		want   Result
	}{
		{"cache alone", func(s *fixture) { s.reader.cache = 500 * mi }, Declined},
		{"futile", func(s *fixture) { s.reader.available = 0 }, Declined},
		{"no eligible pod", func(s *fixture) {
			for i := range s.in.Pods {
				s.in.Pods[i].Static = true
			}
		}, Declined},
		{"not listed", func(s *fixture) { s.in.PodsUnknown = true }, Declined},
		{"unlisted pod", func(s *fixture) { s.reader.kubepods = 800*mi + evict.UnaccountedMin }, Unlisted},
		{"unlisted pod and known unaccounted memory", func(s *fixture) {
			s.in.UnaccountedBaseline, s.reader.kubepods = 2000*mi, 2800*mi+evict.UnaccountedMin
		}, Unlisted},
	} {
		s := newFixture(t, 500, 300)
		s.reader.available = 900 * mi
		tc.change(s)
		s.publish(s.table(0, time.Now()))
		if got := s.alarm("bpf"); got != tc.want || s.killer.n > 0 {
			t.Errorf("%s: process() = %v, killed %q; want %v, and no kill", tc.name, got, s.killer.names(), tc.want)
		}
		if !s.arbiter.Acquire(0) {
			t.Errorf("%s: the loop can't acquire the generation; want it to decide", tc.name)
		}
	}
}

// Unaccounted memory that is known to the table does not leave a kill to the loop.
func TestKnownUnaccountedMemory(t *testing.T) {
	s := newFixture(t, 500, 300)
	s.in.UnaccountedBaseline = 2000 * mi
	s.reader.available, s.reader.kubepods = 900*mi, 2800*mi+evict.UnaccountedMin-1
	s.publish(s.table(0, time.Now()))
	if got := s.alarm("bpf"); got != Killed {
		t.Errorf("process() = %v; want %v", got, Killed)
	}
}

func TestUnpreparedPod(t *testing.T) {
	s := newFixture(t, 500, 300)
	s.reader.available = 900 * mi
	table := s.table(0, time.Now())
	table.Rows[0] = Row{}
	s.publish(table)
	if got := s.alarm("bpf"); got != NoHandle || s.killer.n > 0 {
		t.Fatalf("process() without a handle = %v, killed %q; want it left to the loop", got, s.killer.names())
	}
	table.Prepare = func(at int) (Handle, error) { return s.pods[at], nil }
	if got := s.alarm("bpf"); got != Killed {
		t.Fatalf("process() = %v; want %v", got, Killed)
	}
	kills, _ := s.arbiter.TakeKills(nil)
	if len(kills) != 1 || !kills[0].Unprepared || s.pods[0].closed {
		t.Errorf("kills = %+v, closed %t; want an unprepared pod, whose handle the loop closes", kills, s.pods[0].closed)
	}

	s = newFixture(t, 500)
	s.reader.available = 900 * mi
	table = s.table(0, time.Now())
	table.Rows[0] = Row{}
	table.Prepare = func(at int) (Handle, error) {
		s.arbiter.Acquire(0) // the loop acquires the generation first
		return s.pods[at], nil
	}
	s.publish(table)
	if got := s.alarm("bpf"); got != Superseded || !s.pods[0].closed || s.pods[0].refs != 0 {
		t.Errorf("process() = %v, closed %t, %d references; want %v, and the handle closed", got, s.pods[0].closed, s.pods[0].refs, Superseded)
	}
}

// If a handle is closed while the thread decides, another one is prepared.
func TestClosedHandle(t *testing.T) {
	s := newFixture(t, 500, 300)
	s.reader.available = 900 * mi
	s.pods[0].closed = true
	other := &fakePod{name: "again"}
	table := s.table(0, time.Now())
	table.Prepare = func(int) (Handle, error) { return other, nil }
	s.publish(table)
	if got := s.alarm("bpf"); got != Killed || !slices.Equal(s.killer.names(), []string{"again"}) || other.refs != 1 {
		t.Errorf("process() = %v, killed %q, %d references; want the new handle, still referenced", got, s.killer.names(), other.refs)
	}
}

// A pod whose kill is refused is not waited for; the next one is killed.
func TestRefused(t *testing.T) {
	s := newFixture(t, 500, 300)
	s.killer.refuse = "p0"
	s.publish(s.table(0, time.Now()))
	s.reader.available = 900 * mi
	s.alarm("bpf")
	s.alarm("bpf")
	s.alarm("bpf")
	if want := []string{"p0", "p1"}; !slices.Equal(s.killer.names(), want) {
		t.Errorf("killed %q; want %q", s.killer.names(), want)
	}
}

func TestDryRun(t *testing.T) {
	s := newFixture(t, 500, 300)
	s.in.DryRun = true
	s.publish(s.table(0, time.Now()))
	s.reader.available = 900 * mi
	s.alarm("bpf")
	s.alarm("poll")
	kills, _ := s.arbiter.TakeKills(nil)
	if s.killer.n > 0 || !slices.Equal(s.dryRunKiller.names(), []string{"p0"}) || len(kills) != 1 || !kills[0].DryRun {
		t.Errorf("killed %q, in dry run %q, kills %+v; want none, p0 once", s.killer.names(), s.dryRunKiller.names(), kills)
	}
}

func TestResultString(t *testing.T) {
	var got []string
	for r := range Results + 2 {
		got = append(got, r.String())
	}
	want := []string{"struck", "not confirmed", "declined", "pod not listed", "victim not held", "outrun", "not ready", "unknown", "unknown"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("results differ (-want +got):\n%s", diff)
	}
}
