package hot

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/memory"
)

// A pod that was empty when it was last read, and has grown since, is killed instead of one
// that uses what it used before.
func TestRefreshFindsGrownPod(t *testing.T) {
	s := newFixture(t, 500, 0)
	s.publish(s.table(0, staleTime()))
	s.reader.available = 900 * mi
	s.pods[1].uses(1600 * mi)
	if got := s.alarm("bpf"); got != Killed || !slices.Equal(s.killer.names(), []string{"p1"}) {
		t.Errorf("process() = %v, killed %q; want p1", got, s.killer.names())
	}
	kills, _ := s.arbiter.TakeKills(nil)
	if len(kills) != 1 || kills[0].RankingAge != 0 || kills[0].Memory != 1600*mi || kills[0].Expected != 1600*mi {
		t.Errorf("kills = %+v; want p1 with its current usage", kills)
	}
}

// File cache in a pod's charged memory does not make it rank higher.
func TestRefreshIgnoresCache(t *testing.T) {
	for _, tc := range []struct {
		name  string
		cache int64 // inactive file cache of p0 in the table
		later int64 // and now
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
		if got := s.alarm("bpf"); got != Killed || !slices.Equal(s.killer.names(), []string{tc.want}) {
			t.Errorf("%s: process() = %v, killed %q; want %s", tc.name, got, s.killer.names(), tc.want)
		}
	}
}

// walkingReader also has the usage of cgroups, by the number of the pod.
type walkingReader struct {
	*fakeReader
	usage map[uint64][2]int64 // working set and anonymous LRU lists
}

func (r *walkingReader) Usage(cgroup uint64) (workingSet, anonymous int64, ok bool) {
	row, ok := r.usage[cgroup]
	return row[0], row[1], ok
}

// With a walk, only the files of pods that it did not reach are read.
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
	if got := s.alarm("bpf"); got != Killed || !slices.Equal(s.killer.names(), []string{"p1"}) {
		t.Errorf("process() = %v, killed %q; want p1", got, s.killer.names())
	}
	if s.reader.podReads != 0 || s.pods[2].usageReads == before {
		t.Errorf("memory.stat read %d times, usage of p2 %d times; want 0, some", s.reader.podReads, s.pods[2].usageReads-before)
	}
	if kills, _ := s.arbiter.TakeKills(nil); len(kills) != 1 || kills[0].Memory != 1600*mi || kills[0].Expected != 1590*mi {
		t.Errorf("kills = %+v; want p1 with the usage of the walk, of which 1590 MiB are anonymous", kills)
	}
}

// Anonymous memory of a walk that is not growth is tmpfs, or was page cache: memory.stat of
// a chosen pod is read, if that does not take too long.
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
		if got := s.alarm("bpf"); got != Killed || s.reader.podReads != 1 || s.pods[1].memoryReads > 0 {
			t.Fatalf("late %t: process() = %v, memory.stat read %d times; want %v, once", late, got, s.reader.podReads, Killed)
		}
		if kills, _ := s.arbiter.TakeKills(nil); len(kills) != 1 || kills[0].Pod.UID != "p0" || kills[0].Expected != 500*mi {
			t.Errorf("late %t: kills = %+v; want p0 for 500 MiB", late, kills)
		}
	}
}

// Memory that a pod has written to tmpfs since the table was made is not expected to be
// freed, also if memory.stat can't be read in time.
func TestTmpfsGrowth(t *testing.T) {
	for _, tc := range []struct {
		name string
		late bool
		want []string
	}{
		{"memory.stat read", false, []string{"p0", "p1"}},
		{"too late", true, []string{"p0", "p1"}},
	} {
		s := newFixture(t, 500, 400)
		// p0 has written 300 MiB to tmpfs; p1 has allocated 200 MiB.
		s.setReader(&walkingReader{s.reader, map[uint64][2]int64{0: {800 * mi, 800 * mi}, 1: {600 * mi, 600 * mi}}})
		s.publish(s.table(0, staleTime()))
		s.pods[0].usage, s.pods[0].workingSet = 800*mi, 800*mi
		s.pods[1].uses(600 * mi)
		s.reader.available, s.reader.shmem, s.reader.late = 1024*mi-700*mi, 300*mi, tc.late
		s.alarm("bpf")
		if diff := cmp.Diff(tc.want, s.killer.names()); diff != "" {
			t.Errorf("%s: killed (-want +got):\n%s", tc.name, diff)
		}
		for _, k := range func() []Kill { k, _ := s.arbiter.TakeKills(nil); return k }() {
			if k.Pod.UID == "p0" && k.Expected != 500*mi {
				t.Errorf("%s: %d MiB expected of p0; want 500", tc.name, k.Expected/mi)
			}
		}
	}
}

// Shared memory of one pod makes the growth of another uncertain. If all pods do not cover
// the deficit by the estimate, their memory.stat is read.
func TestTmpfsGrowthOfAnotherPod(t *testing.T) {
	s := newFixture(t, 500)
	s.setReader(&walkingReader{s.reader, map[uint64][2]int64{0: {900 * mi, 900 * mi}}})
	s.publish(s.table(0, staleTime()))
	s.pods[0].uses(900 * mi)
	s.reader.available, s.reader.shmem = 1024*mi-700*mi, 400*mi
	if got := s.alarm("bpf"); got != Killed {
		t.Errorf("process() = %v; want %v", got, Killed)
	}
}

// The growth of an exempt pod, or of one without a handle, is known from the walk and is not
// that of an unlisted pod.
func TestGrowthOfExemptPod(t *testing.T) {
	for _, exempt := range []bool{true, false} {
		s := newFixture(t, 500, 300)
		s.in.Pods[1].Static = exempt
		const grown = 2 * evict.UnaccountedMin
		s.setReader(&walkingReader{s.reader, map[uint64][2]int64{0: {500 * mi, 500 * mi}, 1: {300*mi + grown, 300*mi + grown}}})
		table := s.table(0, staleTime())
		table.Rows[1] = NewRow(nil, &s.in.Pods[1], []uint64{1}, 300*mi)
		s.publish(table)
		s.reader.available, s.reader.kubepods = 900*mi, 800*mi+grown
		if got := s.alarm("bpf"); got != Killed || !slices.Equal(s.killer.names(), []string{"p0"}) {
			t.Errorf("exempt %t: process() = %v, killed %q; want p0", exempt, got, s.killer.names())
		}
	}
}

// If memory.stat can't be read in time, the page cache of a pod is taken to be unchanged.
func TestReadMemoryTooLate(t *testing.T) {
	s := newFixture(t, 500, 400)
	s.pods[0].usage = 1400 * mi // with cache
	s.publish(s.table(0, staleTime()))
	s.pods[1].uses(600 * mi)
	s.pods[0].usage = 1410 * mi
	s.reader.available, s.reader.late = 900*mi, true
	if got := s.alarm("poll"); got != Killed || !slices.Equal(s.killer.names(), []string{"p1"}) {
		t.Errorf("process() = %v, killed %q; want p1", got, s.killer.names())
	}
	if s.pods[0].memoryReads+s.pods[1].memoryReads > 0 {
		t.Error("the thread read memory.stat itself; want it left to the reader")
	}
}

// An unlisted pod is found also if kubepods is known only with its page cache.
func TestUnlistedPodAfterRead(t *testing.T) {
	known := memory.Node{Kubepods: 800 * mi, KubepodsUsage: 1800 * mi, KubepodsKnown: true}
	for _, tc := range []struct {
		name   string
		usage  int64
		before memory.Node
		want   Result
	}{
		{"listed pods alone", 1800 * mi, known, Killed},
		{"unlisted pod", 1800*mi + evict.UnaccountedMin, known, Unlisted},
		{"page cache or unlisted pod", 1800 * mi, memory.Node{}, Unlisted},
		{"kubepods unknown", math.MaxInt64, known, Unlisted},
	} {
		s := newFixture(t, 500, 300)
		s.reader.available, s.reader.noKubepods, s.reader.usage = 900*mi, true, tc.usage
		table := s.table(0, time.Now())
		table.Node = tc.before
		s.publish(table)
		if got := s.alarm("poll"); got != tc.want {
			t.Errorf("%s: process() = %v; want %v", tc.name, got, tc.want)
		}
	}
}

// Usage that is not too old is used without a refresh.
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

// The growth of a listed pod since the table was made is not that of an unlisted pod, even
// if the table is new.
func TestGrowthSinceTable(t *testing.T) {
	s := newFixture(t, 500, 300)
	s.publish(s.table(0, time.Now()))
	s.reader.available, s.reader.kubepods = 900*mi, 800*mi+2*evict.UnaccountedMin
	s.pods[1].uses(300*mi + 2*evict.UnaccountedMin)
	if got := s.alarm("bpf"); got != Killed {
		t.Errorf("process() = %v; want %v", got, Killed)
	}
}
