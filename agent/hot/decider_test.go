package hot

import (
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/lanes"
	"github.com/evictd/evictd/agent/memory"
	"github.com/evictd/evictd/agent/signal"
)

// long is an age at which usage has to be read anew.
func staleTime() time.Time { return time.Now().Add(-time.Second) }

// Complexity: a check of each field of one kill.
//
//gocyclo:ignore
func TestKill(t *testing.T) {
	s := newFixture(t, 500, 300)
	s.publish(s.table(0, time.Now()))
	s.reader.available = 900 * mi
	seen := time.Now()
	if got := s.handle(lanes.Raise{Lane: "bpf", LastAbove: seen.Add(-time.Millisecond), Seen: seen}); got != Struck {
		t.Fatalf("handle() = %v; want struck", got)
	}
	kills, generation := s.arbiter.Kills(nil)
	if len(kills) != 1 || generation != 1 || !slices.Equal(s.killer.names(), []string{"p0"}) {
		t.Fatalf("%d kills of generation %d, struck %q; want p0 alone, of generation 1", len(kills), generation, s.killer.names())
	}
	k := kills[0]
	if k.Pod.UID != "p0" || k.Deficit != 124*mi || k.Expected != 500*mi || k.Observation.Available != 900*mi || k.Strike.Processes != 1 {
		t.Errorf("kill = %+v; want p0 for what was read", k)
	}
	if k.Raise.Lane != "bpf" || k.Raise.Seen != seen || k.Decided.Before(seen) || k.Cold || k.DryRun || k.RankingAge < 0 || k.RankingAge > maxRankingAge {
		t.Errorf("kill = %+v; want the alarm's lane and times, of a pod that was held", k)
	}
	if k.Confirmed.Before(k.Decided) || k.Chosen.Before(k.Confirmed) || time.Now().Before(k.Chosen) {
		t.Errorf("decided %v, confirmed %v, chosen %v; want them in this order, before now", k.Decided, k.Confirmed, k.Chosen)
	}
	if got := k.Candidates(); len(got) != 2 || got[0].UID != "p0" || got[1].UID != "p1" {
		t.Errorf("candidates = %+v; want both pods in their order", got)
	}
	select {
	case r := <-s.arbiter.News():
		if r.Lane != "bpf" {
			t.Errorf("news of %q; want bpf", r.Lane)
		}
	default:
		t.Error("the loop was not told")
	}
	if again, _ := s.arbiter.Kills(nil); len(again) > 0 {
		t.Errorf("the desk has %d kills left; want none", len(again))
	}
}

// A crossing that has recovered before it is confirmed ends nobody.
func TestNotConfirmed(t *testing.T) {
	s := newFixture(t, 500)
	if got := s.alarm("bpf"); got != Unready {
		t.Errorf("handle() without a table = %v; want not ready", got)
	}
	s.publish(s.table(0, time.Now()))
	s.reader.available = 1024 * mi
	if got := s.alarm("bpf"); got != NotConfirmed || s.killer.n > 0 {
		t.Errorf("handle() = %v, struck %q; want not confirmed, and nobody", got, s.killer.names())
	}
	if s.Count(NotConfirmed) != 1 || s.handled() != 2 {
		t.Errorf("counts: %d not confirmed of %d; want 1 of 2", s.Count(NotConfirmed), s.handled())
	}
}

// Several lanes that raise for the same crossing end one pod.
func TestSeveralLanesOneKill(t *testing.T) {
	s := newFixture(t, 500, 300)
	s.publish(s.table(0, time.Now()))
	s.reader.available = 900 * mi
	for _, lane := range []string{"bpf", "memcg", "psi", "poll"} {
		s.alarm(lane)
	}
	if uids, _ := s.takeKills(); !slices.Equal(uids, []string{"p0"}) || s.Count(Declined) != 3 {
		t.Errorf("struck %q, %d alarms declined; want p0, 3", uids, s.Count(Declined))
	}
	// What comes on top of what is on its way ends another.
	s.reader.available = 300 * mi
	s.alarm("bpf")
	if uids, generation := s.takeKills(); !slices.Equal(uids, []string{"p1"}) || generation != 2 {
		t.Errorf("struck %q of generation %d; want p1 of 2", uids, generation)
	}
}

// The loop and the thread that decide at once end one pod: who claims second
// has to decide again.
func TestSuperseded(t *testing.T) {
	s := newFixture(t, 500, 300)
	s.publish(s.table(0, time.Now()))
	s.reader.available = 900 * mi
	if !s.arbiter.Claim(0) {
		t.Fatal("Claim(0) = false; want true")
	}
	if got := s.alarm("bpf"); got != Outrun || s.killer.n > 0 {
		t.Errorf("handle() after the loop's claim = %v, struck %q; want outrun, and nobody", got, s.killer.names())
	}
	if s.arbiter.Claim(0) {
		t.Error("second Claim(0) = true; want false")
	}
	// A table of before the claim is not taken up, one of after is.
	s.publish(s.table(0, time.Now()))
	if got := s.alarm("bpf"); got != Outrun {
		t.Errorf("handle() with a stale table = %v; want outrun", got)
	}
	s.publish(s.table(1, time.Now()))
	if got := s.alarm("bpf"); got != Struck {
		t.Errorf("handle() with a table of the loop's next step = %v; want struck", got)
	}
	if s.arbiter.Claim(1) {
		t.Error("Claim() of what was observed before the kill = true; want false")
	}
	if _, generation := s.takeKills(); !s.arbiter.Claim(generation) {
		t.Error("Claim() after the kill was taken in = false; want true")
	}
}

// While somebody is killing, what was decided without that is not claimed.
func TestClaimDuringKill(t *testing.T) {
	s := newFixture(t, 500)
	s.publish(s.table(0, time.Now()))
	s.reader.available = 900 * mi
	s.killer.during = func() {
		_, generation := s.arbiter.Kills(nil)
		if s.arbiter.Claim(generation) || s.arbiter.Claim(generation+1) {
			t.Error("Claim() during a strike = true; want false")
		}
	}
	s.alarm("bpf")
	if s.killer.n != 1 {
		t.Errorf("struck %q; want p0", s.killer.names())
	}
}

// From a strike that hangs, the loop takes the right to kill. When the strike
// comes to its end after all, it is not told, and what follows goes on.
func TestSeize(t *testing.T) {
	s := newFixture(t, 500, 300)
	s.publish(s.table(0, time.Now()))
	s.reader.available = 900 * mi
	if s.arbiter.Seize(0) {
		t.Error("Seize() while nobody kills = true; want false")
	}
	s.killer.during = func() {
		if _, generation := s.arbiter.Kills(nil); !s.arbiter.Seize(generation) || s.arbiter.Seize(generation) {
			t.Error("Seize() during a strike = false, or true twice; want it once")
		}
		if !s.arbiter.Claim(2) {
			t.Error("Claim() of the next observation = false; want true")
		}
	}
	if got := s.alarm("bpf"); got != Outrun || s.killer.n != 1 {
		t.Errorf("handle() of what was seized = %v, struck %q; want outrun, and p0", got, s.killer.names())
	}
	if uids, generation := s.takeKills(); len(uids) > 0 || generation != 3 {
		t.Errorf("told of %q, generation %d; want nobody, 3", uids, generation)
	}
	s.killer.during = nil
	if got := s.alarm("bpf"); got != Outrun {
		t.Errorf("handle() with the old table = %v; want outrun", got)
	}
	s.publish(s.table(3, time.Now()))
	if got := s.alarm("bpf"); got != Struck {
		t.Errorf("handle() with the loop's next table = %v; want struck", got)
	}
}

// Of two victims the first lies on the desk when it is seized: its Hold is for the
// loop to let go of, the other's is not.
func TestSeizeBetweenKills(t *testing.T) {
	s := newFixture(t, 500, 300)
	s.publish(s.table(0, time.Now()))
	s.reader.available = 400 * mi
	s.killer.during = func() {
		if s.killer.n == 2 && !s.arbiter.Seize(0) {
			t.Error("Seize() during the second strike = false; want true")
		}
	}
	if got := s.alarm("bpf"); got != Outrun || s.killer.n != 2 {
		t.Fatalf("handle() = %v, struck %q; want outrun, both", got, s.killer.names())
	}
	kills, generation := s.arbiter.Kills(nil)
	if len(kills) != 1 || kills[0].Pod.UID != "p0" || generation != 2 {
		t.Fatalf("told of %+v, generation %d; want p0, 2", kills, generation)
	}
	kills[0].Hold.Drop()
	for _, p := range s.pods {
		if p.refs != 0 {
			t.Errorf("%s was grabbed %d times more than dropped; want 0", p.name, p.refs)
		}
	}
}

// Whoever comes first of a seizure and the end of a strike, somebody can claim
// afterwards.
func TestSeizeAtRelease(t *testing.T) {
	for range 20_000 {
		d := NewDesk()
		d.acquireLease(0)
		var both sync.WaitGroup
		both.Go(func() { d.release(0) })
		seized := d.Seize(0)
		both.Wait()
		_, generation := d.Kills(nil)
		if want := map[bool]uint64{true: 2, false: 1}[seized]; generation != want || !d.Claim(generation) {
			t.Fatalf("seized %t: generation %d, which can't be claimed; want %d", seized, generation, want)
		}
	}
}

// A thread that was believed to hang and one that took its place do not write in the
// same place.
func TestSeparateQueues(t *testing.T) {
	s := newFixture(t, 500, 300)
	var other decider
	other.setUp(&Options{Desk: s.arbiter, Read: s.reader, Strike: s.dryRunKiller, Look: s.dryRunKiller})
	s.arbiter.acquireLease(0)
	k := s.queue.next()
	s.arbiter.Seize(0) // before k is laid
	other.publish(s.table(2, time.Now()))
	s.reader.available = 900 * mi
	if got := other.handle(lanes.Raise{Lane: WatchdogLane}); got != Struck {
		t.Fatalf("handle() beside a thread that hangs = %v; want struck", got)
	}
	*k = Kill{Pod: &s.in.Pods[1]}
	s.queue.commit()
	if uids, _ := s.takeKills(); !slices.Equal(uids, []string{"p1", "p0"}) {
		t.Errorf("told of %q; want p1, p0", uids)
	}
}

// One pod is calm, the other was empty when it was last looked at and has grown
// since: the calm one lives.
func TestRefreshFindsGrownPod(t *testing.T) {
	s := newFixture(t, 500, 0)
	s.publish(s.table(0, staleTime()))
	s.reader.available = 900 * mi
	s.pods[1].uses(1600 * mi)
	if got := s.alarm("bpf"); got != Struck || !slices.Equal(s.killer.names(), []string{"p1"}) {
		t.Errorf("handle() = %v, struck %q; want p1", got, s.killer.names())
	}
	kills, _ := s.arbiter.Kills(nil)
	if len(kills) != 1 || kills[0].RankingAge != 0 || kills[0].Memory != 1600*mi || kills[0].Expected != 1600*mi {
		t.Errorf("kills = %+v; want p1 by what it uses now", kills)
	}
}

// File cache in a pod's usage does not make it look larger than it is.
func TestRefreshIgnoresCache(t *testing.T) {
	for _, tc := range []struct {
		name  string
		cache int64 // before, inactive, of p0
		later int64 // now
		want  string
	}{
		{"much cache before, more now", 900, 1800, "p1"},
		{"none before, much now", 0, 1600, "p1"},
		{"little", 10, 20, "p1"},
	} {
		s := newFixture(t, 200, 400)
		s.pods[0].usage = (200 + tc.cache) * mi
		s.publish(s.table(0, staleTime()))
		s.reader.available = 900 * mi
		s.pods[0].usage = (200 + tc.later) * mi
		if got := s.alarm("bpf"); got != Struck || !slices.Equal(s.killer.names(), []string{tc.want}) {
			t.Errorf("%s: handle() = %v, struck %q; want %s", tc.name, got, s.killer.names(), tc.want)
		}
	}
}

// walkingReader also reads what cgroups use, by the number of the pod.
type walkingReader struct {
	*fakeReader
	usage map[uint64][2]int64 // working set and anonymous lists
}

func (r *walkingReader) Usage(cgroup uint64) (workingSet, anonymous int64, ok bool) {
	row, ok := r.usage[cgroup]
	return row[0], row[1], ok
}

// Where a walk tells what the pods use, their files are not read, but for those
// of whom the walk does not tell.
func TestWalk(t *testing.T) {
	s := newFixture(t, 500, 0, 100)
	s.pods[1].uses(1600 * mi)
	walked := map[uint64][2]int64{0: {500 * mi, 500 * mi}, 1: {1600 * mi, 1590 * mi}}
	s.setReader(&walkingReader{s.reader, walked})
	table := s.table(0, staleTime())
	table.Rows[1].WorkingSet, table.Rows[1].Usage = 0, 0
	s.publish(table)
	s.reader.available = 900 * mi
	before := s.pods[2].usageReads
	if got := s.alarm("bpf"); got != Struck || !slices.Equal(s.killer.names(), []string{"p1"}) {
		t.Errorf("handle() = %v, struck %q; want p1", got, s.killer.names())
	}
	if s.reader.looks != 0 || s.pods[2].usageReads == before {
		t.Errorf("looks at %d pods, reads of p2 %d; want 0, some", s.reader.looks, s.pods[2].usageReads-before)
	}
	if kills, _ := s.arbiter.Kills(nil); len(kills) != 1 || kills[0].Memory != 1600*mi || kills[0].Expected != 1590*mi {
		t.Errorf("kills = %+v; want p1 for what the walk found, of which 1590 MiB are anonymous", kills)
	}
}

// What a walk counts as anonymous and what the pod has not grown by is tmpfs, or was
// page cache: whoever is chosen is looked at, if that does not take too long.
func TestWalkWithTmpfs(t *testing.T) {
	for _, late := range []bool{false, true} {
		s := newFixture(t, 500, 400)
		p := s.pods[0]
		p.anonymous, s.in.Pods[0].Usage.Freeable = 100*mi, 100*mi // of 500
		walked := map[uint64][2]int64{0: {900 * mi, 900 * mi}, 1: {400 * mi, 400 * mi}}
		s.setReader(&walkingReader{s.reader, walked})
		s.publish(s.table(0, staleTime()))
		p.usage, p.workingSet, p.anonymous = 900*mi, 900*mi, 500*mi
		s.reader.available, s.reader.late = 900*mi, late
		if got := s.alarm("bpf"); got != Struck || s.reader.looks != 1 || s.pods[1].memoryReads > 0 {
			t.Fatalf("late %t: handle() = %v, %d looks; want struck, one", late, got, s.reader.looks)
		}
		if kills, _ := s.arbiter.Kills(nil); len(kills) != 1 || kills[0].Pod.UID != "p0" || kills[0].Expected != 500*mi {
			t.Errorf("late %t: kills = %+v; want p0 for 500 MiB", late, kills)
		}
	}
}

// What a pod has written to a tmpfs since the table was made is not expected back, also
// where the pod can't be looked at in time.
func TestTmpfsGrowth(t *testing.T) {
	for _, tc := range []struct {
		name string
		late bool
		want []string
	}{
		{"looked at", false, []string{"p0", "p1"}},
		{"too late", true, []string{"p0", "p1"}},
	} {
		s := newFixture(t, 500, 400)
		// p0 has written 300 MiB to a tmpfs, p1 has taken 200 MiB.
		s.setReader(&walkingReader{s.reader, map[uint64][2]int64{0: {800 * mi, 800 * mi}, 1: {600 * mi, 600 * mi}}})
		s.publish(s.table(0, staleTime()))
		s.pods[0].usage, s.pods[0].workingSet = 800*mi, 800*mi
		s.pods[1].uses(600 * mi)
		s.reader.available, s.reader.shmem, s.reader.late = 1024*mi-700*mi, 300*mi, tc.late
		s.alarm("bpf")
		if diff := cmp.Diff(tc.want, s.killer.names()); diff != "" {
			t.Errorf("%s: struck (-want +got):\n%s", tc.name, diff)
		}
		for _, k := range func() []Kill { k, _ := s.arbiter.Kills(nil); return k }() {
			if k.Pod.UID == "p0" && k.Expected != 500*mi {
				t.Errorf("%s: %d MiB are expected of p0; want 500", tc.name, k.Expected/mi)
			}
		}
	}
}

// Shared memory that one pod took makes what another has grown by uncertain: where all
// pods do not cover the deficit by that, they are looked at.
func TestTmpfsGrowthOfAnotherPod(t *testing.T) {
	s := newFixture(t, 500)
	s.setReader(&walkingReader{s.reader, map[uint64][2]int64{0: {900 * mi, 900 * mi}}})
	s.publish(s.table(0, staleTime()))
	s.pods[0].uses(900 * mi)
	s.reader.available, s.reader.shmem = 1024*mi-700*mi, 400*mi
	if got := s.alarm("bpf"); got != Struck {
		t.Errorf("handle() = %v; want struck", got)
	}
}

// What an exempt pod, or one that is not held, has grown by is read by the same walk:
// it is no pod that is not listed.
func TestGrowthOfExemptPod(t *testing.T) {
	for _, exempt := range []bool{true, false} {
		s := newFixture(t, 500, 300)
		s.in.Pods[1].Static = exempt
		const grown = 2 * evict.Stranger
		s.setReader(&walkingReader{s.reader, map[uint64][2]int64{0: {500 * mi, 500 * mi}, 1: {300*mi + grown, 300*mi + grown}}})
		table := s.table(0, staleTime())
		table.Rows[1] = NewRow(nil, &s.in.Pods[1], []uint64{1}, 300*mi)
		s.publish(table)
		s.reader.available, s.reader.kubepods = 900*mi, 800*mi+grown
		if got := s.alarm("bpf"); got != Struck || !slices.Equal(s.killer.names(), []string{"p0"}) {
			t.Errorf("exempt %t: handle() = %v, struck %q; want p0", exempt, got, s.killer.names())
		}
	}
}

// Where a pod can't be looked at in time its page cache is taken for what it was.
func TestReadMemoryTooLate(t *testing.T) {
	s := newFixture(t, 500, 400)
	s.pods[0].usage = 1400 * mi // with cache
	s.publish(s.table(0, staleTime()))
	s.pods[1].uses(600 * mi)
	s.pods[0].usage = 1410 * mi
	s.reader.available, s.reader.late = 900*mi, true
	if got := s.alarm("poll"); got != Struck || !slices.Equal(s.killer.names(), []string{"p1"}) {
		t.Errorf("handle() = %v, struck %q; want p1", got, s.killer.names())
	}
	if s.pods[0].memoryReads+s.pods[1].memoryReads > 0 {
		t.Error("a pod was looked at by the thread itself; want it left to the reader")
	}
}

// What all pods hold together may be known but for their page cache: somebody who
// is not listed is noticed all the same.
func TestUnlistedPodAfterRead(t *testing.T) {
	known := memory.Node{Kubepods: 800 * mi, KubepodsUsage: 1800 * mi, KubepodsKnown: true}
	for _, tc := range []struct {
		name   string
		usage  int64
		before memory.Node
		want   Result
	}{
		{"nobody else", 1800 * mi, known, Struck},
		{"a stranger", 1800*mi + evict.Stranger, known, Strange},
		{"page cache or a stranger", 1800 * mi, memory.Node{}, Strange},
		{"nothing is known", math.MaxInt64, known, Strange},
	} {
		s := newFixture(t, 500, 300)
		s.reader.available, s.reader.noKubepods, s.reader.usage = 900*mi, true, tc.usage
		table := s.table(0, time.Now())
		table.Node = tc.before
		s.publish(table)
		if got := s.alarm("poll"); got != tc.want {
			t.Errorf("%s: handle() = %v; want %v", tc.name, got, tc.want)
		}
	}
}

// Usage that is fresh enough is used as it is.
func TestFreshTableIsNotRefreshed(t *testing.T) {
	s := newFixture(t, 500, 300)
	s.publish(s.table(0, time.Now()))
	s.reader.available = 900 * mi
	s.alarm("bpf")
	for _, p := range s.pods {
		if p.memoryReads > 0 {
			t.Errorf("%s was read %d times; want 0", p.name, p.memoryReads)
		}
	}
}

// A crossing that file cache brought waits, until a lane has answered it; the loop
// learns of that also where another alarm waits to be heard.
func TestAnsweredAlarm(t *testing.T) {
	memory := signal.Threshold{Signal: signal.MemoryAvailable}
	mark := signal.MarkOf(&memory)
	s := newFixture(t, 500, 300)
	s.reader.available, s.reader.cache = 900*mi, 500*mi
	s.publish(s.table(0, time.Now()))
	if got := s.handle(lanes.Raise{Lane: "bpf", Mark: mark, Seen: time.Now()}); got != Declined || s.arbiter.TakeAnswered(mark) {
		t.Errorf("brought by file cache: handle() = %v; want %v, and no answer for the loop", got, Declined)
	}
	if got := s.handle(lanes.Raise{Lane: "bpf", Mark: mark, Seen: time.Now(), Answered: true}); got != Struck {
		t.Errorf("answered: handle() = %v; want %v", got, Struck)
	}
	if diff := cmp.Diff([]string{"p0"}, s.killer.names()); diff != "" {
		t.Errorf("struck (-want +got):\n%s", diff)
	}
	if !s.arbiter.TakeAnswered(mark) || s.arbiter.TakeAnswered(mark) {
		t.Error("the loop does not learn of the answer, or twice")
	}

	above := newFixture(t, 500, 300)
	above.publish(above.table(0, time.Now()))
	if got := above.handle(lanes.Raise{Lane: "bpf", Mark: mark, Seen: time.Now(), Answered: true}); got != NotConfirmed {
		t.Errorf("answered, and above by a fresh reading: handle() = %v; want %v", got, NotConfirmed)
	}
	above.reader.available, above.reader.cache = 900*mi, 1600*mi // file cache has grown by more than was available
	if got := above.handle(lanes.Raise{Lane: "poll", Seen: time.Now()}); got != Declined {
		t.Errorf("the next crossing: handle() = %v; want %v", got, Declined)
	}
}

// What was answered stays so until a reading shows that the threshold is no longer
// met, also one that calls for no decision.
func TestAnswerEndsWithCrossing(t *testing.T) {
	s := newFixture(t, 500, 300, 200)
	s.publish(s.table(0, time.Now()))
	s.reader.available = 900 * mi // without cache: answered
	if got := s.alarm("bpf"); got != Struck {
		t.Fatalf("handle() = %v; want %v", got, Struck)
	}
	s.reader.available = 2048 * mi
	if got := s.alarm("psi"); got != NotConfirmed {
		t.Fatalf("above: handle() = %v; want %v", got, NotConfirmed)
	}
	s.reader.available, s.reader.cache = 900*mi, 1600*mi
	if got := s.alarm("psi"); got == Struck {
		t.Errorf("file cache brought the next crossing: handle() = %v; want no pod killed for it at once", got)
	}
}

// An answer is not lost where another alarm stands for the one that said it.
func TestAnswerBehindAnotherAlarm(t *testing.T) {
	memory := signal.Threshold{Signal: signal.MemoryAvailable}
	s := newFixture(t, 500, 300)
	s.reader.available, s.reader.cache = 900*mi, 500*mi
	s.publish(s.table(0, time.Now()))
	answered := lanes.Raise{Lane: "poll", Mark: signal.MarkOf(&memory), Seen: time.Now(), Answered: true}
	s.recordAnswer(&answered)
	if got := s.alarm("psi"); got != Struck {
		t.Errorf("handle() of an alarm without a mark = %v; want %v, by the answer of the other", got, Struck)
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
		{"nobody eligible", func(s *fixture) {
			for i := range s.in.Pods {
				s.in.Pods[i].Static = true
			}
		}, Declined},
		{"not listed", func(s *fixture) { s.in.Unlisted = true }, Declined},
		{"a stranger", func(s *fixture) { s.reader.kubepods = 800*mi + evict.Stranger }, Strange},
		{"a stranger besides what is nothing new", func(s *fixture) {
			s.in.Unexplained, s.reader.kubepods = 2000*mi, 2800*mi+evict.Stranger
		}, Strange},
	} {
		s := newFixture(t, 500, 300)
		s.reader.available = 900 * mi
		tc.change(s)
		s.publish(s.table(0, time.Now()))
		if got := s.alarm("bpf"); got != tc.want || s.killer.n > 0 {
			t.Errorf("%s: handle() = %v, struck %q; want %v, and nobody", tc.name, got, s.killer.names(), tc.want)
		}
		if !s.arbiter.Claim(0) {
			t.Errorf("%s: the loop can't claim; want it to decide", tc.name)
		}
	}
}

// What a pod has grown by since the table was made is no stranger's, however young
// the table.
func TestGrowthSinceTable(t *testing.T) {
	s := newFixture(t, 500, 300)
	s.publish(s.table(0, time.Now()))
	s.reader.available, s.reader.kubepods = 900*mi, 800*mi+2*evict.Stranger
	s.pods[1].uses(300*mi + 2*evict.Stranger)
	if got := s.alarm("bpf"); got != Struck {
		t.Errorf("handle() = %v; want struck", got)
	}
}

// Memory that no pod accounts for, and that has been there before, is no reason to
// leave a kill to the loop.
func TestKnownUnaccountedMemory(t *testing.T) {
	s := newFixture(t, 500, 300)
	s.in.Unexplained = 2000 * mi
	s.reader.available, s.reader.kubepods = 900*mi, 2800*mi+evict.Stranger-1
	s.publish(s.table(0, time.Now()))
	if got := s.alarm("bpf"); got != Struck {
		t.Errorf("handle() = %v; want struck", got)
	}
}

func TestUnpreparedPod(t *testing.T) {
	s := newFixture(t, 500, 300)
	s.reader.available = 900 * mi
	table := s.table(0, time.Now())
	table.Rows[0] = Row{}
	s.publish(table)
	if got := s.alarm("bpf"); got != Unheld || s.killer.n > 0 {
		t.Fatalf("handle() of what can't be held = %v, struck %q; want it left to the loop", got, s.killer.names())
	}
	table.Prepare = func(at int) (Pod, error) { return s.pods[at], nil }
	if got := s.alarm("bpf"); got != Struck {
		t.Fatalf("handle() = %v; want struck", got)
	}
	kills, _ := s.arbiter.Kills(nil)
	if len(kills) != 1 || !kills[0].Cold || s.pods[0].closed {
		t.Errorf("kills = %+v, closed %t; want a cold one, whose Hold is the loop's to close", kills, s.pods[0].closed)
	}

	s = newFixture(t, 500)
	s.reader.available = 900 * mi
	table = s.table(0, time.Now())
	table.Rows[0] = Row{}
	table.Prepare = func(at int) (Pod, error) {
		s.arbiter.Claim(0) // meanwhile the loop has been faster
		return s.pods[at], nil
	}
	s.publish(table)
	if got := s.alarm("bpf"); got != Outrun || !s.pods[0].closed || s.pods[0].refs != 0 {
		t.Errorf("handle() = %v, closed %t, grabbed %d; want outrun, and the Hold given up", got, s.pods[0].closed, s.pods[0].refs)
	}
}

// A Hold that is given up while the thread decides is not struck: another is
// prepared.
func TestClosedHandle(t *testing.T) {
	s := newFixture(t, 500, 300)
	s.reader.available = 900 * mi
	s.pods[0].closed = true
	other := &fakePod{name: "again"}
	table := s.table(0, time.Now())
	table.Prepare = func(int) (Pod, error) { return other, nil }
	s.publish(table)
	if got := s.alarm("bpf"); got != Struck || !slices.Equal(s.killer.names(), []string{"again"}) || other.refs != 1 {
		t.Errorf("handle() = %v, struck %q, grabbed %d; want the new Hold, which stays grabbed", got, s.killer.names(), other.refs)
	}
}

// A pod that must not be struck is not waited for: the next one goes.
func TestRefused(t *testing.T) {
	s := newFixture(t, 500, 300)
	s.killer.refuse = "p0"
	s.publish(s.table(0, time.Now()))
	s.reader.available = 900 * mi
	s.alarm("bpf")
	s.alarm("bpf")
	s.alarm("bpf")
	if want := []string{"p0", "p1"}; !slices.Equal(s.killer.names(), want) {
		t.Errorf("struck %q; want %q", s.killer.names(), want)
	}
}

func TestDryRun(t *testing.T) {
	s := newFixture(t, 500, 300)
	s.in.DryRun = true
	s.publish(s.table(0, time.Now()))
	s.reader.available = 900 * mi
	s.alarm("bpf")
	s.alarm("poll")
	kills, _ := s.arbiter.Kills(nil)
	if s.killer.n > 0 || !slices.Equal(s.dryRunKiller.names(), []string{"p0"}) || len(kills) != 1 || !kills[0].DryRun {
		t.Errorf("struck %q, looked at %q, kills %+v; want nobody, p0 once", s.killer.names(), s.dryRunKiller.names(), kills)
	}
}

// When nobody keeps the books, killing ends.
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
		t.Errorf("struck %d, told of %d; want %d", s.killer.n, len(uids), maxKills)
	}
	s.alarm("bpf")
	if uids, _ := s.takeKills(); len(uids) == 0 {
		t.Error("nobody is struck after the books were brought up to date; want it to go on")
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
