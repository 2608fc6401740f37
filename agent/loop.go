package agent

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/evictd/evictd/agent/act"
	"github.com/evictd/evictd/agent/config"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/lanes"
	"github.com/evictd/evictd/agent/pods"
	"github.com/evictd/evictd/agent/signal"
)

// The pace of the loop besides alarms.
const (
	// calm is how often the ranking and the conditions are brought up to date
	// while nothing is low.
	calm = time.Second
	// low is how often a signal that is low is looked at while there is
	// nothing to do about it, and settling while victims are on their way.
	low, settling = 250 * time.Millisecond, 10 * time.Millisecond
	// mostBusy bounds the share of its time that the loop may work: it rests
	// at least that many times as long as it has worked.
	mostBusy = 4
)

// loop observes, decides and acts, again and again. All of it happens on one
// goroutine; what others want to see of it they get as a View.
type loop struct {
	log       *slog.Logger
	memory    *lanes.Memory
	inventory *pods.Inventory
	stalls    stalls
	killer    act.Actuator
	dryRun    act.Actuator
	records   *records
	observer  observer
	facts     func() facts // but for what the inventory knows

	config   *config.Config
	policy   *evict.Policy
	state    evict.State
	mode     mode
	outcomes []evict.Outcome

	raise      lanes.Raise                // the alarm that began this episode
	unfinished map[string]bool            // victims of an earlier run, by UID
	futile     []evict.Futility           // as long as it holds
	crossing   [signal.Count]crossingTime // of hard thresholds
	episode    [signal.Count]time.Time    // when it began; zero while not low
}

// outsiders is how many cgroups outside the pods are named where evicting pods
// is futile.
const outsiders = 5

// crossingTime is when a signal was last seen above, and first below, its hard
// threshold.
type crossingTime struct{ lastAbove, seen time.Time }

// View is what the loop knew and decided last. It is not changed any more.
type View struct {
	Time         time.Time
	Took         time.Duration
	Config       *config.Config
	Policy       *evict.Policy
	Mode         mode
	Observations signal.Observations
	Node         lanes.NodeMemory
	Snapshot     pods.Snapshot
	State        evict.State
	Orders       evict.Orders
	// Futile lists the signals that evicting does not help, also while a
	// back-off runs.
	Futile []evict.Futility
}

// observer is told what the loop did.
type observer interface {
	// stepped follows every step.
	stepped(v *View)
	// ordered follows every eviction that was ordered, once the actuator has
	// begun with it.
	ordered(rec evict.Record)
	// hardened follows a soft eviction whose grace was cut short.
	hardened(uid string)
}

// run steps until ctx ends: at every alarm, whenever something it waits for
// happens, and by its own pace.
func (l *loop) run(ctx context.Context, alarms <-chan lanes.Raise, progress <-chan act.Progress, reload <-chan *config.Config) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		listed := l.inventory.Changed()
		select {
		case <-ctx.Done():
			return
		case <-listed:
		case l.raise = <-alarms:
		case p := <-progress:
			if p.Stage == act.Refused {
				l.outcomes = append(l.outcomes, evict.Outcome{UID: p.UID, Err: p.Err})
			}
			if p.Stage != act.LastGone && p.Stage != act.Refused {
				continue // nothing that the decision waits for
			}
			l.inventory.Refresh()
		case cfg := <-reload:
			l.config, l.policy = cfg, cfg.Policy(layout)
		case <-timer.C:
		}
		start := time.Now()
		view := l.step(ctx, start)
		view.Took = time.Since(start)
		l.observer.stepped(view)
		timer.Reset(rest(view, l.raise))
	}
}

// step is one turn: observe, decide, act, note.
func (l *loop) step(ctx context.Context, now time.Time) *View {
	v := &View{Time: now, Config: l.config, Policy: l.policy}
	// The pods first: what a victim gives back between the two readings is then
	// counted twice, and not left out, which would take a second victim for it.
	v.Snapshot = l.inventory.Measure(now)
	v.Node = l.memory.Read(now, &v.Observations)
	v.Mode = l.decideMode(&v.Snapshot)
	l.state = untouched(l.state, l.unfinished, v)

	before := l.state
	in := evict.Inputs{
		Policy: l.policy, Observations: v.Observations, Pods: v.Snapshot.Pods, Unlisted: v.Snapshot.Listed.IsZero() && len(v.Snapshot.Pods) == 0, Outcomes: l.outcomes,
		Measured: true, DryRun: v.Mode.dryRun, ReclaimStalled: l.stalls.check(now),
	}
	l.state, v.Orders = evict.Step(before, in, now)
	if l.newcomer(ctx, v) {
		// The ranking lacked somebody: decide again, as if nothing had been
		// decided yet.
		now = time.Now()
		v.Time = now
		v.Snapshot = l.inventory.Measure(now)
		v.Node = l.memory.Read(now, &v.Observations)
		in.Pods, in.Observations = v.Snapshot.Pods, v.Observations
		l.state, v.Orders = evict.Step(before, in, now)
	}
	l.outcomes = nil
	v.State = l.state
	v.Futile = l.trackFutile(v)
	l.trackCrossings(v)
	l.act(ctx, v)
	return v
}

const (
	// stranger is how much memory the pods' cgroup may hold beyond the known pods
	// before somebody is missing from the list, and lookForStranger how long the
	// list is waited for then.
	stranger, lookForStranger = 64 << 20, 100 * time.Millisecond
)

// newcomer reports whether a pod is about to be evicted for the memory of one
// that is not listed yet, and the list has been brought up to date since. Where
// the known pods explain what all pods use it costs nothing.
func (l *loop) newcomer(ctx context.Context, v *View) bool {
	forMemory := func(o evict.Order) bool {
		s, ok := signal.Parse(o.Cause)
		return ok && s.IsMemory()
	}
	if !slices.ContainsFunc(v.Orders.Evict, forMemory) {
		return false
	}
	unknown := v.Node.Kubepods
	for i := range v.Snapshot.Pods {
		unknown -= v.Snapshot.Pods[i].Usage.Memory
	}
	if unknown < stranger {
		return false
	}
	listed := l.inventory.Changed()
	l.inventory.Refresh()
	timeout := time.NewTimer(lookForStranger)
	defer timeout.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timeout.C:
		return false
	case <-listed:
		return true
	}
}

func (l *loop) decideMode(s *pods.Snapshot) mode {
	f := l.facts()
	f.kubelet = string(l.config.Kubelet)
	f.kubeletPods = s.KubeletPods
	f.outdated = !s.Listed.IsZero() && s.KubeletAbsent != (l.config.Kubelet == config.KubeletAbsent)
	m := decideMode(f)
	if !m.equal(l.mode) {
		if m.dryRun {
			l.log.Warn("dry run: nothing is evicted", "why", m.why)
		} else {
			l.log.Info("enforcing: pods are evicted when a threshold is met")
		}
	}
	l.mode = m
	return m
}

// act hands the orders to the actuator, what is urgent first.
func (l *loop) act(ctx context.Context, v *View) {
	actuator := l.killer
	if v.Mode.dryRun {
		actuator = l.dryRun
	}
	l.harden(ctx, v, actuator)
	l.takeUp(ctx, v)
	hardFirst := slices.Clone(v.Orders.Evict)
	slices.SortStableFunc(hardFirst, func(a, b evict.Order) int {
		switch {
		case a.Hard == b.Hard:
			return 0
		case a.Hard:
			return -1
		}
		return 1
	})
	guard := guardOf(l.inventory.Guard())
	for _, order := range hardFirst {
		rec := l.record(v, &order)
		// The record is there before the actuator's reports can come.
		l.records.add(rec)
		actuator.Evict(ctx, job(order, &v.Snapshot, guard))
		l.observer.ordered(rec)
	}
	for _, order := range hardFirst {
		if order.Futile {
			// Who else holds the memory takes a walk of the tree to find: after
			// every kill.
			outside := l.inventory.Outside(outsiders)
			l.records.outside(order.UID, outside)
			l.log.Error("evicting pods can't relieve the signal", "signal", order.Cause,
				"deficit", order.Deficit, "largest_outside", outside)
		}
	}
	if v.Orders.Reclaim != nil {
		// Nothing here observes a disk, so this is not reached until it does.
		l.outcomes = append(l.outcomes, evict.Outcome{})
	}
}

// harden ends graces. A pod of an earlier run is killed when it is taken up.
func (l *loop) harden(ctx context.Context, v *View, actuator act.Actuator) {
	if len(v.Orders.Harden) == 0 {
		return
	}
	guard := guardOf(l.inventory.Guard())
	for _, uid := range v.Orders.Harden {
		if _, listed := v.Snapshot.Handles[uid]; listed && !l.unfinished[uid] {
			actuator.Harden(ctx, job(evict.Order{UID: uid, Hard: true}, &v.Snapshot, guard))
		}
		l.observer.hardened(uid)
	}
}

// takeUp goes on with evictions that an earlier run began and did not see end,
// as soon as their pods are listed: what is left of a grace, or another kill.
func (l *loop) takeUp(ctx context.Context, v *View) {
	if v.Mode.dryRun || v.Snapshot.Listed.IsZero() || len(l.unfinished) == 0 {
		return
	}
	guard := guardOf(l.inventory.Guard())
	for _, victim := range v.State.Victims {
		if _, listed := v.Snapshot.Handles[victim.UID]; !listed || !l.unfinished[victim.UID] {
			continue
		}
		order := evict.Order{UID: victim.UID, Pod: victim.Pod, Cause: victim.Cause, Hard: !victim.Soft, Grace: max(0, victim.Due.Sub(v.Time))}
		l.log.Warn("going on with an eviction of an earlier run", "pod", victim.Pod, "hard", order.Hard, "grace", order.Grace.String())
		l.records.takeUp(victim.UID)
		l.killer.Evict(ctx, job(order, &v.Snapshot, guard))
	}
	// What is not listed by the first complete list has gone.
	l.unfinished = nil
}

// untouched returns the state with the victims of an earlier run as if they had
// been ordered to go now, as long as they have not been taken up: until then
// nobody is killing them, so they are not late.
func untouched(s evict.State, unfinished map[string]bool, v *View) evict.State {
	if v.Mode.dryRun || len(unfinished) == 0 {
		return s
	}
	s = s.Clone()
	for i := range s.Victims {
		if victim := &s.Victims[i]; unfinished[victim.UID] && victim.Status == evict.Unsettled {
			victim.Fell = v.Time
		}
	}
	return s
}

// trackFutile keeps what was found futile until the state forgets it.
func (l *loop) trackFutile(v *View) []evict.Futility {
	known := slices.DeleteFunc(slices.Clone(l.futile), func(f evict.Futility) bool {
		replaced := slices.ContainsFunc(v.Orders.Futile, func(n evict.Futility) bool { return n.Signal == f.Signal })
		return replaced || !slices.Contains(v.Orders.Met, f.Signal)
	})
	l.futile = append(known, v.Orders.Futile...)
	return l.futile
}

// trackCrossings keeps when each signal was seen above its hard threshold last
// and below it first, and how far below it fell.
func (l *loop) trackCrossings(v *View) {
	for _, t := range v.Policy.Thresholds {
		if !t.Hard() {
			continue
		}
		o := &v.Observations[t.Signal]
		c := &l.crossing[t.Signal]
		switch {
		case o.Status != signal.Observed:
		case !o.Below(t.Value.Amount(o.Capacity)):
			*c = crossingTime{lastAbove: v.Time}
			l.episode[t.Signal] = time.Time{}
		default:
			if c.seen.IsZero() {
				c.seen = v.Time
				if l.raise.LastAbove.After(c.lastAbove) {
					c.lastAbove = l.raise.LastAbove
				}
				if r := l.raise; r.Seen.After(c.lastAbove) && r.Seen.Before(v.Time) {
					c.seen = r.Seen
				}
				l.episode[t.Signal] = v.Time
			}
			l.records.overshoot(t.Signal.String(), l.episode[t.Signal], o.Available)
		}
	}
}

// record begins the record of an order.
func (l *loop) record(v *View, o *evict.Order) evict.Record {
	rec := evict.Record{
		Pod: o.Pod, UID: o.UID, Cause: o.Cause, Hard: o.Hard, DryRun: v.Mode.dryRun,
		Reason: o.Reason, Message: o.Message, Annotations: o.Annotations, DisruptionTarget: true,
		Lane: "step", Confirm: "fresh reading", Decided: v.Time, RankingAge: v.Time.Sub(v.Snapshot.Taken),
		Available: o.Available, Threshold: o.Threshold, Deficit: o.Deficit, Expected: o.Expected,
		Overshoot: max(0, o.Threshold-o.Available), Futile: o.Futile, Result: evict.ResultPending,
		Candidates: slices.Clone(v.Orders.Ranking[:min(10, len(v.Orders.Ranking))]),
	}
	if s, ok := signal.Parse(o.Cause); ok {
		rec.LastAbove, rec.CrossingSeen = l.crossing[s].lastAbove, l.crossing[s].seen
		if !o.Hard {
			rec.LastAbove, rec.CrossingSeen = time.Time{}, l.softSince(s)
		}
		if l.raise.Lane != "" && !l.raise.Seen.Before(rec.LastAbove) {
			rec.Lane = l.raise.Lane
		}
	}
	return rec
}

// softSince returns when a signal's soft threshold was first seen to be met.
func (l *loop) softSince(s signal.Signal) (since time.Time) {
	for _, t := range l.state.Timers {
		if t.Threshold.Signal == s && t.Threshold.Soft {
			since = t.Since
		}
	}
	return since
}

// rest returns how long the loop may rest: as its pace is, but not so shortly
// that it would do nothing else, nor so long that what is low is lost sight of. An
// alarm that the reading did not confirm keeps it awake for a while: memory that
// goes up and down about a threshold is below it again before another alarm says so.
func rest(v *View, last lanes.Raise) time.Duration {
	wait := pace(v)
	if wait == calm && v.Time.Sub(last.Seen) < calm {
		wait = settling
	}
	busy := mostBusy * v.Took
	if wait < calm {
		busy = min(busy, low)
	}
	return max(wait, busy)
}

// pace returns when to look again: soon while victims are on their way, now
// and then while a signal is low, and else at ease.
func pace(v *View) time.Duration {
	for _, victim := range v.State.Victims {
		if victim.Status == evict.Unsettled && !victim.Soft {
			return settling
		}
	}
	if len(v.Orders.Met) > 0 {
		return low
	}
	return calm
}

func job(o evict.Order, s *pods.Snapshot, guard *act.Guard) act.Job {
	h := s.Handles[o.UID]
	j := act.Job{Order: o, SandboxID: h.SandboxID, Owned: h.Owned, Guard: guard}
	for _, c := range h.Containers {
		j.Containers = append(j.Containers, act.Container{ID: c.ID, Name: c.Name, Cgroup: c.Cgroup, CgroupID: c.CgroupID, Unproven: c.Unproven})
	}
	return j
}

func guardOf(g pods.Guard) *act.Guard { return &act.Guard{Never: g.Never, Inits: g.Inits} }
