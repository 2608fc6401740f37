package lanes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/evictd/evictd/agent/memory"
	"github.com/evictd/evictd/agent/pollinterval"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/bpf"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/psi"
)

// SetOptions configure a Set.
type SetOptions struct {
	memory.Options
	// Read reads the memory signals. Only the Set's goroutine calls it.
	Read func(time.Time, *signal.Observations)
	Wait Waiter
	// Poll is the lane of polling. The Set sets whether other lanes cover its thresholds
	// ([Poll.SetCovered]) and reports its status, but does not run it.
	Poll *Poll
	// Sysfs is where the online CPUs are read.
	Sysfs kernel.FS
	// Modes are the modes of the lanes by name; the default is Auto.
	Modes map[string]Mode
	// BPFMinPeriod and BPFMaxPeriod bound the sampler's interval; 0 is the default of
	// [bpf.Options].
	BPFMinPeriod, BPFMaxPeriod time.Duration
	// Stall and StallWindow are the condition of the PSI triggers: for so long within each
	// window, all tasks that could run stall on memory ("full").
	Stall, StallWindow time.Duration
	// Tasks is the observer of pid.available, to which the forks lane gives the kernel's count
	// of tasks while it is up. Nil disables the lane.
	Tasks Tasks
	// SamplerReader is the reader to which the bpf lane gives its sampler while it is up. It may
	// be nil.
	SamplerReader *memory.SamplerReader
	// Changed is called on the Set's goroutine when a lane's state changes, and at most once
	// per reportInterval when its partial failure changes.
	Changed func(Status)

	// Only tests set the following fields. Faults make lanes fail, by name. walkLimit is
	// bpf.Options.WalkLimit.
	Faults    map[string]*Fault
	walkLimit time.Duration
}

// Set has all lanes but polling, and supervises them. A lane that missed a crossing that
// polling or its own samples saw, or that has stopped sampling, is degraded: closed, and
// opened again after a back-off. Polling runs on its own; see SetOptions.Poll.
type Set struct {
	o             SetOptions
	entries       []*entry
	ring          *ring
	sampler       *samplerLane
	events        *eventsLane
	psi           *psiLane
	reclaim       *reclaimLane
	wake          chan struct{}
	start         time.Time
	lastFullCheck time.Time // last reconcile that was not idle

	mu                sync.Mutex // guards the fields below, and those of the entries
	thresholds        []signal.Threshold
	thresholdsChanged bool                // no lane has them yet
	idle              bool                // laneInput.idle of the last reconcile
	lastPoll          signal.Observations // last reading of polling
	lastPollAt        time.Time           // when that was
	statuses          []Status            // of entries, in the same order
	counts            Counts
	psiStalls         []Stall // that are sustained
}

// Counts has what lanes have counted since they were opened. The fields of a lane that is not
// up are nil.
type Counts struct {
	Sampler *bpf.Stats
	Limits  *LimitCounts
	ReclaimCounts
}

// NewSet returns a Set with all lanes closed.
func NewSet(o SetOptions) *Set {
	s := &Set{o: o, wake: make(chan struct{}, 1), start: time.Now()}
	s.ring = &ring{wait: s, victims: make(chan bpf.Victim, maxQueuedVictims)}
	s.sampler = &samplerLane{o: o, ring: s.ring}
	s.events = &eventsLane{o: o.Options, wait: s}
	s.psi = &psiLane{
		o: o, wait: s, notify: s.notify, condition: psi.Condition{Kind: psi.Full, Stall: o.Stall, Window: o.StallWindow},
	}
	s.reclaim = &reclaimLane{ring: s.ring}
	s.add(BPF, s.sampler)
	s.add(Memcg, &memcgLane{o: o.Options, wait: s})
	s.add(Events, s.events)
	s.add(PSI, s.psi)
	s.add(Reclaim, s.reclaim)
	if o.Tasks != nil {
		l := &forksLane{tasks: o.Tasks}
		l.alarms = &s.add(Forks, l).alarms
	}
	s.publish()
	return s
}

func (s *Set) add(name string, l lane) *entry {
	e := &entry{lane: l, name: name, mode: s.o.Modes[name], fault: s.o.Faults[name], state: Starting, since: time.Now()}
	if e.mode == Disabled {
		e.state, e.reason = Off, "disabled in the configuration"
	}
	s.entries = append(s.entries, e)
	return e
}

// Arm sets the thresholds to watch. It may be called at any time.
func (s *Set) Arm(thresholds []signal.Threshold) {
	s.mu.Lock()
	s.thresholds, s.thresholdsChanged = slices.Clone(thresholds), true
	for _, e := range s.entries {
		e.resetExpectations() // until it has the new thresholds
	}
	s.mu.Unlock()
	s.notify()
}

func (s *Set) notify() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Open opens the lanes that are required. The error names each that is not up.
func (s *Set) Open() error {
	now := time.Now()
	in := s.input(now)
	var errs []error
	for _, e := range s.entries {
		if e.mode != Required {
			continue
		}
		s.open(context.Background(), e, now, in)
		if e.state != Up {
			errs = append(errs, fmt.Errorf("notification.%s is %s, but the lane is not available: %s", e.name, Required, e.reason))
		}
	}
	return errors.Join(errs...)
}

// Run opens the other lanes, which may take seconds, and supervises all until ctx ends.
func (s *Set) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var last, due time.Time // end of the last reconcile, start of the next
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
			if earliest := last.Add(minInterval); earliest.Before(due) {
				due = earliest
			}
		case <-timer.C:
		}
		if now := time.Now(); !now.Before(due) {
			wait := max(s.reconcileAll(ctx, now), minInterval)
			last = time.Now()
			if wait == idleInterval && !s.anyDegraded() {
				wait = max(pollinterval.AlignedWait(last, idleInterval), minInterval)
			}
			due = last.Add(wait)
		}
		timer.Reset(time.Until(due))
	}
}

// anyDegraded reports whether a lane waits for the end of its back-off.
func (s *Set) anyDegraded() bool {
	return slices.ContainsFunc(s.entries, func(e *entry) bool { return e.state == Degraded })
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

// Statuses returns the statuses of all lanes, and of polling as the last one.
func (s *Set) Statuses(now time.Time) []Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := append(slices.Clone(s.statuses), s.o.Poll.Status(now))
	for i, e := range s.entries { // s.statuses has the same order
		list[i].Alarms = e.alarms.Load()
	}
	return list
}

// Counts returns the counts of the lanes as of the last reconcile.
func (s *Set) Counts() Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts
}

// OOMVictims returns the channel of processes that the kernel's OOM killer kills.
func (s *Set) OOMVictims() <-chan bpf.Victim { return s.ring.victims }

// FollowContainers sets the cgroups of the containers whose limits are counted. It may be
// called at any time. The Set takes over the map.
func (s *Set) FollowContainers(containers map[string]bool) {
	s.events.wanted.Store(&containers)
	s.notify()
}

// ReclaimStalls returns for how long the tasks of each cgroup, by its id, have stalled in
// direct reclaim since the reclaim lane was opened. It is empty if that lane is not up.
func (s *Set) ReclaimStalls() (map[uint64]bpf.Stall, error) { return s.reclaim.directReclaimStalls() }

// Stalls returns the sustained stalls on memory that the psi lane has found. It is empty if
// that lane is not up.
func (s *Set) Stalls() []Stall {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.psiStalls
}
