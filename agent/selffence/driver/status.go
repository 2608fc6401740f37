package driver

import (
	"time"

	"github.com/evictd/evictd/agent/selffence"
)

// Why the watchdog is fed.
const (
	FedByAdvert  = "advert"
	FedByPeers   = "peers"
	FedByNothing = "nothing"
)

// fedBecause returns why the watchdog may be fed.
func fedBecause(s *selffence.State, set selffence.Settings, until, now time.Duration) string {
	switch {
	case now >= until:
		return FedByNothing
	case s.ByPeers(set, now):
		return FedByPeers
	}
	return FedByAdvert
}

// Status is the state of self-fencing.
type Status struct {
	// Device is the configured watchdog; "" if self-fencing is off.
	Device string
	DryRun bool
	// Armed is set while the device is open and runs. Identity and Timeout are its own. Failure is why it could not be
	// opened.
	Armed    bool
	Identity string
	Timeout  time.Duration
	NoWayOut bool
	Failure  string
	// SinceFed is the time since it was fed, and SinceAccepted that since the request of the last accepted advert;
	// negative if there was none.
	SinceFed, SinceAccepted time.Duration
	// FedBecause is why it is fed: advert, peers or nothing.
	FedBecause string
	// ResetIn is when it fires unless it is fed before.
	ResetIn time.Duration
	// Peers is set if a majority of nodes counts. Count is the last, and its ListAge the present one; negative if
	// there is no list.
	Peers bool
	Count selffence.Count
}

// shown is what Run publishes for Status.
type shown struct {
	armed    bool
	identity string
	timeout  time.Duration
	noWayOut bool
	failure  string
	state    selffence.State
	until    time.Duration
}

// publish publishes the state.
func (d *Driver) publish(until time.Duration) {
	s := shown{failure: d.failure, state: d.state, until: until}
	if o := d.opened; o != nil {
		s.armed, s.identity, s.timeout, s.noWayOut = true, o.identity, o.timeout, o.noWayOut
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.shown = s
}

// noteFed notes that the device is fed.
func (d *Driver) noteFed() {
	if now, err := d.options.Uptime(); err == nil {
		d.fedAt.Store(int64(now))
	}
}

// Status returns the present state.
func (d *Driver) Status() Status {
	s := Status{
		Device: d.options.Path, DryRun: d.options.DryRun, Peers: d.settings.Peers,
		SinceFed: -1, SinceAccepted: -1, FedBecause: FedByNothing,
	}
	now, err := d.options.Uptime()
	if err != nil || d.options.Path == "" {
		return s
	}
	d.mu.Lock()
	shown, count, at := d.shown, d.count, d.countedAt
	d.mu.Unlock()
	s.Armed, s.Identity, s.Timeout, s.NoWayOut, s.Failure = shown.armed, shown.identity, shown.timeout, shown.noWayOut, shown.failure
	if shown.state.HasAccepted {
		s.SinceAccepted = now - shown.state.Accepted
	}
	if s.Armed {
		fed := time.Duration(d.fedAt.Load())
		s.SinceFed, s.ResetIn = now-fed, max(0, fed+s.Timeout-now)
		s.FedBecause = fedBecause(&shown.state, d.settings, shown.until, now)
	}
	s.Count = count
	if now-count.At >= selffence.PeersValid {
		s.Count.CannotReach = 0
	}
	if at == 0 {
		s.Count.ListAge = -1
	} else if s.Count.ListAge >= 0 {
		s.Count.ListAge += now - at
	}
	return s
}
