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
// left behind, is brought up to date with fresh usage, and decides by the same
// functions as Step, with two differences: pods over limits of their own are
// Step's, and so is whatever looks futile.
//
// A Table belongs to one goroutine at a time. Once it is made, its methods
// allocate nothing, so that they can run where memory must not be asked for.
type Table struct {
	// Taken is when the usage in it was read.
	Taken time.Time

	state                State // with room for every entry to become a victim
	marks                []mark
	timers               []Timer // by mark; not met where Since is zero
	answered             []bool  // by mark: a lane has answered its crossing
	entries              []entry
	order                []int32  // of the entries that may be chosen, as ranked last
	eligible             []Ranked // of the last Decide
	maxVictims           int
	settle               time.Duration
	unlisted             bool
	measured             bool
	dryRun               bool
	stalled, podsStalled bool
	drift                int64 // of per-CPU counters, bytes
	known                int64 // of what no pod accounts for, bytes
}

// entry is a pod of the table.
type entry struct {
	Ranked
	memory  int64 // working set, also of a pod without statistics: 0
	gone    bool
	kubelet bool
	start   int64 // LastStart
}

// NewTable returns the table that follows from a step: in are its inputs and
// state what it left behind.
func NewTable(in *Inputs, state *State, taken time.Time) *Table {
	p := in.Policy
	t := &Table{
		Taken: taken, state: state.Clone(), maxVictims: p.MaxVictims, settle: p.SettleTimeout,
		unlisted: in.Unlisted, measured: in.Measured, dryRun: in.DryRun, stalled: in.ReclaimStalled, podsStalled: in.PodsReclaimStalled, drift: in.Drift, known: in.Unexplained,
	}
	for i := range p.Thresholds {
		if p.Thresholds[i].Signal.IsMemory() {
			t.marks = append(t.marks, markOf(&p.Thresholds[i]))
		}
	}
	t.timers, t.answered = make([]Timer, len(t.marks)), make([]bool, len(t.marks))
	for i := range t.marks {
		t.state.readings(t.marks[i].key) // room for them, as for all else
		if timer := t.state.timer(t.marks[i].key); timer != nil {
			t.timers[i] = *timer
		}
	}
	for i := range in.Pods {
		pod := &in.Pods[i]
		reason, _ := p.exempt(pod)
		e := entry{Ranked: p.weigh(pod, i, signal.MemoryAvailable), kubelet: pod.Kubelet, start: pod.LastStart}
		e.memory = e.Usage
		if reason == "" {
			t.order = append(t.order, int32(len(t.entries)))
		}
		t.entries = append(t.entries, e)
	}
	t.makeRoom()
	t.rank(taken)
	return t
}

// Clone returns a copy that shares nothing that changes with t.
func (t *Table) Clone() *Table {
	c := *t
	c.state = t.state.Clone()
	c.timers, c.entries, c.order = slices.Clone(t.timers), slices.Clone(t.entries), slices.Clone(t.order)
	c.answered = slices.Clone(t.answered)
	c.makeRoom()
	return &c
}

// makeRoom lets every entry become a victim without asking for memory.
func (t *Table) makeRoom() {
	t.eligible = make([]Ranked, 0, len(t.entries))
	t.state.Victims = slices.Grow(t.state.Victims, len(t.entries))
	t.state.Pretended = slices.Grow(t.state.Pretended, len(t.entries))
	t.state.Futile = slices.Grow(t.state.Futile, int(signal.Count))
}

// Answer tells the table that a lane has answered the crossing of the hard
// threshold on a memory signal: the next decision does not let it wait.
func (t *Table) Answer(s signal.Signal) {
	for i := range t.marks {
		if m := &t.marks[i]; m.Signal == s && m.Hard() {
			t.answered[i] = true
		}
	}
}

// Len returns how many pods the table has.
func (t *Table) Len() int { return len(t.entries) }

// Index returns where the i-th pod was in the inputs' pods.
func (t *Table) Index(i int) int { return t.entries[i].index }

// Usage returns the working set and the freeable memory that the table has of
// the i-th pod, in bytes; ok is false for a pod without statistics.
func (t *Table) Usage(i int) (memory, freeable int64, ok bool) {
	e := &t.entries[i]
	return e.Usage, e.Expected, !e.NoStats
}

// Set brings the i-th pod's usage up to date, in bytes.
func (t *Table) Set(i int, memory, freeable int64) {
	e := &t.entries[i]
	e.Usage, e.Expected, e.memory = memory, freeable, memory
	e.Over, e.NoStats = memory > e.Request, false
}

// Gone says that nothing is left of the i-th pod.
func (t *Table) Gone(i int) { t.entries[i].gone = true }

// Strange reports whether the pods together hold, by their working set of
// kubepods bytes, so much more than the known ones, and than what is unexplained
// anyway, that one is not listed.
func (t *Table) Strange(kubepods int64) bool {
	for i := range t.entries {
		kubepods -= t.entries[i].memory
	}
	return kubepods-t.known >= Stranger
}

// Unsettled reports whether a victim is on its way, as far as the table knows.
func (t *Table) Unsettled() bool {
	for i := range t.state.Victims {
		if t.state.Victims[i].Status == Unsettled {
			return true
		}
	}
	return false
}

// Find returns the number of a pod by its UID; -1 where it is not there.
func (t *Table) Find(uid string) int {
	for i := range t.entries {
		if t.entries[i].UID == uid && !t.entries[i].gone {
			return i
		}
	}
	return -1
}

// Headroom returns how far, in bytes, the nearest hard threshold is from being
// met; below 0 one may be. It is pure, and what dry run adds is left out.
func (t *Table) Headroom(observed *signal.Observations) int64 {
	least := int64(math.MaxInt64)
	for i := range t.marks {
		m := &t.marks[i]
		o := &observed[m.Signal]
		if !m.Hard() || o.Status != signal.Observed {
			continue
		}
		at := m.at(o.Capacity)
		if t.timers[i].Past {
			at = m.target(o.Capacity)
		}
		least = min(least, -shortfall(at, o.Available))
	}
	return least
}
