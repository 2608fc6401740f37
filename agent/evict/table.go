package evict

import (
	"math"
	"slices"
	"time"

	"github.com/evictd/evictd/agent/signal"
)

// Stranger is how much memory, in bytes, all pods together may hold beyond the
// known ones before somebody is missing from the list.
const Stranger = 64 << 20

// Table is the half of the decision that can't wait for a Step: which pods go
// at once when a hard memory threshold is met. It is made of what the last Step
// left behind, is brought up to date with fresh usage, and decides by the code of
// Step, with three differences: pods over limits of their own are Step's, whatever
// looks futile is too, and a signal that could not be read in time ends nothing.
//
// A Table belongs to one goroutine at a time. Once it is made, its methods
// allocate nothing, so that they can run where memory must not be asked for.
type Table struct {
	// Taken is when the usage in it was read.
	Taken time.Time

	d                    decision // with room for every pod to become a victim
	candidates, eligible []Ranked // all that may be chosen, and those of the last Decide
}

// NewTable returns the table that follows from a step: in are its inputs and
// state what it left behind.
func NewTable(in *Inputs, state *State, taken time.Time) *Table {
	fresh := *in
	fresh.Answered = nil // the step has taken them in
	t := &Table{Taken: taken, d: newDecision(state, &fresh, taken)}
	d := &t.d
	d.hurried = true
	d.marks = slices.DeleteFunc(d.marks, func(m mark) bool { return !m.Signal.IsMemory() })
	for i := range d.marks {
		d.readings(d.marks[i].key)
	}
	for i := range in.Pods {
		if reason, _ := d.policy.exempt(&in.Pods[i]); reason == "" {
			t.candidates = append(t.candidates, d.policy.weigh(&in.Pods[i], i, signal.MemoryAvailable))
		}
	}
	t.makeRoom()
	t.rank()
	return t
}

// Clone returns a copy that shares nothing that changes with t.
func (t *Table) Clone() *Table {
	c := *t
	c.d.State, c.d.pods, c.d.marks = t.d.State.Clone(), slices.Clone(t.d.pods), slices.Clone(t.d.marks)
	c.candidates = slices.Clone(t.candidates)
	c.makeRoom()
	return &c
}

// makeRoom lets every pod become a victim without asking for memory.
func (t *Table) makeRoom() {
	d, n := &t.d, len(t.d.pods)
	t.eligible = make([]Ranked, 0, len(t.candidates))
	d.Victims, d.Pretended = slices.Grow(d.Victims, n), slices.Grow(d.Pretended, n)
	d.Futile = slices.Grow(d.Futile, int(signal.Count))
}

// Answer tells the table that a lane has answered the crossing of the hard
// threshold on a memory signal: the next decision does not let it wait.
func (t *Table) Answer(s signal.Signal) {
	for i := range t.d.marks {
		if m := &t.d.marks[i]; m.Signal == s && m.Hard() {
			m.answered = true
		}
	}
}

// Set brings the usage of the i-th of the inputs' pods up to date: its working
// set and what of it a kill gives back, in bytes.
func (t *Table) Set(i int, memory, freeable int64) { t.d.pods[i].set(memory, freeable) }

// Strange reports whether the pods together hold, by their working set of
// kubepods bytes, so much more than the known ones, and than what is unexplained
// anyway, that one is not listed.
func (t *Table) Strange(kubepods int64) bool {
	for i := range t.d.pods {
		kubepods -= t.d.pods[i].memory
	}
	return kubepods-t.d.in.Unexplained >= Stranger
}

// Unsettled reports whether a victim is on its way, as far as the table knows.
func (t *Table) Unsettled() bool {
	return slices.ContainsFunc(t.d.Victims, func(v Victim) bool { return v.Status == Unsettled })
}

// Headroom returns how far, in bytes, the nearest hard threshold is from being
// met; below 0 one may be. It is pure, and what dry run adds is left out.
func (t *Table) Headroom(observed *signal.Observations) int64 {
	least := int64(math.MaxInt64)
	for i := range t.d.marks {
		m := &t.d.marks[i]
		o := &observed[m.Signal]
		if m.Hard() && o.Status == signal.Observed {
			least = min(least, -shortfall(m.current(o.Capacity), o.Available))
		}
	}
	return least
}
