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

// mostKills is how many kills of a thread may wait for the loop. When it takes
// none, the thread ends to kill too: somebody must keep the books.
const mostKills = 64

// keptCandidates is how much of a ranking a Kill keeps.
const keptCandidates = 10

// Kill is a pod that was struck, and all that is to be told of it.
type Kill struct {
	Pod *evict.Pod // as of the table that was decided with
	// Memory and Freeable are the usage that it was chosen for, in bytes.
	Memory, Freeable int64
	// Hold was grabbed: whoever follows drops it.
	Hold   Pod
	Strike act.Strike
	DryRun bool

	Threshold   evict.Threshold
	Observation signal.Observation
	Deficit     int64
	Expected    int64

	Raise lanes.Raise
	// Decided is when the decision began, Confirmed when the reading that confirms the
	// alarm was taken, and Chosen when all victims were ranked and held.
	Decided, Confirmed, Chosen time.Time
	RankingAge                 time.Duration
	// Cold tells that the pod was not held beforehand.
	Cold       bool
	candidates [keptCandidates]evict.Ranked
	ranked     int
}

// Candidates returns the first of the ranking that was decided with.
func (k *Kill) Candidates() []evict.Ranked { return k.candidates[:k.ranked] }

// Desk is where those meet who may order hard memory kills: the hot thread, the
// watchdog and the decision loop.
type Desk struct {
	// state is the generation, twice, and one more while somebody who has claimed it
	// is killing.
	state atomic.Uint64
	piles []*pile
	news  chan lanes.Raise
	// answered are the hard thresholds whose crossing a lane has answered, until the
	// loop takes that in: an alarm that waits to be heard hides the next.
	answered answers
}

// answers are hard thresholds whose crossing a lane has answered, by mark.
type answers [signal.Marks]atomic.Bool

// note takes in what an alarm says. It allocates nothing.
func (a *answers) note(r *lanes.Raise) {
	if r.Answered && r.Mark != 0 && r.Mark.Hard() {
		a[r.Mark].Store(true)
	}
}

// pile is the kills of one thread that wait for the loop. Nobody else lays any on
// it: who was believed to hang may be about to.
type pile struct {
	kills         [mostKills]Kill
	written, read atomic.Uint64 // of kills
}

// NewDesk returns an empty desk.
func NewDesk() *Desk { return &Desk{news: make(chan lanes.Raise, 1)} }

// join gives another thread its pile, before any runs.
func (d *Desk) join() *pile {
	p := &pile{}
	d.piles = append(d.piles, p)
	return p
}

// News tells the loop when to look: after an alarm, and after a pod was struck
// for one. An alarm that waits to be heard stands for those after it.
func (d *Desk) News() <-chan lanes.Raise { return d.news }

// TakeAnswered reports whether a lane has answered the crossing of a hard memory
// threshold since the last call. Only the loop calls it.
func (d *Desk) TakeAnswered(m signal.Mark) bool { return d.answered[m].Swap(false) }

func (d *Desk) tell(r lanes.Raise) {
	select {
	case d.news <- r:
	default:
	}
}

// Kills appends to list what was struck since the last call and returns it with
// the generation that an observation which follows belongs to. Only the loop
// calls it.
func (d *Desk) Kills(list []Kill) (_ []Kill, generation uint64) {
	generation = d.state.Load() / 2
	for _, p := range d.piles {
		list = p.take(list)
	}
	slices.SortStableFunc(list, func(a, b Kill) int { return a.Decided.Compare(b.Decided) })
	return list, generation
}

// Claim takes the right to kill on a decision that belongs to a generation;
// false says that somebody has killed since, or does now. The loop, which knows
// of its own kills, may observe again at once: it belongs to the next
// generation.
func (d *Desk) Claim(generation uint64) bool {
	return d.state.CompareAndSwap(2*generation, 2*generation+2)
}

// claim is Claim for those whose kills have to be told: until done is called,
// nobody else can claim.
func (d *Desk) claim(generation uint64) bool {
	return d.state.CompareAndSwap(2*generation, 2*generation+1)
}

// Seize takes the right to kill, on a decision that belongs to a generation, from
// somebody who has claimed it and hangs in the kernel. What that one strikes from
// then on is not told any more, unless it was about to be. Further observations
// belong to the second generation after this one.
func (d *Desk) Seize(generation uint64) bool {
	return d.state.CompareAndSwap(2*generation+1, 2*generation+4)
}

// mine reports whether who claimed a generation still has the right to kill.
func (d *Desk) mine(generation uint64) bool { return d.state.Load() == 2*generation+1 }

// done tells that all kills of a generation lie on the desk.
func (d *Desk) done(generation uint64) { d.state.CompareAndSwap(2*generation+1, 2*generation+2) }

// Current reports whether nobody has killed since an observation of a generation.
func (d *Desk) Current(generation uint64) bool { return d.current(generation) }

// current reports whether nobody has killed since the generation, nor does now.
func (d *Desk) current(generation uint64) bool { return d.state.Load() == 2*generation }

// room reports whether so many kills can be told.
func (p *pile) room(n int) bool { return p.written.Load()-p.read.Load()+uint64(n) <= mostKills }

// next is where the next kill is written, and added lays it on the desk.
func (p *pile) next() *Kill { return &p.kills[p.written.Load()%mostKills] }

func (p *pile) added() { p.written.Add(1) }

// take appends the kills to list, for the loop.
func (p *pile) take(list []Kill) []Kill {
	for at := p.read.Load(); at < p.written.Load(); at++ {
		k := &p.kills[at%mostKills]
		list = append(list, *k)
		*k = Kill{} // it keeps nothing alive
		p.read.Store(at + 1)
	}
	return list
}
