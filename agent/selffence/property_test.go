package selffence

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

const (
	simTimeout = 60 * second
	simTick    = second
	// simFeed is how often the feeding thread looks.
	simFeed = simTimeout / 3
)

// sim is one node with its watchdog, evictd, evictd-kube and the API server, which all may fail.
type sim struct {
	rand *rand.Rand
	now  time.Duration

	// The API server's advert and since when it is unchanged.
	advert    simAdvert
	changedAt time.Duration
	inFlight  []simWrite
	reachable bool

	// The watchdog: fires at deadline if armed.
	armed    bool
	timeout  time.Duration
	deadline time.Duration

	// evictd; nil if it does not run.
	state     *State
	open      bool // the device
	feedUntil time.Duration
	nextFeed  time.Duration
	stopped   time.Duration // SIGSTOP until then
	looked    bool          // the feeding thread was stopped between its look at the clock and the write
	stop      bool
	accepted  []uint64 // not yet seen by Step
	saved     *State
	steps     Inputs

	ended bool // the watchdog has fired
	log   []string
}

type simAdvert struct {
	number uint64
	armed  bool
}

// simWrite is a request of evictd-kube that the API server applies, or not, at a later time.
type simWrite struct {
	advert, expected simAdvert
	at               time.Duration
	answered         bool // the answer is not lost
}

func (s *sim) note(format string, args ...any) {
	s.log = append(s.log, fmt.Sprintf("%s: ", s.now)+fmt.Sprintf(format, args...))
}

// api applies the requests that arrive now: each tests the value that it replaces.
func (s *sim) api() {
	rest := s.inFlight[:0]
	for _, w := range s.inFlight {
		switch {
		case w.at > s.now:
			rest = append(rest, w)
		case w.expected != s.advert:
		default:
			s.advert, s.changedAt = w.advert, s.now
			s.note("accepted %+v", w.advert)
			if w.answered && s.state != nil {
				s.accepted = append(s.accepted, w.advert.number)
			}
		}
	}
	s.inFlight = rest
}

func (s *sim) feed() { s.deadline = s.now + s.timeout }

// thread is evictd's feeding thread.
func (s *sim) thread() {
	switch {
	case s.looked: // it goes on where it was stopped
		s.looked = false
		s.feed()
		if Late(s.feedUntil, s.now) {
			s.timeout = LateTimeout
			s.feed()
		}
	case s.now < s.nextFeed || s.now >= s.feedUntil:
		return
	case s.rand.IntN(200) == 0: // it is stopped between the look and the write
		s.looked = true
		s.stopped = s.now + time.Duration(1+s.rand.IntN(59))*second
		return
	default:
		s.feed()
	}
	s.nextFeed = s.now + simFeed
}

// evictd does a step of evictd's slow part.
func (s *sim) evictd() {
	in := s.steps
	s.steps = Inputs{}
	in.Stop = s.stop
	if len(s.accepted) > 0 {
		in.Accepted, s.accepted = s.accepted[0], s.accepted[1:]
	}
	next, o := Step(*s.state, settings, in, s.now)
	s.state = &next
	s.saved = new(next)
	s.feedUntil = o.FeedUntil
	if o.Disarm {
		s.note("disarm")
		s.armed, s.open = false, false
	}
	if o.Open {
		if s.rand.IntN(10) == 0 {
			s.steps.OpenFailed = true
		} else {
			s.note("open")
			s.armed, s.open, s.steps.Opened, s.timeout = true, true, true, simTimeout
			s.feed()
			s.nextFeed = s.now + simFeed
		}
	}
	if o.Request && s.reachable {
		delay := time.Duration(s.rand.IntN(3)) * second
		if s.rand.IntN(10) == 0 { // the network delivers it much later
			delay = time.Duration(s.rand.IntN(200)) * second
		}
		s.inFlight = append(s.inFlight, simWrite{simAdvert{o.Number, o.Armed}, s.advert, s.now + delay, s.rand.IntN(8) > 0})
	}
}

// end ends evictd's process without disarming. The kernel closes the device, which feeds it once.
func (s *sim) end() {
	s.note("evictd ends")
	if s.open {
		s.feed()
	}
	s.open, s.state, s.looked, s.accepted, s.steps = false, nil, false, nil, Inputs{}
	if s.rand.IntN(10) == 0 {
		s.note("saved state is lost")
		s.saved = nil
	}
}

// events are failures and restarts.
func (s *sim) events() {
	if s.rand.IntN(120) == 0 {
		s.reachable = !s.reachable
		s.note("reachable %t", s.reachable)
	}
	switch {
	case s.state == nil && s.rand.IntN(5) == 0:
		s.state, s.stop = new(Restore(s.saved, s.now)), false
		s.note("evictd starts")
	case s.state != nil && s.rand.IntN(150) == 0:
		s.end()
	case s.state != nil && s.rand.IntN(150) == 0:
		s.stopped = s.now + time.Duration(s.rand.IntN(100))*second
	case s.state != nil && s.rand.IntN(200) == 0:
		s.note("stop")
		s.stop = true
	}
}

// tick moves the time on, and returns what is wrong.
func (s *sim) tick() string {
	s.now += simTick
	if s.armed && s.now >= s.deadline {
		s.note("fires")
		s.ended = true
		return ""
	}
	s.events()
	s.api()
	if s.state != nil && s.now >= s.stopped {
		s.evictd()
		s.thread()
		if s.stop && s.state.Phase == Disarmed {
			s.end()
		}
	}
	// The bound without what it has in reserve: the period of renewals and the margin.
	bound := settings.FeedGap + 2*simTimeout + 2*simTick
	if s.advert.armed && s.now-s.changedAt > bound {
		return fmt.Sprintf("the armed advert %d is unchanged since %s and the machine runs", s.advert.number, s.changedAt)
	}
	return ""
}

// Property: when an armed advert is unchanged for its bound, the watchdog has fired.
func TestBoundHolds(t *testing.T) {
	runs, fired, disarmed := 20_000, 0, 0
	if testing.Short() {
		runs = 2_000
	}
	for seed := range uint64(runs) {
		s := sim{rand: rand.New(rand.NewPCG(seed, 14)), now: 100 * second, reachable: true}
		for range 1500 {
			if wrong := s.tick(); wrong != "" {
				t.Fatalf("seed %d at %s: %s\n%s", seed, s.now, wrong, strings.Join(s.log, "\n"))
			}
			if s.ended {
				fired++
				break
			}
		}
		if strings.Contains(strings.Join(s.log, "\n"), "disarm") {
			disarmed++
		}
	}
	if fired < runs/20 || disarmed < runs/20 {
		t.Errorf("of %d runs the watchdog fired in %d and was disarmed in %d; the simulation is too friendly", runs, fired, disarmed)
	}
}
