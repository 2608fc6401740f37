package evict

import (
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
	d := &t.d
	t.look(observed, now)
	d.settle()
	d.evaluate()
	d.endBackoffs()
	d.harden()
	threshold, deficit := d.worst(signal.MemoryAvailable, false)
	if threshold == nil {
		return Verdict{Why: t.whyNone()}
	}
	v := Verdict{Why: d.hindered(threshold), Threshold: threshold, Deficit: deficit, Observation: d.observed[threshold.Signal]}
	if v.Why != Chosen {
		return v
	}
	v.Ranking = t.rank()
	n, futile := d.victims(threshold, deficit, v.Ranking)
	switch {
	case n == 0:
		v.Why = Nobody
	case futile:
		v.Why = Futile
	default:
		v.N = n
	}
	return v
}

// Saw takes in a reading that calls for no decision, so that a crossing which is over
// is not taken for the next one.
func (t *Table) Saw(observed *signal.Observations, now time.Time) {
	t.look(observed, now)
	t.d.evaluate()
}

// Follow settles the victims that have brought what was expected of them or were
// waited for long enough, as a step would, by the usage that was set last.
func (t *Table) Follow(now time.Time) {
	t.d.now = now
	t.d.settle()
}

// look begins to decide on what is observed.
func (t *Table) look(observed *signal.Observations, now time.Time) {
	t.d.now, t.d.in.Observations, t.d.observed = now, *observed, *observed
	t.d.pretend()
}

// whyNone tells why nothing is to be done about any threshold.
func (t *Table) whyNone() Why {
	why := Recovered
	for i := range t.d.marks {
		switch m := &t.d.marks[i]; {
		case m.past && m.Hard():
			return Covered
		case m.waiting:
			why = Waiting
		}
	}
	return why
}

// rank puts those that may be chosen in order by their usage now. What little has
// changed since the last time is soon sorted.
func (t *Table) rank() []Ranked {
	for i := range t.candidates {
		r := &t.candidates[i]
		e := &t.d.pods[r.index]
		r.measure(e.memory, e.freeable, e.known)
	}
	t.eligible = t.d.rank(t.eligible[:0], t.candidates, t.d.now)
	return t.eligible
}

// Take enters the verdict's victims into the table's own books, so that what
// it decides next counts them, until a table comes that was made of a step
// which adopted them. The verdict must be the last that Decide returned.
func (t *Table) Take(v *Verdict) {
	for i := range v.N {
		r := &v.Ranking[i]
		t.d.enter(&t.d.pods[r.index], v.Threshold.Key(), &Order{Pod: r.Pod, Cause: v.Threshold.Signal.String(), Hard: true})
	}
}

// Refuse notes that a victim that was taken could not be killed.
func (t *Table) Refuse(uid string) { t.d.refuse(uid) }
