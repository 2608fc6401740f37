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
	Poll *Poll
	// Sysfs is where the online CPUs are read.
	Sysfs kernel.FS
	// Modes are the modes of the lanes by name; the default is Auto.
	Modes map[string]Mode
	// BPFMinPeriod and BPFMaxPeriod bound the sampler's interval; 0 is the sampler's default.
	BPFMinPeriod, BPFMaxPeriod time.Duration
	// Stall within StallWindow is the condition of the PSI triggers: all tasks stall on
	// memory at once.
	Stall, StallWindow time.Duration
	// Tasks uses the kernel's count of tasks; nil disables the forks lane.
	Tasks Tasks
	// SamplerReader is given the sampler while that is up. It may be nil.
	SamplerReader *memory.SamplerReader
	// Changed is called on the Set's goroutine when a lane's state changes, and at most once
	// per reportInterval when its partial failure changes.
	Changed func(Status)
	// Faults make lanes fail, by name, in tests.
	Faults map[string]*Fault
	// walkLimit bounds a walk of the sampler; 0 is its default.
	walkLimit time.Duration
}

// Set is all lanes but polling, and their supervision. A lane that missed a crossing that
// polling or its own samples saw, or that has stopped sampling, is degraded: closed, and
// opened again after a back-off.
type Set struct {
	o             SetOptions
	entries       []*entry
	ring          *ring
	sampler       *samplerLane
	events        *eventsLane
	stalls        *psiLane
	reclaim       *reclaimLane
	wake          chan struct{}
	start         time.Time
	lastFullCheck time.Time // last reconcile that was not idle

	mu                sync.Mutex // guards the fields below, and those of the entries
	thresholds        []signal.Threshold
	thresholdsChanged bool                // no lane has them yet
	idle              bool                // the last reconcile was
	lastPoll          signal.Observations // last reading of polling, and when
	lastPollAt        time.Time
	statuses          []Status
	counts            Counts
	ongoingStalls     []Stall
}

// Counts are what lanes have counted since they were opened. The fields of a lane that is
// not up are nil.
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
	s.stalls = &psiLane{
		o: o, wait: s, notify: s.notify, condition: psi.Condition{Kind: psi.Full, Stall: o.Stall, Window: o.StallWindow},
	}
	s.reclaim = &reclaimLane{ring: s.ring}
	s.add(BPF, s.sampler)
	s.add(Memcg, &memcgLane{o: o.Options, wait: s})
	s.add(Events, s.events)
	s.add(PSI, s.stalls)
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
	var last, due time.Time // of the last reconcile, of the next
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
			if wait == idleInterval && s.noneDegraded() {
				wait = max(pollinterval.AlignedWait(last, idleInterval), minInterval)
			}
			due = last.Add(wait)
		}
		timer.Reset(time.Until(due))
	}
}

// noneDegraded reports whether no lane waits for its back-off.
func (s *Set) noneDegraded() bool {
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

// Statuses returns the statuses of all lanes, polling last.
func (s *Set) Statuses(now time.Time) []Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := append(slices.Clone(s.statuses), s.o.Poll.Status(now))
	for i, e := range s.entries {
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

// ReclaimStalls returns how long the tasks of each cgroup, by its id, have stalled in
// reclaim. It is empty if the lane is not up.
func (s *Set) ReclaimStalls() (map[uint64]bpf.Stall, error) { return s.reclaim.stalls() }

// Stalls returns the sustained stalls on memory.
func (s *Set) Stalls() []Stall {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ongoingStalls
}
