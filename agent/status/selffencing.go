package status

import (
	"fmt"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/metrics"
	"github.com/evictd/evictd/agent/selffence"
	"github.com/evictd/evictd/agent/selffence/driver"
)

// oldList is the age of a list of all nodes from which on the status warns: it should be read every ten minutes.
const oldList = selffence.MaxListAge / 6

// selfFencingStatus describes self-fencing; nil if it is off.
func selfFencingStatus(s driver.Status) *control.SelfFencing {
	if s.Device == "" {
		return nil
	}
	c := &control.SelfFencing{Device: s.Device, DryRun: s.DryRun, Armed: s.Armed, Failure: s.Failure}
	if s.SinceAccepted >= 0 {
		c.AcceptedSeconds = new(s.SinceAccepted.Seconds())
	}
	if s.Armed {
		c.Identity, c.TimeoutSeconds, c.NoWayOut = s.Identity, s.Timeout.Seconds(), s.NoWayOut
		c.FedSeconds, c.ResetSeconds, c.FedBecause = new(s.SinceFed.Seconds()), new(s.ResetIn.Seconds()), s.FedBecause
	}
	if s.Peers {
		c.Peers = &control.SelfFencingPeers{CannotReach: s.Count.CannotReach, Nodes: s.Count.Nodes}
		if s.Count.ListAge >= 0 {
			c.Peers.ListAgeSeconds = new(s.Count.ListAge.Seconds())
		}
	}
	return c
}

// selfFencingWarnings returns what an operator must know about self-fencing.
func selfFencingWarnings(s driver.Status) (warnings []string) {
	if s.Device == "" || s.DryRun {
		return nil
	}
	switch {
	case !s.Armed && s.Failure != "":
		warnings = append(warnings, "the node does not fence itself: "+s.Failure)
	case s.Armed && s.FedBecause == driver.FedByNothing:
		warnings = append(warnings, fmt.Sprintf("the watchdog is not fed: the API server accepts no advert; the machine is reset in %.0f s", s.ResetIn.Seconds()))
	}
	switch {
	case !s.Peers:
	case s.Count.ListAge < 0:
		warnings = append(warnings, "evictd-kube has no list of all nodes: in an outage of the API server this node is reset")
	case s.Count.ListAge >= oldList:
		warnings = append(warnings, fmt.Sprintf("evictd-kube's list of all nodes is %.0f minutes old: it is used up to %.0f",
			s.Count.ListAge.Minutes(), selffence.MaxListAge.Minutes()))
	}
	return warnings
}

// SelfFencingMetrics returns the state of self-fencing for a scrape of the metrics.
func (b *Backend) SelfFencingMetrics() metrics.SelfFencing {
	s := b.o.SelfFencing()
	m := metrics.SelfFencing{
		Configured: s.Device != "" && !s.DryRun, Armed: s.Armed, Timeout: s.Timeout, SinceFed: s.SinceFed, SinceAccepted: s.SinceAccepted,
		Peers: s.Peers, PeersListAge: s.Count.ListAge, FedBecause: map[string]bool{},
	}
	for _, reason := range []string{driver.FedByAdvert, driver.FedByPeers, driver.FedByNothing} {
		m.FedBecause[reason] = s.Armed && reason == s.FedBecause
	}
	return m
}
