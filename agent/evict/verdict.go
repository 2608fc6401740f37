package evict

import (
	"slices"
	"time"

	"github.com/evictd/evictd/agent/signal"
)

// Why tells why a Verdict has no victims.
type Why uint8

// The reasons.
const (
	// Chosen: it has some.
	Chosen Why = iota
	// Recovered: no hard threshold is met.
	Recovered
	// Waiting: file cache brought the crossing, which waits for that.
	Waiting
	// Covered: victims on their way bring what is missing.
	Covered
	// Unlisted: it is not known what runs.
	Unlisted
	// BackingOff: evicting does not help enough, and the back-off runs.
	BackingOff
	// Nobody: no pod may be chosen.
	Nobody
	// Futile: evicting does not help enough, which is Step's to tell.
	Futile

	// Whys is the number of reasons.
	Whys
)

// String says the reason in words.
func (w Why) String() string {
	return [...]string{
		Chosen: "chosen", Recovered: "recovered", Waiting: "waiting for file cache", Covered: "covered by victims",
		Unlisted: "pods not listed", BackingOff: "backing off", Nobody: "nobody eligible", Futile: "futile", Whys: "unknown",
	}[min(w, Whys)]
}

// Verdict is what a Table decides.
type Verdict struct {
	Why Why
	// Threshold is the one acted upon and Deficit what is missing, in bytes,
	// with what victims on their way bring taken off; nil and 0 for the first
	// reasons.
	Threshold *Threshold
	Deficit   int64
	// Observation is the threshold's, with what dry run adds.
	Observation signal.Observation
	// Ranking is in the order of eviction and N how many of its first must go.
	// It holds until the table is used again.
	Ranking []Ranked
	N       int
}

// Decide tells which pods go for what is observed. Readings of other signals
// than memory's are not looked at.
func (t *Table) Decide(observed *signal.Observations, now time.Time) Verdict {
	seen := [2]signal.Observation{observed[signal.MemoryAvailable], observed[signal.AllocatableMemoryAvailable]}
	if !t.unlisted && t.dryRun {
		t.pretend(&seen)
	}
	t.Follow(now)
	pastHard, waiting, met := t.evaluate(&seen, observed, now)
	if !met {
		t.state.Futile = slices.DeleteFunc(t.state.Futile, func(b Backoff) bool { return b.Signal == signal.MemoryAvailable })
	}
	if !pastHard {
		if waiting {
			return Verdict{Why: Waiting}
		}
		return Verdict{Why: Recovered}
	}
	for i := range t.state.Victims {
		if v := &t.state.Victims[i]; group(v.Signal.Signal) == signal.MemoryAvailable {
			v.harden(t.measured, now)
		}
	}
	var short shortage
	underway := t.underway(now)
	for i := range t.marks {
		if m := &t.marks[i]; m.Hard() && t.timers[i].Past && of(&seen, m.Signal).Status == signal.Observed {
			short.add(m, m.need(of(&seen, m.Signal), underway))
		}
	}
	if short.first == nil {
		return Verdict{Why: Covered}
	}
	v := Verdict{Threshold: short.first, Deficit: short.deficit, Observation: *of(&seen, short.first.Signal)}
	switch {
	case t.unlisted:
		v.Why = Unlisted
		return v
	case t.state.backingOff(signal.MemoryAvailable, true, now):
		v.Why = BackingOff
		return v
	}
	v.Ranking = t.rank(now)
	n, enough := Size(v.Ranking, v.Deficit, t.maxVictims)
	switch {
	case len(v.Ranking) == 0:
		v.Why = Nobody
	case !enough || t.state.disappointed(signal.MemoryAvailable):
		v.Why = Futile
	default:
		v.N = n
	}
	return v
}

// Saw takes in a reading that calls for no decision, so that a crossing which is over
// is not taken for the next one.
func (t *Table) Saw(observed *signal.Observations, now time.Time) {
	seen := [2]signal.Observation{observed[signal.MemoryAvailable], observed[signal.AllocatableMemoryAvailable]}
	if !t.unlisted && t.dryRun {
		t.pretend(&seen)
	}
	t.evaluate(&seen, observed, now)
}

// of returns the observation of a memory signal.
func of(seen *[2]signal.Observation, s signal.Signal) *signal.Observation {
	if s == signal.MemoryAvailable {
		return &seen[0]
	}
	return &seen[1]
}

// pretend is decision.pretend: dry run's would-be victims count as gone while
// the episode lasts for which they were named.
func (t *Table) pretend(seen *[2]signal.Observation) {
	low := false
	for i := range t.marks {
		o := of(seen, t.marks[i].Signal)
		low = low || o.Status == signal.Unreadable || o.Below(t.marks[i].target(o.Capacity))
	}
	t.state.Pretended = slices.DeleteFunc(t.state.Pretended, func(p Pretended) bool {
		return t.Find(p.UID) < 0 || !p.Limit && !low && group(p.Signal) == signal.MemoryAvailable
	})
	for _, p := range t.state.Pretended {
		held := t.entries[t.Find(p.UID)].Expected
		for i := range seen {
			addBack(&seen[i], held)
		}
	}
}

// Follow settles the victims that have brought what was expected of them or were
// waited for long enough, as a step would, by the usage that was set last.
func (t *Table) Follow(now time.Time) {
	if t.unlisted {
		return
	}
	t.state.Victims = slices.DeleteFunc(t.state.Victims, func(v Victim) bool {
		if t.Find(v.UID) < 0 {
			if v.Status == Unsettled {
				t.state.returned(group(v.Signal.Signal), false)
			}
			return true
		}
		return v.expired(t.measured, now)
	})
	for i := range t.state.Victims {
		v := &t.state.Victims[i]
		e := &t.entries[t.Find(v.UID)]
		t.state.conclude(v, v.progress(t.held(v, e), t.measured && !e.NoStats, t.measured, t.settle, now))
	}
}

// evaluate is decision.evaluate for memory: whether a hard threshold is past its
// grace, whether one waits because file cache brought its crossing, and whether any
// is met. A reading in a hurry may lack a signal that the next has: a timer runs on
// through that, where in a step, which waits for its readings, it begins again.
func (t *Table) evaluate(seen *[2]signal.Observation, observed *signal.Observations, now time.Time) (pastHard, waiting, any bool) {
	for i := range t.marks {
		m := &t.marks[i]
		var before *Timer
		if !t.timers[i].Since.IsZero() {
			before = &t.timers[i]
		}
		o := of(seen, m.Signal)
		if before != nil && o.Status == signal.Unreadable {
			any = true
			continue // a reading that came too late does not say that the crossing is over
		}
		timer, met, waits := m.meets(before, o, &observed[m.Signal], t.state.readings(m.key), &circumstances{
			now: now, stalled: stalls(m.Signal, t.stalled, t.podsStalled), answered: t.answered[i], drift: t.drift, measured: t.measured,
		})
		t.timers[i], t.answered[i] = timer, false
		any = any || met
		waiting = waiting || waits
		pastHard = pastHard || m.Hard() && timer.Past
	}
	return pastHard, waiting, any
}

// underway is decision.underway for memory.
func (t *Table) underway(now time.Time) (sum int64) {
	for i := range t.state.Victims {
		v := &t.state.Victims[i]
		if at := t.Find(v.UID); at >= 0 && v.counts(t.measured, t.settle, now) {
			sum = saturatingAdd(sum, t.held(v, &t.entries[at]))
		}
	}
	return sum
}

// held is decision.held for memory.
func (t *Table) held(v *Victim, e *entry) int64 {
	if !t.measured || e.NoStats {
		return e.Expected
	}
	return v.holds(e.Usage, e.Expected)
}

// rank is Policy.Rank without the names of those that are exempt. What little
// has changed since the last time is soon sorted.
func (t *Table) rank(now time.Time) []Ranked {
	slices.SortFunc(t.order, func(a, b int32) int { return compare(&t.entries[a].Ranked, &t.entries[b].Ranked) })
	t.eligible = t.eligible[:0]
	for _, i := range t.order {
		if e := &t.entries[i]; !e.gone && !t.state.isBusy(e.UID, now) {
			t.eligible = append(t.eligible, e.Ranked)
		}
	}
	return t.eligible
}

// Take enters the verdict's victims into the table's own books, so that what
// it decides next counts them, until a table comes that was made of a step
// which adopted them.
func (t *Table) Take(v *Verdict, now time.Time) {
	for i := range v.N {
		r := &v.Ranking[i]
		if t.dryRun {
			t.state.Pretended = append(t.state.Pretended, Pretended{UID: r.UID, Signal: v.Threshold.Signal})
			continue
		}
		at := t.Find(r.UID)
		t.state.Victims = append(t.state.Victims, Victim{
			UID: r.UID, Pod: r.Pod, Signal: v.Threshold.Key(), Decided: now, Due: now,
			Expected: r.Expected, Beside: max(0, r.Usage-r.Expected), Lowest: r.Expected, Fell: now, Status: Unsettled,
			Kubelet: t.entries[at].kubelet, LastStart: t.entries[at].start,
		})
	}
}

// Refuse notes that a victim that was taken could not be killed.
func (t *Table) Refuse(uid string, now time.Time) {
	if v := t.state.victim(uid); v != nil {
		v.Status, v.Fell = Failed, now
	}
}
