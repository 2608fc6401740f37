package hot

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/evictd/evictd/agent/act"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/lanes"
	"github.com/evictd/evictd/agent/signal"
)

// maxKills is the number of kills that a thread may have queued for the loop. If the loop
// takes none, the thread stops killing, because the loop makes the records.
const maxKills = 64

// maxCandidates is the number of candidates that a Kill records.
const maxCandidates = 10

// Kill is a pod that was killed, with the values for its record.
type Kill struct {
	Pod *evict.Pod // from the table of the decision
	// Memory and Freeable are the usage that the pod was chosen by, in bytes.
	Memory, Freeable int64
	// Handle has a reference, which the loop drops.
	Handle Handle
	Result act.KillResult
	DryRun bool

	Threshold   evict.Threshold
	Observation signal.Observation
	Deficit     int64
	Expected    int64

	Alarm lanes.Alarm
	// Decided is when the decision began, Confirmed when the confirming reading was
	// taken, and Chosen when all victims were chosen and had a handle.
	Decided, Confirmed, Chosen time.Time
	RankingAge                 time.Duration
	// Unprepared means that the pod had no kill handle before the decision.
	Unprepared bool
	candidates [maxCandidates]evict.Ranked
	ranked     int
}

// Candidates returns the first pods of the ranking.
func (k *Kill) Candidates() []evict.Ranked { return k.candidates[:k.ranked] }

// Arbiter arbitrates between the threads that may kill for a hard memory threshold: the hot
// path, the watchdog and the decision loop. It hands out generations. An observation belongs
// to the generation in which it was made. A thread acquires that generation before it kills
// for the observation, so of two threads that decide on one generation only one kills.
type Arbiter struct {
	// state is twice the current generation, plus one while a thread has acquired the
	// generation and is killing.
	state  atomic.Uint64
	queues []*killQueue
	alarms chan lanes.Alarm
	// answered are the hard thresholds whose crossing a lane has answered, until the
	// loop takes them. They are kept apart from the alarms, of which notify drops some.
	answered answers
}

// answers are the hard thresholds whose crossing a lane has answered: pods are killed for
// it even if file cache brought it (see lanes.Alarm.ActNow).
type answers [signal.ThresholdIDCount]atomic.Bool

// record records whether an alarm answers a crossing. It does not allocate.
func (a *answers) record(alarm *lanes.Alarm) {
	if alarm.ActNow && alarm.Threshold != 0 && alarm.Threshold.Hard() {
		a[alarm.Threshold].Store(true)
	}
}

// killQueue has the kills of one thread that wait for the loop. Each thread has a queue of
// its own, because a thread whose generation was stolen may still add a kill.
type killQueue struct {
	kills         [maxKills]Kill
	written, read atomic.Uint64 // number of kills
}

// NewArbiter returns an [Arbiter] at generation 0.
func NewArbiter() *Arbiter { return &Arbiter{alarms: make(chan lanes.Alarm, 1)} }

// newQueue adds the queue of one more thread. It is called before any thread uses
// the arbiter.
func (a *Arbiter) newQueue() *killQueue {
	q := &killQueue{}
	a.queues = append(a.queues, q)
	return q
}

// Alarms returns the channel of the alarms that were decided on. While one alarm waits in
// it, later ones are dropped: the loop observes everything after any alarm.
func (a *Arbiter) Alarms() <-chan lanes.Alarm { return a.alarms }

// TakeActNow reports whether a lane has answered the crossing of a hard memory
// threshold since the last call. Only the loop calls it.
func (a *Arbiter) TakeActNow(id signal.ThresholdID) bool { return a.answered[id].Swap(false) }

// notify passes an alarm to the loop, unless another one waits.
func (a *Arbiter) notify(alarm lanes.Alarm) {
	select {
	case a.alarms <- alarm:
	default:
	}
}

// TakeKills appends the kills since the last call to list, and returns it with the generation
// to which an observation made from now on belongs. Only the loop calls it.
func (a *Arbiter) TakeKills(list []Kill) (_ []Kill, generation uint64) {
	generation = a.state.Load() / 2
	for _, q := range a.queues {
		list = q.drain(list)
	}
	slices.SortStableFunc(list, func(a, b Kill) int { return a.Decided.Compare(b.Decided) })
	return list, generation
}

// Acquire acquires a generation for kills that are decided on it, and begins the next one. It
// returns false if another thread has acquired the generation. The loop uses it: it knows
// its own kills, so its next observation may belong to the next generation at once.
// The hot path and the watchdog use acquireUntilRelease.
func (a *Arbiter) Acquire(generation uint64) bool {
	return a.state.CompareAndSwap(2*generation, 2*generation+2)
}

// acquireUntilRelease acquires a generation like [Arbiter.Acquire], but the next one begins
// only with release: no thread can acquire that before the kills are queued.
func (a *Arbiter) acquireUntilRelease(generation uint64) bool {
	return a.state.CompareAndSwap(2*generation, 2*generation+1)
}

// Steal steals a generation from a thread that has acquired it and hangs in the kernel. It
// returns false if no thread has the generation. Further observations belong to the second
// generation after this one.
//
// The thread does not queue a kill that returns after Steal, unless it is just about to.
// The loop steals only to carry out its own orders. If one of them is for the pod of such a
// kill, the record of that order covers the kill; if not, the kill has no record.
func (a *Arbiter) Steal(generation uint64) bool {
	return a.state.CompareAndSwap(2*generation+1, 2*generation+4)
}

// owned reports whether the thread that acquired a generation still has it: it was neither
// released nor stolen.
func (a *Arbiter) owned(generation uint64) bool { return a.state.Load() == 2*generation+1 }

// release ends a generation after all its kills were queued, and begins the next one. It
// does nothing if the generation was stolen.
func (a *Arbiter) release(generation uint64) { a.state.CompareAndSwap(2*generation+1, 2*generation+2) }

// Valid reports whether the generation is current and no thread has acquired it: no thread
// has killed since an observation of the generation.
func (a *Arbiter) Valid(generation uint64) bool { return a.state.Load() == 2*generation }

// room returns how many kills can be queued.
func (q *killQueue) room() int { return maxKills - int(q.written.Load()-q.read.Load()) }

// next returns the slot of the next kill, which commit queues.
func (q *killQueue) next() *Kill { return &q.kills[q.written.Load()%maxKills] }

func (q *killQueue) commit() { q.written.Add(1) }

// drain moves the queued kills to the end of list.
func (q *killQueue) drain(list []Kill) []Kill {
	for at := q.read.Load(); at < q.written.Load(); at++ {
		k := &q.kills[at%maxKills]
		list = append(list, *k)
		*k = Kill{} // keeps no pod or handle alive
		q.read.Store(at + 1)
	}
	return list
}
