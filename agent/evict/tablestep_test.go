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

// memoryNode makes tl a node with thresholds on memory only.
func (g generator) memoryNode(tl *timeline) {
	var configured []signal.Threshold
	for _, grace := range []time.Duration{0, time.Second} {
		for s := range signal.Signal(2) {
			if g.oneIn(4) {
				continue
			}
			th := soft(s, []string{"3", "5", "8", "40%"}[g.IntN(4)], grace)
			if g.oneIn(2) {
				th = th.reclaiming([]string{"2", "3", "10%"}[g.IntN(3)])
			}
			configured = append(configured, th.Threshold)
		}
	}
	tl.in.Policy = &Policy{
		Thresholds: WithDerived(configured, SingleFs, g.oneIn(2)), TransitionPeriod: time.Minute,
		MaxVictims: 1 + g.IntN(3), SettleTimeout: time.Second, ProtectUnknownPriority: g.oneIn(2), ProtectUnreportable: g.oneIn(2),
	}
	tl.in.KubeletHard = g.kubeletHard()
	tl.in.Measured, tl.in.DryRun, tl.in.PodsUnknown = !g.oneIn(4), g.oneIn(3), g.oneIn(30)
	for i := range 1 + g.IntN(12) {
		p := g.pod(i)
		p.Volumes = nil
		for j := range p.Containers {
			p.Containers[j].Resources.Limits.EphemeralStorage = nil
		}
		tl.in.Pods = append(tl.in.Pods, p)
	}
}

// observeMemory sets random observations of memory.
func (g generator) observeMemory(in *Inputs) {
	for s := range signal.Signal(2) {
		in.Observations[s] = signal.Observation{Status: signal.Observed, Available: g.Int64N(16) - 1, Capacity: 16, Cache: g.Int64N(4) * int64(g.IntN(2))}
		if g.oneIn(20) {
			in.Observations[s] = signal.Observation{Status: signal.Unreadable}
		}
	}
}

// actNow returns the thresholds of a random memory signal, as a lane reports them whose
// readings show that the crossing must be acted on; or none.
func (g generator) actNow(in *Inputs) []ThresholdKey {
	s := signal.Signal(g.IntN(4))
	if !s.IsMemory() || in.Observations[s].Status != signal.Observed {
		return nil
	}
	return []ThresholdKey{{Signal: s}, {Signal: s, Derived: true}}
}

// changeUsage changes the usage of pods and updates the table.
func (g generator) changeUsage(in *Inputs, table *Table) {
	in.Pods = slices.Clone(in.Pods)
	for i := range in.Pods {
		p := &in.Pods[i]
		if !p.HasStats || !g.oneIn(2) {
			continue
		}
		if g.oneIn(2) {
			p.Usage.Freeable = 0 // a victim whose memory is unmapped
			if g.oneIn(2) {
				p.Usage.Memory = 0 // and freed
			}
		} else {
			g.setUsage(p)
		}
		table.SetUsage(i, p.Usage.Memory, p.Usage.Freeable)
	}
}

// A Table decides as Step does as long as only memory and usage change, also after
// victims were added to it.
func TestTableAgreesWithStep(t *testing.T) {
	const steps = 5
	seeds := uint64(7000)
	if testing.Short() {
		seeds = 1000
	}
	var verdicts [VerdictReasons]int
	for seed := range seeds {
		g := generator{rand.New(rand.NewPCG(seed, 2))}
		tl := newTimeline(t)
		g.memoryNode(tl)
		at := time.Duration(0)
		for step := range steps {
			g.observeMemory(&tl.in)
			tl.in.Pods = slices.DeleteFunc(slices.Clone(tl.in.Pods), func(Pod) bool { return g.oneIn(12) })
			tl.in.ReclaimStalled, tl.in.PodsReclaimStalled = g.oneIn(4), (seed+uint64(step))%4 == 0
			tl.in.ActNow = g.actNow(&tl.in)
			at += time.Duration(g.IntN(700)) * time.Millisecond
			tl.state, _ = Step(tl.state, tl.in, start.Add(at))
			table := NewTable(&tl.in, &tl.state, start.Add(at))
			in, state := tl.in, tl.state
			for again := range 3 {
				where := fmt.Sprintf("seed %d, step %d, decision %d", seed, step, again)
				g.changeUsage(&in, table)
				g.observeMemory(&in)
				in.ActNow = g.actNow(&in)
				for _, k := range in.ActNow {
					table.ActNow(k.Signal)
				}
				now := start.Add(at + time.Duration(g.IntN(600)*(again+1))*time.Millisecond)
				at = now.Sub(start)
				verdict := table.Decide(&in.Observations, now)
				after, orders := Step(state, in, now)
				verdicts[verdict.Reason]++
				checkVerdict(t, where, &verdict, &after, &orders)
				if t.Failed() {
					return
				}
				if len(orders.Futile) > 0 || len(orders.Evict) > verdict.N {
					break // Step has started a back-off or a soft eviction, which the Table does not
				}
				table.AddVictims(&verdict)
				keepUnreadableTimers(&state, &after, table, &in)
				checkTableState(t, where, table, &after)
				state = after
			}
			in.Observations = signal.Observations{}
			tl.in, tl.state = in, state
		}
	}
	for reason, n := range verdicts {
		if n < 5 {
			t.Errorf("%d verdicts are %q; want at least 5", n, VerdictReason(reason))
		}
	}
}

// keepUnreadableTimers changes the state after a Step to that of a Table: timers of
// unreadable signals continue, and so do back-offs.
func keepUnreadableTimers(before, after *State, table *Table, in *Inputs) {
	for _, timer := range before.Timers {
		if in.Observations[timer.Threshold.Signal].Status == signal.Unreadable {
			after.Timers = append(after.Timers, timer)
			after.Backoffs = slices.Clone(table.d.Backoffs)
		}
	}
}

// checkTableState expects the table's state about memory to equal Step's.
func checkTableState(t *testing.T, where string, table *Table, after *State) {
	t.Helper()
	got := State{Victims: table.d.Victims, DryRunVictims: table.d.DryRunVictims, Backoffs: table.d.Backoffs}
	want := State{Victims: after.Victims, DryRunVictims: after.DryRunVictims, Backoffs: after.Backoffs}
	for i := range table.d.thresholds {
		c := &table.d.thresholds[i]
		got.Timers = append(got.Timers, c.timer)
		timer := after.timer(c.key)
		if timer == nil {
			timer = &Timer{}
		}
		want.Timers = append(want.Timers, *timer)
		if c.key.Soft { // ending pods are subtracted from its deficit by Step alone
			want.Timers[i].Covered = c.timer.Covered
		}
	}
	if slices.Equal(got.Victims, want.Victims) && slices.Equal(got.DryRunVictims, want.DryRunVictims) &&
		slices.Equal(got.Backoffs, want.Backoffs) && slices.Equal(got.Timers, want.Timers) {
		return
	}
	t.Fatalf("%s: the Table's state differs from Step's (-Step +Table):\n%s", where, cmp.Diff(want, got, emptyIsNil))
}

func checkVerdict(t *testing.T, where string, v *Verdict, after *State, o *Orders) {
	t.Helper()
	active := slices.ContainsFunc(after.Timers, func(timer Timer) bool {
		k := timer.Threshold
		return timer.Active && !k.Soft && k.Signal.IsMemory()
	})
	if waits := !active && len(o.Waiting) > 0; active != (v.Reason != Recovered && v.Reason != Waiting) || waits != (v.Reason == Waiting) {
		t.Fatalf("%s: the Table's verdict is %q; Step has timers %+v and waiting %v", where, v.Reason, after.Timers, o.Waiting)
	}
	var want []Order
	for _, order := range o.Evict {
		if order.Hard {
			want = append(want, order)
		}
	}
	futile := len(want) > 0 && want[0].Futile
	if futile != (v.Reason == Futile) {
		t.Fatalf("%s: the Table's verdict is %q; Step orders %+v", where, v.Reason, want)
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
	if (v.N > 0) != (v.Reason == Chosen) {
		t.Errorf("%s: %d victims with verdict %q", where, v.N, v.Reason)
	}
	for i := range want {
		w := &want[i]
		*w = Order{UID: w.UID, Cause: w.Cause, Threshold: w.Threshold, Available: w.Available, Deficit: w.Deficit, Expected: w.Expected}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("%s: the Table's verdict %q differs from Step (-Step +Table):\n%s", where, v.Reason, diff)
	}
	if v.N > 0 {
		if diff := cmp.Diff(ranking(o.Ranking), ranking(v.Ranking)); diff != "" {
			t.Errorf("%s: rankings differ (-Step +Table):\n%s", where, diff)
		}
	}
}
