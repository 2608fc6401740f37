package evict

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/signal"
)

// memoryNode makes a node whose pods and thresholds are about memory alone.
func (c chance) memoryNode(l *timeline) {
	var configured []signal.Threshold
	for _, grace := range []time.Duration{0, time.Second} {
		for s := range signal.Signal(2) {
			if c.one(4) {
				continue
			}
			th := soft(s, []string{"3", "5", "8", "40%"}[c.IntN(4)], grace)
			if c.one(2) {
				th = th.reclaiming([]string{"2", "3", "10%"}[c.IntN(3)])
			}
			configured = append(configured, th.Threshold)
		}
	}
	l.in.Policy = &Policy{
		Thresholds: WithCopies(configured, SingleFs, c.one(2)), TransitionPeriod: time.Minute,
		MaxVictims: 1 + c.IntN(3), SettleTimeout: time.Second, SpareUnknownPriority: c.one(2),
	}
	l.in.Measured, l.in.DryRun, l.in.Unlisted = !c.one(4), c.one(3), c.one(30)
	for i := range 1 + c.IntN(12) {
		p := c.pod(i)
		p.Volumes = nil
		for j := range p.Containers {
			p.Containers[j].Resources.Limits.EphemeralStorage = nil
		}
		l.in.Pods = append(l.in.Pods, p)
	}
}

// memory observes memory anew.
func (c chance) memory(in *Inputs) {
	for s := range signal.Signal(2) {
		in.Observations[s] = signal.Observation{Status: signal.Observed, Available: c.Int64N(16) - 1, Capacity: 16, Cache: c.Int64N(4) * int64(c.IntN(2))}
		if c.one(20) {
			in.Observations[s] = signal.Observation{Status: signal.Unreadable}
		}
	}
}

// answered returns the thresholds of a memory signal whose crossing a lane has answered,
// where there is any.
func (c chance) answered(in *Inputs) []Key {
	s := signal.Signal(c.IntN(4))
	if !s.IsMemory() || in.Observations[s].Status != signal.Observed {
		return nil
	}
	return []Key{{Signal: s}, {Signal: s, Copy: true}}
}

// moveOn changes what pods use, and updates the table.
func (c chance) moveOn(in *Inputs, table *Table) {
	in.Pods = slices.Clone(in.Pods)
	for i := range in.Pods {
		p := &in.Pods[i]
		if !p.HasStats || !c.one(2) {
			continue
		}
		if c.one(2) {
			p.Usage.Freeable = 0 // a victim that gives it all back
			if c.one(2) {
				p.Usage.Memory = 0 // and has
			}
		} else {
			c.use(p)
		}
		table.Set(i, p.Usage.Memory, p.Usage.Freeable)
	}
}

// What a Table decides is what Step would, for as long as nothing but memory
// and usage changes, and also after it has taken victims.
func TestTableAgreesWithStep(t *testing.T) {
	const steps = 5
	seeds := uint64(7000)
	if testing.Short() {
		seeds = 1000
	}
	var agreed [Whys]int
	for seed := range seeds {
		c := chance{rand.New(rand.NewPCG(seed, 2))}
		l := newTimeline(t)
		c.memoryNode(l)
		at := time.Duration(0)
		for step := range steps {
			c.memory(&l.in)
			l.in.Pods = slices.DeleteFunc(slices.Clone(l.in.Pods), func(Pod) bool { return c.one(12) })
			l.in.ReclaimStalled, l.in.PodsReclaimStalled = c.one(4), (seed+uint64(step))%4 == 0
			l.in.Answered = c.answered(&l.in)
			at += time.Duration(c.IntN(700)) * time.Millisecond
			l.state, _ = Step(l.state, l.in, begin.Add(at))
			table := NewTable(&l.in, &l.state, begin.Add(at))
			in, state := l.in, l.state
			for again := range 3 {
				where := fmt.Sprintf("seed %d, step %d, look %d", seed, step, again)
				c.moveOn(&in, table)
				c.memory(&in)
				in.Answered = c.answered(&in)
				for _, k := range in.Answered {
					table.Answer(k.Signal)
				}
				now := begin.Add(at + time.Duration(c.IntN(600)*(again+1))*time.Millisecond)
				at = now.Sub(begin)
				verdict := table.Decide(&in.Observations, now)
				after, orders := Step(state, in, now)
				agreed[verdict.Why]++
				checkVerdict(t, where, &verdict, &after, &orders)
				if t.Failed() {
					return
				}
				if len(orders.Futile) > 0 || len(orders.Evict) > verdict.N {
					break // Step has begun a back-off, or a soft eviction, of which the table does not know
				}
				table.Take(&verdict)
				runOn(&state, &after, table, &in)
				checkBooks(t, where, table, &after)
				state = after
			}
			in.Observations = signal.Observations{}
			l.in, l.state = in, state
		}
	}
	for why, n := range agreed {
		if n < 5 {
			t.Errorf("%d verdicts are %q; want enough of them to mean something", n, Why(why))
		}
	}
}

// runOn changes what a step left behind to what a Table makes of readings that it
// could not have: timers run on, and so does the back-off.
func runOn(before, after *State, table *Table, in *Inputs) {
	for _, timer := range before.Timers {
		if in.Observations[timer.Threshold.Signal].Status == signal.Unreadable {
			after.Timers = append(after.Timers, timer)
			after.Futile = slices.Clone(table.d.Futile)
		}
	}
}

// checkBooks expects the table to remember of memory what the step does.
func checkBooks(t *testing.T, where string, table *Table, after *State) {
	t.Helper()
	got := State{Victims: table.d.Victims, Pretended: table.d.Pretended, Futile: table.d.Futile}
	want := State{Victims: after.Victims, Pretended: after.Pretended, Futile: after.Futile}
	for i := range table.d.thresholds {
		m := &table.d.thresholds[i]
		got.Timers = append(got.Timers, m.timer)
		timer := after.timer(m.key)
		if timer == nil {
			timer = &Timer{}
		}
		want.Timers = append(want.Timers, *timer)
	}
	if slices.Equal(got.Victims, want.Victims) && slices.Equal(got.Pretended, want.Pretended) &&
		slices.Equal(got.Futile, want.Futile) && slices.Equal(got.Timers, want.Timers) {
		return
	}
	t.Fatalf("%s: the table's books differ from Step's (-Step +table):\n%s", where, cmp.Diff(want, got, emptyIsNil))
}

func checkVerdict(t *testing.T, where string, v *Verdict, after *State, o *Orders) {
	t.Helper()
	past := slices.ContainsFunc(after.Timers, func(timer Timer) bool {
		k := timer.Threshold
		return timer.Past && !k.Soft && k.Signal.IsMemory()
	})
	if waits := !past && len(o.Waiting) > 0; past != (v.Why != Recovered && v.Why != Waiting) || waits != (v.Why == Waiting) {
		t.Fatalf("%s: the table says %q; Step has timers %+v and waits for %v", where, v.Why, after.Timers, o.Waiting)
	}
	var want []Order
	for _, order := range o.Evict {
		if order.Hard {
			want = append(want, order)
		}
	}
	futile := len(want) > 0 && want[0].Futile
	if futile != (v.Why == Futile) {
		t.Fatalf("%s: the table says %q; Step orders %+v", where, v.Why, want)
	}
	if futile {
		return
	}
	var got []Order
	for _, r := range v.Ranking[:v.N] {
		got = append(got, Order{
			UID: r.UID, Cause: v.Threshold.Signal.String(), Threshold: v.Threshold.Value.Amount(v.Observation.Capacity),
			Available: v.Observation.Available, Deficit: v.Deficit, Expected: r.Expected,
		})
	}
	if (v.N > 0) != (v.Why == Chosen) {
		t.Errorf("%s: %d victims because of %q", where, v.N, v.Why)
	}
	for i := range want {
		w := &want[i]
		*w = Order{UID: w.UID, Cause: w.Cause, Threshold: w.Threshold, Available: w.Available, Deficit: w.Deficit, Expected: w.Expected}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("%s: the table, which says %q, does not agree with Step (-Step +table):\n%s", where, v.Why, diff)
	}
	if v.N > 0 {
		if diff := cmp.Diff(ranking(o.Ranking), ranking(v.Ranking)); diff != "" {
			t.Errorf("%s: rankings differ (-Step +table):\n%s", where, diff)
		}
	}
}

// hogs is a node with pods of that many MiB each under a hard threshold of 1 GiB.
func hogs(t *testing.T, sizes ...int64) *timeline {
	l := newTimeline(t, hard(signal.MemoryAvailable, "1Gi"))
	l.in.Measured = true
	for i, size := range sizes {
		l.in.Pods = append(l.in.Pods, aPod(fmt.Sprint("p", i), using(size*mi)))
	}
	l.observe(signal.MemoryAvailable, 2*gi)
	return l
}

func TestTableSeesWhoGrew(t *testing.T) {
	l := hogs(t, 500, 0)
	l.step(0)
	table := NewTable(&l.in, &l.state, begin)
	l.observe(signal.MemoryAvailable, 900*mi)
	table.Set(1, 1600*mi, 1600*mi)
	v := table.Decide(&l.in.Observations, begin)
	if v.N != 1 || v.Ranking[0].UID != "p1" || v.Ranking[0].Index() != 1 {
		t.Fatalf("Decide() = %+v; want p1, which has grown, alone", v)
	}
	if table.Unsettled() {
		t.Error("Unsettled() before Take = true; want false")
	}
	table.Take(&v)
	if again := table.Decide(&l.in.Observations, begin); again.Why != Covered || !table.Unsettled() {
		t.Errorf("Decide() after Take = %q, unsettled %t; want it covered and unsettled", again.Why, table.Unsettled())
	}
	clone := table.Clone()
	table.Refuse("p1")
	v = table.Decide(&l.in.Observations, begin)
	if v.N != 1 || v.Ranking[0].UID != "p0" {
		t.Errorf("Decide() after Refuse = %+v; want the next", v)
	}
	if v := clone.Decide(&l.in.Observations, begin); v.Why != Covered {
		t.Errorf("Decide() of a clone = %q; want it untouched by what became of the table", v.Why)
	}
}

func TestTableHeadroom(t *testing.T) {
	l := newTimeline(t, hard(signal.MemoryAvailable, "1Gi").reclaiming("512Mi"), hard(signal.AllocatableMemoryAvailable, "100Mi"), soft(signal.MemoryAvailable, "4Gi", time.Minute))
	at := func(node, pods int64) signal.Observations {
		o := signal.Observations{{Status: signal.Observed, Available: node}, {Status: signal.Observed, Available: pods}}
		if pods < 0 {
			o[1] = signal.Observation{Status: signal.Unreadable}
		}
		return o
	}
	calm := NewTable(&l.in, &State{}, begin)
	met := NewTable(&l.in, &State{Timers: []Timer{{Threshold: Key{Signal: signal.MemoryAvailable}, Since: begin, Past: true}}}, begin)
	for _, tc := range []struct {
		table      *Table
		node, pods int64
		want       int64
	}{
		{calm, 2 * gi, gi, 924 * mi}, {calm, 2 * gi, -1, gi}, {calm, gi, gi, 0}, {calm, gi - 1, gi, -1}, {calm, 8 * gi, 0, -100 * mi},
		{met, gi, gi, -512 * mi},
	} {
		o := at(tc.node, tc.pods)
		if got := tc.table.Headroom(&o); got != tc.want {
			t.Errorf("Headroom(%d, %d) = %d; want %d", tc.node, tc.pods, got, tc.want)
		}
	}
}

// A reading that came too late does not let the wait for the page cache begin anew.
func TestTableKeepsWaiting(t *testing.T) {
	l := hogs(t, 500)
	table := NewTable(&l.in, &l.state, begin)
	decide := func(after time.Duration, status signal.Status) Why {
		o := signal.Observations{{Status: status, Available: 900 * mi, Cache: 500 * mi}}
		v := table.Decide(&o, begin.Add(after))
		return v.Why
	}
	for _, tc := range []struct {
		after  time.Duration
		status signal.Status
		want   Why
	}{
		{0, signal.Observed, Waiting}, {9 * time.Second, signal.Unreadable, Recovered}, {10 * time.Second, signal.Observed, Chosen},
	} {
		if got := decide(tc.after, tc.status); got != tc.want {
			t.Errorf("after %v: Decide() = %q; want %q", tc.after, got, tc.want)
		}
	}
}

// A signal that was being acted upon and can't be read adds nothing to the deficit:
// its observation has no amount.
func TestTableActsOnWhatIsReadable(t *testing.T) {
	l := newTimeline(t, hard(signal.MemoryAvailable, "1Gi"), hard(signal.AllocatableMemoryAvailable, "1Gi"))
	l.in.Pods = []Pod{aPod("p0", using(500*mi)), aPod("p1", using(500*mi)), aPod("p2", using(500*mi))}
	l.observe(signal.MemoryAvailable, 2*gi)
	l.observe(signal.AllocatableMemoryAvailable, 900*mi)
	table := NewTable(&l.in, &l.state, begin)
	if v := table.Decide(&l.in.Observations, begin); v.N != 1 || v.Deficit != 124*mi {
		t.Fatalf("Decide() = %+v; want one victim for 124Mi", v)
	}
	l.observe(signal.MemoryAvailable, 900*mi)
	l.in.Observations[signal.AllocatableMemoryAvailable] = signal.Observation{Status: signal.Unreadable}
	v := table.Decide(&l.in.Observations, begin.Add(time.Millisecond))
	if v.N != 1 || v.Deficit != 124*mi || v.Threshold.Signal != signal.MemoryAvailable {
		t.Errorf("Decide() with an unreadable signal = %d victims for %d bytes; want one for the 124Mi that memory.available lacks", v.N, v.Deficit)
	}
}

// A reading that came too late does not end the back-off of a futile signal either.
func TestTableKeepsBackingOff(t *testing.T) {
	l := hogs(t, 50)
	l.observe(signal.MemoryAvailable, 900*mi)
	if o := l.step(0); len(o.Futile) != 1 {
		t.Fatalf("Step() = %+v; want the signal futile", o)
	}
	l.in.Pods = append(l.in.Pods, aPod("p1", using(500*mi)))
	table := NewTable(&l.in, &l.state, begin)
	for _, tc := range []struct {
		after  time.Duration
		status signal.Status
		want   Why
	}{
		{100 * time.Millisecond, signal.Observed, BackingOff}, {200 * time.Millisecond, signal.Unreadable, Recovered},
		{300 * time.Millisecond, signal.Observed, BackingOff}, {time.Second, signal.Observed, Chosen},
	} {
		l.in.Observations[signal.MemoryAvailable] = signal.Observation{Status: tc.status, Available: 800 * mi}
		if v := table.Decide(&l.in.Observations, begin.Add(tc.after)); v.Why != tc.want {
			t.Errorf("after %v: Decide() = %q; want %q", tc.after, v.Why, tc.want)
		}
	}
}

// A reading above the threshold that calls for no decision ends the wait for the page cache.
func TestTableSaw(t *testing.T) {
	l := hogs(t, 500)
	table := NewTable(&l.in, &l.state, begin)
	low := signal.Observations{{Status: signal.Observed, Available: 900 * mi, Cache: 500 * mi}}
	above := signal.Observations{{Status: signal.Observed, Available: 1400 * mi}}
	if v := table.Decide(&low, begin); v.Why != Waiting {
		t.Fatalf("Decide() = %q; want %q", v.Why, Waiting)
	}
	table.Saw(&above, begin.Add(9*time.Second))
	if v := table.Decide(&low, begin.Add(10*time.Second)); v.Why != Waiting {
		t.Errorf("Decide() at the next crossing = %q; want it to wait for itself", v.Why)
	}
}

func TestTableFollow(t *testing.T) {
	l := hogs(t, 500, 400)
	l.observe(signal.MemoryAvailable, 900*mi)
	for _, tc := range []struct {
		name      string
		after     time.Duration
		left      int64 // MiB
		unsettled bool
	}{
		{"nothing is back", 999 * time.Millisecond, 500, true}, {"four fifths are back", time.Millisecond, 100, false},
		{"a part is back", time.Millisecond, 101, true}, {"nothing is back in time", time.Second, 500, false},
	} {
		table := NewTable(&l.in, &l.state, begin)
		v := table.Decide(&l.in.Observations, begin)
		table.Take(&v)
		table.Set(v.Ranking[0].Index(), tc.left*mi, tc.left*mi)
		table.Follow(begin.Add(tc.after))
		if got := table.Unsettled(); got != tc.unsettled {
			t.Errorf("%s after %v: Unsettled() = %t; want %t", tc.name, tc.after, got, tc.unsettled)
		}
	}
}

// In dry run pods that would go for something else than memory count as gone until
// the next step, whatever memory does.
func TestTableKeepsOtherEpisodes(t *testing.T) {
	l := hogs(t, 300, 200, 100, 50, 25)
	l.in.DryRun = true
	l.state.Pretended = []Pretended{
		{UID: "p0", Signal: signal.AllocatableMemoryAvailable}, {UID: "p1", Signal: signal.NodeFsAvailable}, {UID: "p2", Signal: signal.NodeFsAvailable, Limit: true},
		{UID: "p3", Signal: signal.MemoryAvailable, Limit: true, Contention: signal.KubepodsMemoryContentionPressure},
	}
	table := NewTable(&l.in, &l.state, begin)
	table.Decide(&l.in.Observations, begin) // memory's episode is over
	l.observe(signal.MemoryAvailable, 500*mi)
	v := table.Decide(&l.in.Observations, begin.Add(time.Second))
	if want := int64(1024-500-200-100-50) * mi; v.Deficit != want || v.Observation.Available != 850*mi {
		t.Errorf("Decide() = %d bytes lacking of %d available; want %d of %d", v.Deficit, v.Observation.Available, want, int64(850*mi))
	}
}

func TestTableCloneSharesNothing(t *testing.T) {
	l := hogs(t, 500, 400)
	l.observe(signal.MemoryAvailable, 900*mi)
	table := NewTable(&l.in, &l.state, begin)
	v := table.Decide(&l.in.Observations, begin)
	table.Take(&v)
	clone := table.Clone()
	d, c := &table.d, &clone.d
	if &table.candidates[0] == &clone.candidates[0] || &table.eligible[:1][0] == &clone.eligible[:1][0] ||
		&d.pods[0] == &c.pods[0] || &d.thresholds[0] == &c.thresholds[0] || &d.Readings[0] == &c.Readings[0] || &d.Victims[0] == &c.Victims[0] {
		t.Error("a clone shares with its table what both change")
	}
	clone.Saw(&signal.Observations{{Status: signal.Observed, Available: 2 * gi}}, begin)
	if d.thresholds[0].timer == (Timer{}) || c.thresholds[0].timer != (Timer{}) {
		t.Errorf("after Saw on the clone: timer of the table %+v, of the clone %+v; want the clone's alone to have ended", d.thresholds[0].timer, c.thresholds[0].timer)
	}
}

// A disk that is low is Step's, also where the observations have it.
func TestTableLeavesDisksAlone(t *testing.T) {
	l := newTimeline(t, hard(signal.MemoryAvailable, "1Gi"), hard(signal.NodeFsAvailable, "1Gi"))
	l.in.Pods = []Pod{aPod("p0", using(gi))}
	l.observe(signal.MemoryAvailable, 2*gi)
	l.observe(signal.NodeFsAvailable, 0)
	if v := NewTable(&l.in, &l.state, begin).Decide(&l.in.Observations, begin); v.Why != Recovered {
		t.Errorf("Decide() = %q; want %q", v.Why, Recovered)
	}
}

func TestTableStrange(t *testing.T) {
	l := hogs(t, 100, 50, 40)
	l.in.Pods[2].Static = true
	l.in.Unexplained = 10 * mi
	table := NewTable(&l.in, &l.state, begin)
	for _, tc := range []struct {
		kubepods int64
		want     bool
	}{{0, false}, {200 * mi, false}, {200*mi + Stranger - 1, false}, {200*mi + Stranger, true}} {
		if got := table.Strange(tc.kubepods); got != tc.want {
			t.Errorf("Strange(%d) = %t; want %t", tc.kubepods, got, tc.want)
		}
	}
	// What an exempt pod has grown by since the step is accounted for, too.
	table.Set(2, 40*mi+Stranger, 0)
	if table.Strange(200*mi + Stranger) {
		t.Error("the exempt pod has grown: Strange() = true; want false")
	}
}

// Step takes what was fired into the books with the order that it would have
// given, so that deciding with and without a Table is told alike.
func TestAdopt(t *testing.T) {
	ordered := hogs(t, 2000, 100)
	ordered.observe(signal.MemoryAvailable, 900*mi)
	want := ordered.step(0)

	for _, tc := range []struct {
		name   string
		change func(l *timeline)
		books  int
	}{
		{"still there", func(*timeline) {}, 1},
		{"gone already", func(l *timeline) { l.remove("p0") }, 0},
		{"refused", func(l *timeline) { l.in.Outcomes = []Outcome{{UID: "p0", Err: fmt.Errorf("no")}} }, 1},
	} {
		fired := hogs(t, 2000, 100)
		fired.observe(signal.MemoryAvailable, 900*mi)
		table := NewTable(&fired.in, &State{}, begin)
		v := table.Decide(&fired.in.Observations, begin)
		if v.N != 1 {
			t.Fatalf("Decide() = %+v; want one victim", v)
		}
		pod := fired.in.Pods[v.Ranking[0].Index()]
		fired.in.Fired = []Fired{{Pod: &pod, Threshold: *v.Threshold, Observation: v.Observation, Deficit: v.Deficit, Expected: v.Ranking[0].Expected, Time: begin}}
		// Its memory has begun to come back.
		fired.pod("p0").Usage.Freeable = 1000 * mi
		fired.observe(signal.MemoryAvailable, 1900*mi)
		tc.change(fired)
		state, got := Step(fired.state, fired.in, begin.Add(time.Millisecond))
		if diff := cmp.Diff(want.Evict, got.Adopted, quantities); diff != "" {
			t.Errorf("%s: adopted orders differ from ordered ones (-ordered +adopted):\n%s", tc.name, diff)
		}
		if len(got.Evict) > 0 || len(state.Victims) != tc.books {
			t.Errorf("%s: Step() orders %v with %d victims in the books; want none, with %d", tc.name, victims(got), len(state.Victims), tc.books)
		}
		if !slices.Equal(got.Conditions, []signal.Condition{signal.MemoryPressure}) {
			t.Errorf("%s: conditions = %v; want memory pressure, although it is over", tc.name, got.Conditions)
		}
	}
}

func TestAdoptInDryRun(t *testing.T) {
	l := hogs(t, 2000, 100)
	l.in.DryRun = true
	l.observe(signal.MemoryAvailable, 900*mi)
	pod := l.in.Pods[0]
	l.in.Fired = []Fired{{Pod: &pod, Threshold: l.in.Policy.Thresholds[0], Observation: l.in.Observations[0], Deficit: 124 * mi, Expected: 2000 * mi, Time: begin, DryRun: true}}
	state, orders := Step(l.state, l.in, begin)
	if len(orders.Evict) > 0 || len(orders.Adopted) != 1 || len(state.Pretended) != 1 || len(state.Victims) > 0 {
		t.Errorf("Step() in dry run = %+v, %+v; want the pod counted as gone, and nobody else named", orders, state)
	}
}

func TestTableAllocatesNothing(t *testing.T) {
	for _, dry := range []bool{false, true} {
		in := busyNode(500)
		in.Measured, in.DryRun = true, dry
		in.Observations[signal.MemoryAvailable].Available = 700 * mi
		var state State
		for i, o := range []*Order{
			{Cause: "memory.available", Grace: time.Minute}, // becomes hard
			{Cause: "memory.available", Hard: true},         // gets stuck
		} {
			pod := &in.Pods[i]
			e := podEntry{Pod: pod, memory: pod.Usage.Memory, freeable: pod.Usage.Freeable}
			state.Victims = append(state.Victims, newVictim(&e, in.Policy.Thresholds[0].Key(), o, begin))
		}
		const runs = 20
		var tables []*Table // each as it is made, and a first one for AllocsPerRun's own
		for range runs/2 + 1 {
			table := NewTable(&in, &state, begin)
			tables = append(tables, table, table.Clone())
		}
		if n := testing.AllocsPerRun(runs, func() {
			table := tables[0]
			tables = tables[1:]
			for i := range in.Pods {
				e := &table.d.pods[i]
				table.Set(i, e.memory+1, e.freeable+1)
			}
			table.Follow(begin.Add(time.Second))
			for i := range int64(4) {
				o := in.Observations
				o[signal.MemoryAvailable].Available -= i * 8 * gi
				v := table.Decide(&o, begin.Add(time.Second))
				if v.N == 0 || table.Strange(0) {
					t.Fatalf("Decide() = %q with %d victims; want some", v.Why, v.N)
				}
				table.Take(&v)
				for i := range table.d.Victims {
					table.d.Victims[i].Expected, table.d.Victims[i].Lowest = 0, 0 // which covers nothing
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
			in := busyNode(n)
			in.Observations[signal.MemoryAvailable].Available = 700 * mi
			table := NewTable(&in, &State{}, begin)
			for b.Loop() {
				if v := table.Decide(&in.Observations, begin); v.N == 0 {
					b.Fatalf("Decide() = %q; want victims", v.Why)
				}
			}
		})
	}
}
