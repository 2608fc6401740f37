package evict

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/signal"
)

// nodeWithPods returns a node with pods of the given sizes in MiB and a hard threshold
// of 1 GiB on memory.available.
func nodeWithPods(t *testing.T, sizes ...int64) *timeline {
	tl := newTimeline(t, hard(signal.MemoryAvailable, "1Gi"))
	tl.in.Measured = true
	for i, size := range sizes {
		tl.in.Pods = append(tl.in.Pods, aPod(fmt.Sprint("p", i), using(size*mi)))
	}
	tl.observe(signal.MemoryAvailable, 2*gi)
	return tl
}

func TestTableSetUsage(t *testing.T) {
	tl := nodeWithPods(t, 500, 0)
	tl.step(0)
	table := NewTable(&tl.in, &tl.state, start)
	tl.observe(signal.MemoryAvailable, 900*mi)
	table.SetUsage(1, 1600*mi, 1600*mi)
	v := table.Decide(&tl.in.Observations, start)
	if v.N != 1 || v.Ranking[0].UID != "p1" || v.Ranking[0].Index() != 1 {
		t.Fatalf("Decide() = %+v; want only p1, which has grown", v)
	}
	if table.HasUnsettled() {
		t.Error("unsettled victim before one is added = true; want false")
	}
	table.AddVictims(&v)
	if again := table.Decide(&tl.in.Observations, start); again.Reason != Covered || !table.HasUnsettled() {
		t.Errorf("Decide() after the victim is added = %q, unsettled %t; want covered and unsettled", again.Reason, table.HasUnsettled())
	}
	clone := table.Clone()
	table.MarkFailed("p1")
	v = table.Decide(&tl.in.Observations, start)
	if v.N != 1 || v.Ranking[0].UID != "p0" {
		t.Errorf("Decide() after a failed kill = %+v; want p0", v)
	}
	if v := clone.Decide(&tl.in.Observations, start); v.Reason != Covered {
		t.Errorf("Decide() of a clone = %q; want %q: the table's changes do not affect it", v.Reason, Covered)
	}
}

func TestTableHeadroom(t *testing.T) {
	tl := newTimeline(t, hard(signal.MemoryAvailable, "1Gi").reclaiming("512Mi"), hard(signal.AllocatableMemoryAvailable, "100Mi"), soft(signal.MemoryAvailable, "4Gi", time.Minute))
	at := func(node, pods int64) signal.Observations {
		o := signal.Observations{{Status: signal.Observed, Available: node}, {Status: signal.Observed, Available: pods}}
		if pods < 0 {
			o[1] = signal.Observation{Status: signal.Unreadable}
		}
		return o
	}
	notMet := NewTable(&tl.in, &State{}, start)
	met := NewTable(&tl.in, &State{Timers: []Timer{{Threshold: ThresholdKey{Signal: signal.MemoryAvailable}, Since: start, Active: true}}}, start)
	for _, tc := range []struct {
		table      *Table
		node, pods int64
		want       int64
	}{
		{notMet, 2 * gi, gi, 924 * mi}, {notMet, 2 * gi, -1, gi}, {notMet, gi, gi, 0}, {notMet, gi - 1, gi, -1}, {notMet, 8 * gi, 0, -100 * mi},
		{met, gi, gi, -512 * mi},
	} {
		o := at(tc.node, tc.pods)
		if got := tc.table.Headroom(&o); got != tc.want {
			t.Errorf("Headroom(%d, %d) = %d; want %d", tc.node, tc.pods, got, tc.want)
		}
	}
}

// A missing reading does not restart the wait for file cache.
func TestTableKeepsWaiting(t *testing.T) {
	tl := nodeWithPods(t, 500)
	table := NewTable(&tl.in, &tl.state, start)
	decide := func(after time.Duration, status signal.Status) VerdictReason {
		o := signal.Observations{{Status: status, Available: 900 * mi, Cache: 500 * mi}}
		v := table.Decide(&o, start.Add(after))
		return v.Reason
	}
	for _, tc := range []struct {
		after  time.Duration
		status signal.Status
		want   VerdictReason
	}{
		{0, signal.Observed, Waiting}, {9 * time.Second, signal.Unreadable, Recovered}, {10 * time.Second, signal.Observed, Chosen},
	} {
		if got := decide(tc.after, tc.status); got != tc.want {
			t.Errorf("after %v: Decide() = %q; want %q", tc.after, got, tc.want)
		}
	}
}

// An unreadable signal that was being acted on adds nothing to the deficit, because its
// observation has no amount.
func TestTableIgnoresUnreadable(t *testing.T) {
	tl := newTimeline(t, hard(signal.MemoryAvailable, "1Gi"), hard(signal.AllocatableMemoryAvailable, "1Gi"))
	tl.in.Pods = []Pod{aPod("p0", using(500*mi)), aPod("p1", using(500*mi)), aPod("p2", using(500*mi))}
	tl.observe(signal.MemoryAvailable, 2*gi)
	tl.observe(signal.AllocatableMemoryAvailable, 900*mi)
	table := NewTable(&tl.in, &tl.state, start)
	if v := table.Decide(&tl.in.Observations, start); v.N != 1 || v.Deficit != 124*mi {
		t.Fatalf("Decide() = %+v; want one victim for 124Mi", v)
	}
	tl.observe(signal.MemoryAvailable, 900*mi)
	tl.in.Observations[signal.AllocatableMemoryAvailable] = signal.Observation{Status: signal.Unreadable}
	v := table.Decide(&tl.in.Observations, start.Add(time.Millisecond))
	if v.N != 1 || v.Deficit != 124*mi || v.Threshold.Signal != signal.MemoryAvailable {
		t.Errorf("Decide() with an unreadable signal = %d victims for %d bytes; want one for the 124Mi missing from memory.available", v.N, v.Deficit)
	}
}

// A missing reading does not end the back-off of a futile signal.
func TestTableKeepsBackingOff(t *testing.T) {
	tl := nodeWithPods(t, 50)
	tl.observe(signal.MemoryAvailable, 900*mi)
	if o := tl.step(0); len(o.Futile) != 1 {
		t.Fatalf("Step() = %+v; want the signal futile", o)
	}
	tl.in.Pods = append(tl.in.Pods, aPod("p1", using(500*mi)))
	table := NewTable(&tl.in, &tl.state, start)
	for _, tc := range []struct {
		after  time.Duration
		status signal.Status
		want   VerdictReason
	}{
		{100 * time.Millisecond, signal.Observed, BackingOff}, {200 * time.Millisecond, signal.Unreadable, Recovered},
		{300 * time.Millisecond, signal.Observed, BackingOff}, {time.Second, signal.Observed, Chosen},
	} {
		tl.in.Observations[signal.MemoryAvailable] = signal.Observation{Status: tc.status, Available: 800 * mi}
		if v := table.Decide(&tl.in.Observations, start.Add(tc.after)); v.Reason != tc.want {
			t.Errorf("after %v: Decide() = %q; want %q", tc.after, v.Reason, tc.want)
		}
	}
}

// A reading above the threshold ends the wait for file cache, also without a decision.
func TestTableObserve(t *testing.T) {
	tl := nodeWithPods(t, 500)
	table := NewTable(&tl.in, &tl.state, start)
	low := signal.Observations{{Status: signal.Observed, Available: 900 * mi, Cache: 500 * mi}}
	above := signal.Observations{{Status: signal.Observed, Available: 1400 * mi}}
	if v := table.Decide(&low, start); v.Reason != Waiting {
		t.Fatalf("Decide() = %q; want %q", v.Reason, Waiting)
	}
	table.Observe(&above, start.Add(9*time.Second))
	if v := table.Decide(&low, start.Add(10*time.Second)); v.Reason != Waiting {
		t.Errorf("Decide() at the next crossing = %q; want %q: the wait starts again", v.Reason, Waiting)
	}
}

func TestTableSettles(t *testing.T) {
	tl := nodeWithPods(t, 500, 400)
	tl.observe(signal.MemoryAvailable, 900*mi)
	for _, tc := range []struct {
		name      string
		after     time.Duration
		left      int64 // MiB
		unsettled bool
	}{
		{"nothing is freed", 999 * time.Millisecond, 500, true}, {"80% is freed", time.Millisecond, 100, false},
		{"less than 80% is freed", time.Millisecond, 101, true}, {"nothing is freed within the settle timeout", time.Second, 500, false},
	} {
		table := NewTable(&tl.in, &tl.state, start)
		v := table.Decide(&tl.in.Observations, start)
		table.AddVictims(&v)
		table.SetUsage(v.Ranking[0].Index(), tc.left*mi, tc.left*mi)
		table.SettleVictims(start.Add(tc.after))
		if got := table.HasUnsettled(); got != tc.unsettled {
			t.Errorf("%s after %v: unsettled = %t; want %t", tc.name, tc.after, got, tc.unsettled)
		}
	}
}

// Dry-run victims for other causes than memory count as gone until the next Step,
// whatever memory does.
func TestTableKeepsOtherEpisodes(t *testing.T) {
	tl := nodeWithPods(t, 300, 200, 100, 50, 25)
	tl.in.DryRun = true
	tl.state.DryRunVictims = []DryRunVictim{
		{UID: "p0", Signal: signal.AllocatableMemoryAvailable}, {UID: "p1", Signal: signal.NodeFsAvailable}, {UID: "p2", Signal: signal.NodeFsAvailable, OverLimit: true},
		{UID: "p3", Signal: signal.MemoryAvailable, OverLimit: true, Contention: signal.KubepodsMemoryContentionPressure},
	}
	table := NewTable(&tl.in, &tl.state, start)
	table.Decide(&tl.in.Observations, start) // memory's episode is over
	tl.observe(signal.MemoryAvailable, 500*mi)
	v := table.Decide(&tl.in.Observations, start.Add(time.Second))
	if want := int64(1024-500-200-100-50) * mi; v.Deficit != want || v.Observation.Available != 850*mi {
		t.Errorf("Decide(): deficit %d, available %d; want %d, %d", v.Deficit, v.Observation.Available, want, int64(850*mi))
	}
}

func TestTableCloneSharesNothing(t *testing.T) {
	tl := nodeWithPods(t, 500, 400)
	tl.observe(signal.MemoryAvailable, 900*mi)
	table := NewTable(&tl.in, &tl.state, start)
	v := table.Decide(&tl.in.Observations, start)
	table.AddVictims(&v)
	clone := table.Clone()
	d, c := &table.d, &clone.d
	if &table.candidates[0] == &clone.candidates[0] || &table.eligible[:1][0] == &clone.eligible[:1][0] ||
		&d.pods[0] == &c.pods[0] || &d.thresholds[0] == &c.thresholds[0] || &d.Readings[0] == &c.Readings[0] || &d.Victims[0] == &c.Victims[0] {
		t.Error("a clone shares mutable memory with its table")
	}
	clone.Observe(&signal.Observations{{Status: signal.Observed, Available: 2 * gi}}, start)
	if d.thresholds[0].timer == (Timer{}) || c.thresholds[0].timer != (Timer{}) {
		t.Errorf("after an observation by the clone: timer of the table %+v, of the clone %+v; want only the clone's ended", d.thresholds[0].timer, c.thresholds[0].timer)
	}
}

// Only Step decides on a low disk, even if the observations include it.
func TestTableIgnoresDisks(t *testing.T) {
	tl := newTimeline(t, hard(signal.MemoryAvailable, "1Gi"), hard(signal.NodeFsAvailable, "1Gi"))
	tl.in.Pods = []Pod{aPod("p0", using(gi))}
	tl.observe(signal.MemoryAvailable, 2*gi)
	tl.observe(signal.NodeFsAvailable, 0)
	if v := NewTable(&tl.in, &tl.state, start).Decide(&tl.in.Observations, start); v.Reason != Recovered {
		t.Errorf("Decide() = %q; want %q", v.Reason, Recovered)
	}
}

func TestTableUnlistedPod(t *testing.T) {
	tl := nodeWithPods(t, 100, 50, 40)
	tl.in.Pods[2].Static = true
	tl.in.UnaccountedBaseline = 10 * mi
	table := NewTable(&tl.in, &tl.state, start)
	for _, tc := range []struct {
		kubepods int64
		want     bool
	}{{0, false}, {200 * mi, false}, {200*mi + UnaccountedMin - 1, false}, {200*mi + UnaccountedMin, true}} {
		if got := table.HasUnlistedPod(tc.kubepods); got != tc.want {
			t.Errorf("unlisted pod at %d bytes in kubepods = %t; want %t", tc.kubepods, got, tc.want)
		}
	}
	// The growth of an exempt pod since the Step is accounted for too.
	table.SetUsage(2, 40*mi+UnaccountedMin, 0)
	if table.HasUnlistedPod(200*mi + UnaccountedMin) {
		t.Error("unlisted pod after an exempt pod has grown = true; want false")
	}
}

// Step takes over the hot path's kills with the orders that it would have given, so
// that decisions with and without a Table are reported alike.
func TestAdoptHotKills(t *testing.T) {
	ordered := nodeWithPods(t, 2000, 100)
	ordered.observe(signal.MemoryAvailable, 900*mi)
	want := ordered.step(0)

	for _, tc := range []struct {
		name    string
		change  func(tl *timeline)
		victims int
	}{
		{"still listed", func(*timeline) {}, 1},
		{"gone already", func(tl *timeline) { tl.remove("p0") }, 0},
		{"failed", func(tl *timeline) { tl.in.Outcomes = []Outcome{{UID: "p0", Err: fmt.Errorf("no")}} }, 1},
	} {
		node := nodeWithPods(t, 2000, 100)
		node.observe(signal.MemoryAvailable, 900*mi)
		table := NewTable(&node.in, &State{}, start)
		v := table.Decide(&node.in.Observations, start)
		if v.N != 1 {
			t.Fatalf("Decide() = %+v; want one victim", v)
		}
		pod := node.in.Pods[v.Ranking[0].Index()]
		node.in.HotKills = []HotKill{{Pod: &pod, Threshold: *v.Threshold, Observation: v.Observation, Deficit: v.Deficit, Expected: v.Ranking[0].Expected, Time: start}}
		// A part of its memory has been freed.
		node.pod("p0").Usage.Freeable = 1000 * mi
		node.observe(signal.MemoryAvailable, 1900*mi)
		tc.change(node)
		state, got := Step(node.state, node.in, start.Add(time.Millisecond))
		if diff := cmp.Diff(want.Evict, got.Adopted, quantities); diff != "" {
			t.Errorf("%s: adopted orders differ from ordered ones (-ordered +adopted):\n%s", tc.name, diff)
		}
		if len(got.Evict) > 0 || len(state.Victims) != tc.victims {
			t.Errorf("%s: Step() orders %v with %d victims in the state; want none, with %d", tc.name, victims(got), len(state.Victims), tc.victims)
		}
		if !slices.Equal(got.Conditions, []signal.Condition{signal.MemoryPressure}) {
			t.Errorf("%s: conditions = %v; want MemoryPressure although the signal has recovered", tc.name, got.Conditions)
		}
	}
}

// Where the hot path could not queue all kills that the deficit needs, the Step that takes
// them over orders the rest.
func TestAdoptSomeOfTheHotKills(t *testing.T) {
	sizes := make([]int64, 70)
	for i := range sizes {
		sizes[i] = 15
	}
	tl := nodeWithPods(t, sizes...)
	tl.in.Policy.MaxVictims = 100
	tl.observe(signal.MemoryAvailable, 0)
	v := NewTable(&tl.in, &State{}, start).Decide(&tl.in.Observations, start)
	const queued = 64
	if v.N <= queued {
		t.Fatalf("Decide() = %d victims; want more than %d", v.N, queued)
	}
	var wanted []string
	for i, r := range v.Ranking[:v.N] {
		if i >= queued {
			wanted = append(wanted, r.UID)
			continue
		}
		tl.in.HotKills = append(tl.in.HotKills, HotKill{
			Pod: &tl.in.Pods[r.Index()], Threshold: *v.Threshold, Observation: v.Observation, Deficit: v.Deficit, Expected: r.Expected, Time: start,
		})
	}
	_, orders := Step(tl.state, tl.in, start.Add(time.Millisecond))
	if got := victims(orders); len(orders.Adopted) != queued || !slices.Equal(got, wanted) {
		t.Errorf("Step() adopts %d kills and orders %q; want %d and %q", len(orders.Adopted), got, queued, wanted)
	}
}

func TestAdoptHotKillsInDryRun(t *testing.T) {
	tl := nodeWithPods(t, 2000, 100)
	tl.in.DryRun = true
	tl.observe(signal.MemoryAvailable, 900*mi)
	pod := tl.in.Pods[0]
	tl.in.HotKills = []HotKill{{Pod: &pod, Threshold: tl.in.Policy.Thresholds[0], Observation: tl.in.Observations[0], Deficit: 124 * mi, Expected: 2000 * mi, Time: start, DryRun: true}}
	state, orders := Step(tl.state, tl.in, start)
	if len(orders.Evict) > 0 || len(orders.Adopted) != 1 || len(state.DryRunVictims) != 1 || len(state.Victims) > 0 {
		t.Errorf("Step() in dry run = %+v, %+v; want one adopted dry-run victim and no other", orders, state)
	}
}

func TestTableAllocatesNothing(t *testing.T) {
	for _, dry := range []bool{false, true} {
		in := loadedNode(500)
		in.Measured, in.DryRun = true, dry
		in.Observations[signal.MemoryAvailable].Available = 700 * mi
		var state State
		for i, o := range []*Order{
			{Cause: "memory.available", Grace: time.Minute}, // whose grace period ends
			{Cause: "memory.available", Hard: true},         // gets stuck
		} {
			pod := &in.Pods[i]
			e := podEntry{Pod: pod, memory: pod.Usage.Memory, freeable: pod.Usage.Freeable}
			state.Victims = append(state.Victims, newVictim(&e, in.Policy.Thresholds[0].Key(), o, start))
		}
		const runs = 20
		var tables []*Table // one new and one clone per run, and one for AllocsPerRun's first call
		for range runs/2 + 1 {
			table := NewTable(&in, &state, start)
			tables = append(tables, table, table.Clone())
		}
		if n := testing.AllocsPerRun(runs, func() {
			table := tables[0]
			tables = tables[1:]
			for i := range in.Pods {
				e := &table.d.pods[i]
				table.SetUsage(i, e.memory+1, e.freeable+1)
			}
			table.SettleVictims(start.Add(time.Second))
			for i := range int64(4) {
				o := in.Observations
				o[signal.MemoryAvailable].Available -= i * 8 * gi
				v := table.Decide(&o, start.Add(time.Second))
				if v.N == 0 || table.HasUnlistedPod(0) {
					t.Fatalf("Decide() = %q with %d victims; want some", v.Reason, v.N)
				}
				table.AddVictims(&v)
				for i := range table.d.Victims {
					table.d.Victims[i].Expected, table.d.Victims[i].Lowest = 0, 0 // so that it covers nothing
				}
			}
		}); n != 0 {
			t.Errorf("dry run %t: allocations from refresh to verdict = %v; want 0", dry, n)
		}
	}
}

func BenchmarkTable(b *testing.B) {
	for _, n := range []int{110, 500} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			in := loadedNode(n)
			in.Observations[signal.MemoryAvailable].Available = 700 * mi
			table := NewTable(&in, &State{}, start)
			for b.Loop() {
				if v := table.Decide(&in.Observations, start); v.N == 0 {
					b.Fatalf("Decide() = %q; want victims", v.Reason)
				}
			}
		})
	}
}
