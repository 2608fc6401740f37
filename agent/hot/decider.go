package hot

import (
	"sync/atomic"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/lanes"
	"github.com/evictd/evictd/agent/memory"
	"github.com/evictd/evictd/agent/signal"
)

// Reader takes the readings that confirm an alarm. It allocates nothing and waits
// for nobody.
type Reader = memory.Reader

// Result is how an alarm was dealt with.
type Result uint8

// The results.
const (
	// Struck: pods were killed for it, or would have been in dry run.
	Struck Result = iota
	// NotConfirmed: a fresh reading showed no hard threshold crossed.
	NotConfirmed
	// Declined: the table saw no need for a victim, or could not tell one.
	Declined
	// Strange: the pods hold memory that nobody listed accounts for.
	Strange
	// Unheld: a victim can't be held, so that it can't be killed directly.
	Unheld
	// Outrun: somebody else has killed since the table was made, or does now.
	Outrun
	// Unready: there is no table yet.
	Unready

	// Results is the number of results.
	Results
)

// String says the result in words.
func (r Result) String() string {
	return [...]string{
		Struck: "struck", NotConfirmed: "not confirmed", Declined: "declined", Strange: "pod not listed",
		Unheld: "victim not held", Outrun: "outrun", Unready: "not ready", Results: "unknown",
	}[min(r, Results)]
}

// decider confirms, decides and strikes. It belongs to one thread.
type decider struct {
	desk   *Desk
	pile   *pile
	read   Reader
	walk   Walk // the reader, where it is one
	strike Striker
	look   Striker // of dry run
	next   atomic.Pointer[Table]
	counts [Results]atomic.Uint64

	// answered are the hard thresholds whose crossing a lane has answered, until a
	// decision takes that in: an alarm may stand for others, or be looked after again.
	answered answers

	table    *Table
	observed signal.Observations
	headroom int64 // of the last reading, bytes
	// Of the decision under way, for the record.
	confirmed, ready time.Time
	// How long the looks at pods may take, and when no more are taken.
	lookLimit, lookAfterWalk time.Duration
	looksEnd                 time.Time
	chosen                   [mostKills]choice
}

// choice is a pod about to be struck.
type choice struct {
	ranked evict.Ranked
	hold   Pod
	cold   bool
	// refused tells that it holds what must live, so that nobody will end it.
	refused bool
}

func (d *decider) setUp(o *Options) {
	d.desk, d.read, d.strike, d.look = o.Desk, o.Read, o.Strike, o.Look
	d.pile, d.lookLimit, d.lookAfterWalk = o.Desk.join(), lookLimit, lookAfterWalk
	d.walk, _ = o.Read.(Walk)
}

// publish gives the decider its next table.
func (d *decider) publish(t *Table) { d.next.Store(t) }

// noteAnswer takes in what an alarm says of a crossing, for the decider and the loop.
// Any thread may call it.
func (d *decider) noteAnswer(r *lanes.Raise) {
	d.answered.note(r)
	d.desk.answered.note(r)
}

// takeAnswers gives the table the answers that have come.
func (d *decider) takeAnswers() {
	for m := range d.answered {
		if d.answered[m].Load() && d.answered[m].Swap(false) {
			d.table.Decision.Answer(signal.Mark(m).Signal())
		}
	}
}

func (d *decider) dropAnswers() {
	for m := range d.answered {
		d.answered[m].Store(false)
	}
}

// handle deals with an alarm. The loop is told in any case.
func (d *decider) handle(r lanes.Raise) Result {
	d.noteAnswer(&r)
	result := d.decide(r, r.Seen)
	d.tell(result, r)
	return result
}

// tell counts how an alarm was dealt with, and tells the loop of it.
func (d *decider) tell(result Result, r lanes.Raise) {
	d.counts[result].Add(1)
	d.desk.tell(r)
}

// Count returns how many alarms were dealt with in a way.
func (d *decider) Count(r Result) uint64 { return d.counts[r].Load() }

// dealt returns how many alarms were dealt with.
func (d *decider) dealt() (n uint64) {
	for i := range d.counts {
		n += d.counts[i].Load()
	}
	return n
}

// adopt takes up the table that was published last, unless somebody has killed
// since its observation: then another is on its way.
func (d *decider) adopt() {
	if t := d.next.Swap(nil); t != nil && (d.table == nil || d.desk.current(t.Generation)) {
		d.table = t
	}
}

// decide is handle but for telling. No figure is older than since.
func (d *decider) decide(r lanes.Raise, since time.Time) Result {
	d.adopt()
	t := d.table
	if t == nil {
		return Unready
	}
	now := time.Now()
	t.trail()
	node := d.read.Read(now, since, &d.observed)
	if d.headroom = t.Decision.Headroom(&d.observed); d.headroom >= 0 {
		if t.Decision.Saw(&d.observed, now); d.headroom >= near {
			d.dropAnswers() // of a crossing that is over
		}
		return NotConfirmed
	}
	if !d.desk.current(t.Generation) {
		return Outrun
	}
	d.confirmed = time.Now()
	kubepods := node.Most(&t.Node)
	t.shmemGrown = max(0, int64(node.Shmem)-int64(t.Node.Shmem))
	d.takeAnswers()
	v, fresh := d.choose(kubepods, now)
	age := now.Sub(t.Decision.Taken)
	switch {
	case v.N == 0:
		return Declined
	case t.Decision.Strange(kubepods):
		return Strange
	case !d.hold(&v):
		d.letGo(0)
		return Unheld
	}
	if fresh {
		age = 0
	}
	d.ready = time.Now()
	laid, result := d.fire(&v, r, now, age)
	if result != Struck {
		d.letGo(laid)
	}
	return result
}

// hold grabs a Hold for each of the verdict's victims.
func (d *decider) hold(v *evict.Verdict) bool {
	clear(d.chosen[:])
	if v.N > len(d.chosen) {
		return false
	}
	for i := range v.N {
		c := &d.chosen[i]
		c.ranked = v.Ranking[i]
		at := c.ranked.Index()
		if h := d.table.Rows[at].Hold; h != nil && h.Grab() {
			c.hold = h
			continue
		}
		h, err := d.table.Prepare(at)
		if err != nil || !h.Grab() {
			return false // whoever is told of the alarm finds out why
		}
		c.hold, c.cold = h, true
	}
	return true
}

// letGo undoes hold, but for the first victims, which lie on the desk: who takes
// their kills from there lets go of them.
func (d *decider) letGo(laid int) {
	for i := range d.chosen[laid:] {
		c := &d.chosen[laid+i]
		if c.hold == nil {
			return
		}
		c.hold.Drop()
		if c.cold {
			c.hold.Close()
		}
	}
}

// fire strikes the verdict's victims, if nobody has killed since it was found, and
// returns how many of them lie on the desk.
func (d *decider) fire(v *evict.Verdict, r lanes.Raise, now time.Time, age time.Duration) (laid int, _ Result) {
	t := d.table
	if !d.pile.room(v.N) || !d.desk.claim(t.Generation) {
		return 0, Outrun
	}
	striker := d.strike
	if t.DryRun {
		striker = d.look
	}
	for laid < v.N {
		c := &d.chosen[laid]
		strike := striker.Strike(c.hold, t.Guard)
		c.refused = strike.Refused()
		if !d.desk.mine(t.Generation) {
			// It took so long that somebody has seized the desk: the books are his now.
			break
		}
		k := d.pile.next()
		*k = Kill{
			Pod: &t.Pods[c.ranked.Index()], Memory: c.ranked.Usage, Freeable: c.ranked.Expected,
			Hold: c.hold, Strike: strike, DryRun: t.DryRun,
			Threshold: *v.Threshold, Observation: v.Observation, Deficit: v.Deficit, Expected: c.ranked.Expected,
			Raise: r, Decided: now, Confirmed: d.confirmed, Chosen: d.ready, RankingAge: age, Cold: c.cold,
		}
		k.ranked = copy(k.candidates[:], v.Ranking)
		d.pile.added()
		laid++
	}
	if laid < v.N {
		return laid, Outrun // the table, too, is outdated
	}
	t.Decision.Take(v)
	for i := range v.N {
		c := &d.chosen[i]
		t.struck(c)
		if c.refused {
			t.Decision.Refuse(c.ranked.UID)
		}
	}
	d.desk.done(t.Generation)
	t.Generation++
	return laid, Struck
}
