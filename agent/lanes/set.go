package lanes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/evictd/evictd/agent/memory"
	"github.com/evictd/evictd/agent/pace"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/bpf"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/psi"
)

// The pace of the watch over the lanes.
const (
	// calmTurn is how often the lanes are looked after, and busyTurn how often
	// while something is near: a mark, or an alarm that is younger than busyFor.
	calmTurn = time.Second
	busyTurn = 100 * time.Millisecond
	busyFor  = 5 * time.Second
	// thoroughEach is how often, in calm, lanes also look at what moves slowly: file
	// cache, which cgroup is the pods', the machine itself.
	thoroughEach = 10 * time.Second
	// seenLasts is how old what polling read may be, for lanes to be looked after by
	// it in calm; polling is at ease then, too.
	seenLasts = 2 * longest
	// leastTurn is the least between two looks, whatever wakes the watch up: a crossing
	// that waits is followed at most this often by what is armed on usage.
	leastTurn = 10 * time.Millisecond
	// tellEach is how often it is told at most that what is worth knowing of a lane
	// has changed while it was up.
	tellEach = time.Minute
	// mostStill is how long the heart of a lane may stand still.
	mostStill = 2 * time.Second
	// firstBack and longestBack bound how long a lane that failed is left closed.
	// Whoever has been up for longestBack begins anew.
	firstBack, longestBack = time.Second, time.Minute
)

// SetOptions are what a Set is made of.
type SetOptions struct {
	memory.Options
	// Read takes a reading of the memory signals. It is called from the Set's
	// goroutine only.
	Read func(time.Time, *signal.Observations)
	Wait Waiter
	Poll *Poll
	// Sysfs is where the machine's CPUs are counted.
	Sysfs kernel.FS
	// Modes are those of the lanes by name; Auto is the default.
	Modes map[string]Mode
	// BPFFloor and BPFCeiling bound the sampler's period; 0 is its own default.
	BPFFloor, BPFCeiling time.Duration
	// Stall within StallWindow, of all tasks at once and on memory, is what the
	// PSI lane looks for.
	Stall, StallWindow time.Duration
	// Tasks counts with what the kernel counts; nil is without.
	Tasks Tasks
	// Quick is given the sampler to read from, as long as it is up. It may be nil.
	Quick *memory.Quick
	// Changed is told of each change of a lane's state, and, seldom, of why it is in
	// it, on the Set's goroutine.
	Changed func(Status)
	// Faults make lanes fail, by name. It is for tests.
	Faults map[string]*Fault
	// walkLimit is how long the sampler may walk; 0 is its own default.
	walkLimit time.Duration
}

// Set is all lanes together, and the watch over them. What polling saw crossed
// and a lane that covers it did not raise, or a heart that stands still,
// degrades the lane: it is closed, and opened again after a while.
type Set struct {
	o       SetOptions
	entries []*entry
	ring    *ring
	sampler *sampler
	events  *events
	stalls  *stalls
	reclaim *reclaim
	wake    chan struct{}
	start   time.Time
	// thorough is the last turn that looked at everything.
	thorough time.Time

	mu         sync.Mutex // of what follows, and of the entries' expectations
	thresholds []signal.Threshold
	rearmed    bool                // no lane knows them yet
	calm       bool                // the last turn was
	seen       signal.Observations // what polling read last, and when
	seenAt     time.Time
	statuses   []Status
	counts     Counts
	stalling   []Stall
}

// Counts are what lanes have counted since they were opened. What a lane that is
// not up would tell is nil.
type Counts struct {
	Sampler *bpf.Stats
	Limits  *LimitCounts
	ReclaimCounts
}

// NewSet returns a Set with all lanes closed.
func NewSet(o SetOptions) *Set {
	s := &Set{o: o, wake: make(chan struct{}, 1), start: time.Now()}
	s.ring = &ring{wait: s, victims: make(chan bpf.Victim, mostVictims)}
	s.sampler = &sampler{o: o, ring: s.ring}
	s.events = &events{o: o.Options, wait: s}
	s.stalls = &stalls{
		o: o, wait: s, poke: s.poke, condition: psi.Condition{Kind: psi.Full, Stall: o.Stall, Window: o.StallWindow},
	}
	s.reclaim = &reclaim{ring: s.ring}
	s.add(BPF, s.sampler)
	s.add(Memcg, &usage{o: o.Options, wait: s})
	s.add(Events, s.events)
	s.add(PSI, s.stalls)
	s.add(Reclaim, s.reclaim)
	if o.Tasks != nil {
		l := &forks{tasks: o.Tasks}
		l.raised = &s.add(Forks, l).raised
	}
	s.publish()
	return s
}

func (s *Set) add(name string, l lane) *entry {
	e := &entry{lane: l, name: name, mode: s.o.Modes[name], fault: s.o.Faults[name], state: Starting, since: time.Now()}
	if e.mode == Disabled {
		e.state, e.why = Off, "switched off in the configuration"
	}
	s.entries = append(s.entries, e)
	return e
}

// Arm sets the thresholds to watch. It may be called at any time.
func (s *Set) Arm(thresholds []signal.Threshold) {
	s.mu.Lock()
	s.thresholds, s.rearmed = slices.Clone(thresholds), true
	for _, e := range s.entries {
		e.forget() // until it knows the new marks
	}
	s.mu.Unlock()
	s.poke()
}

func (s *Set) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Open opens the lanes that are required. An error names one that can't be had.
func (s *Set) Open() error {
	now := time.Now()
	w := s.watched(now)
	var errs []error
	for _, e := range s.entries {
		if e.mode != Required {
			continue
		}
		s.open(e, now, w)
		if e.state != Up {
			errs = append(errs, fmt.Errorf("notification.%s is %s, but the lane can't be had: %s", e.name, Required, e.why))
		}
	}
	return errors.Join(errs...)
}

// Run opens the other lanes, which may take a while, and watches over all until
// ctx ends.
func (s *Set) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var last, due time.Time // the last turn, the next
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
			if earliest := last.Add(leastTurn); earliest.Before(due) {
				due = earliest
			}
		case <-timer.C:
		}
		if now := time.Now(); !now.Before(due) {
			wait := max(s.turn(now), leastTurn)
			last = time.Now()
			if wait == calmTurn && s.sound() {
				wait = max(pace.Together(last, calmTurn), leastTurn)
			}
			due = last.Add(wait)
		}
		timer.Reset(time.Until(due))
	}
}

// sound reports whether no lane is degraded, which has a time of its own to be
// opened again.
func (s *Set) sound() bool {
	return !slices.ContainsFunc(s.entries, func(e *entry) bool { return e.state == Degraded })
}

// Close closes all lanes. Run must have returned.
func (s *Set) Close() error {
	var errs []error
	for _, e := range s.entries {
		if e.state == Up {
			errs = append(errs, e.close())
		}
	}
	return errors.Join(errs...)
}

// Statuses tells how the lanes stand, polling last.
func (s *Set) Statuses(now time.Time) []Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := append(slices.Clone(s.statuses), s.o.Poll.Status(now))
	for i, e := range s.entries {
		list[i].Raised = e.raised.Load()
	}
	return list
}

// Counts returns what the lanes have counted, as of the last look at them.
func (s *Set) Counts() Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts
}

// Victims tells of the processes that the kernel's OOM killer takes.
func (s *Set) Victims() <-chan bpf.Victim { return s.ring.victims }

// Follow names the cgroups of the containers that are to be watched over. It may
// be called at any time; the map belongs to the Set then.
func (s *Set) Follow(containers map[string]bool) {
	s.events.wanted.Store(&containers)
	s.poke()
}

// ReclaimStalls reads for how long the tasks of each cgroup, by its id, have
// stalled in reclaim. It is empty where the lane is not up.
func (s *Set) ReclaimStalls() (map[uint64]bpf.Stall, error) { return s.reclaim.stalls() }

// Stalls tells where stalls on memory go on.
func (s *Set) Stalls() []Stall {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stalling
}

func (s *Set) watched(now time.Time) *watched {
	w := &watched{calm: !s.busy(now) && now.Sub(s.thorough) < thoroughEach}
	s.mu.Lock()
	w.thresholds, w.observed = s.thresholds, s.seen
	w.calm = w.calm && !s.rearmed && now.Sub(s.seenAt) < seenLasts && !near(w.thresholds, &w.observed)
	s.calm, s.rearmed = w.calm, false
	s.mu.Unlock()
	if !w.calm {
		s.thorough = now
		s.o.Read(now, &w.observed)
	}
	return w
}

// busy reports whether a lane has told of something of late.
func (s *Set) busy(now time.Time) bool {
	return slices.ContainsFunc(s.entries, func(e *entry) bool {
		at := e.heardAt.Load()
		return at != 0 && now.Sub(s.start.Add(time.Duration(at))) < busyFor
	})
}

// turn looks after all lanes, and returns when to do so again.
func (s *Set) turn(now time.Time) time.Duration {
	w := s.watched(now)
	wait := calmTurn
	if near(w.thresholds, &w.observed) {
		wait = busyTurn
	}
	for _, e := range s.entries {
		switch e.state {
		case Up:
			if err := s.tend(e, now, w); err != nil {
				if errors.Is(err, errMissed) {
					e.missed++
				}
				s.fail(e, now, err)
			}
		case Starting:
			s.open(e, now, w)
		case Degraded:
			if !now.Before(e.retry) {
				e.reopened++
				s.open(e, now, w)
			}
		}
		if e.state == Degraded {
			wait = min(wait, max(e.retry.Sub(now), 0))
		}
	}
	if s.busy(now) {
		wait = min(wait, busyTurn)
	}
	wait = min(wait, s.judge(now))
	s.o.Poll.Relax(s.covered(w))
	s.publish()
	return wait
}

// near reports whether a memory signal is so near to a mark, or below it, that
// what lanes have armed has to be right.
func near(thresholds []signal.Threshold, observed *signal.Observations) bool {
	const share = 16
	for i := range thresholds {
		t := &thresholds[i]
		o := &observed[t.Signal]
		if t.Signal.IsMemory() && o.Status == signal.Observed && o.Available-t.Value.Amount(o.Capacity) < o.Capacity/share {
			return true
		}
	}
	return false
}

func (s *Set) open(e *entry, now time.Time, w *watched) {
	err := e.fault.open()
	if err == nil {
		anew := *w
		anew.calm = false
		err = e.open(now, &anew)
	}
	now = time.Now() // it may have taken long
	if err != nil {
		_ = e.close() // what it had opened, of which the error tells
		if never(err) {
			s.set(e, now, Unavailable, err.Error())
			return
		}
		s.backOff(e, now, err)
		return
	}
	s.set(e, now, Up, "")
	e.beaten, e.noted, e.notedAt = now, e.note(), now
	s.learn(e)
	s.witness(e, now)
}

func (s *Set) tend(e *entry, now time.Time, w *watched) error {
	if err := e.tend(now, w); err != nil {
		return err
	}
	s.learn(e)
	s.witness(e, now)
	s.remark(e, now)
	l, ok := e.lane.(periodic)
	if !ok {
		return nil
	}
	if n := l.beat(); n != e.beatNow && !e.fault.still() {
		e.beatNow, e.beaten = n, now
	}
	if still := now.Sub(e.beaten); still > mostStill {
		return fmt.Errorf("its heart has stood still for %v", still.Round(time.Millisecond))
	}
	return nil
}

// remark tells of what has come to be worth knowing of a lane that is up.
func (s *Set) remark(e *entry, now time.Time) {
	note := e.note()
	if note == e.noted || now.Sub(e.notedAt) < tellEach {
		return
	}
	e.noted, e.notedAt = note, now
	if s.o.Changed != nil {
		s.o.Changed(e.status())
	}
}

// fail closes a lane that was up.
func (s *Set) fail(e *entry, now time.Time, why error) {
	if now.Sub(e.since) >= longestBack {
		e.delay = 0
	}
	if err := e.close(); err != nil {
		why = fmt.Errorf("%w; and its closing failed: %w", why, err)
	}
	s.backOff(e, now, why)
}

func (s *Set) backOff(e *entry, now time.Time, why error) {
	e.delay = min(max(2*e.delay, firstBack), longestBack)
	e.retry = now.Add(e.delay)
	s.mu.Lock()
	e.forget()
	s.mu.Unlock()
	s.set(e, now, Degraded, why.Error())
}

func (s *Set) set(e *entry, now time.Time, state State, why string) {
	if e.state == state && e.why == why {
		return
	}
	e.state, e.why, e.since = state, why, now
	s.publish()
	if s.o.Changed != nil {
		s.o.Changed(e.status())
	}
}

func (s *Set) publish() {
	var list []Status
	for _, e := range s.entries {
		list = append(list, e.status())
	}
	var counts Counts
	var stalling []Stall
	if s.up(BPF) {
		stats := s.sampler.stats
		counts.Sampler = &stats
	}
	if s.up(Events) {
		limits := s.events.totals
		counts.Limits = &limits
	}
	if s.up(PSI) {
		stalling = s.stalls.now()
	}
	if s.up(Reclaim) {
		counts.ReclaimCounts = s.reclaim.last
	}
	s.mu.Lock()
	s.statuses, s.counts, s.stalling = list, counts, stalling
	s.mu.Unlock()
}

func (s *Set) up(name string) bool {
	return slices.ContainsFunc(s.entries, func(e *entry) bool { return e.name == name && e.state == Up })
}
