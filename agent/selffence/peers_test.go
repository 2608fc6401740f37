package selffence

import (
	"testing"
	"time"
)

// With Peers the watchdog is fed while a majority allows it, and a device that an earlier run has armed is opened.
func TestFedByPeers(t *testing.T) {
	with := settings
	with.Peers = true
	saved := &State{Phase: Armed, Number: 95000, Accepted: 95 * second, HasAccepted: true, PeersUntil: 125 * second}
	s := Restore(saved, 120*second)
	for _, row := range []struct {
		at    time.Duration
		in    Inputs
		want  string
		peers bool
	}{
		{120 * second, Inputs{}, "open, feed until 2m5s", true},
		{120 * second, Inputs{Opened: true}, "request 120000 armed=true, feed until 2m5s", true},
		{124 * second, Inputs{PeersUntil: 140 * second}, "feed until 2m20s", true},
		{125 * second, Inputs{PeersUntil: 130 * second}, "feed until 2m20s", true}, // never less than before
		{126 * second, Inputs{PeersUntil: 999 * second}, "feed until 2m26s", true}, // never for long
		{129 * second, Inputs{Accepted: 120000}, "feed until 2m26s", false},
		{130 * second, Inputs{}, "request 130000 armed=true, feed until 2m26s", false},
		{141 * second, Inputs{Accepted: 130000}, "request 141000 armed=true, feed until 2m30s", false},
		{150 * second, Inputs{}, "feed until 2m30s", false},
	} {
		var o Orders
		s, o = Step(s, with, row.in, row.at)
		if got := orders(o); got != row.want || s.ByPeers(with, row.at) != row.peers {
			t.Errorf("at %s with %+v: orders %q, by peers %t; want %q, %t", row.at, row.in, got, s.ByPeers(with, row.at), row.want, row.peers)
		}
	}
}

// A majority allows feeding only if it is of a list that is no larger than that of each advert which the API server may
// have: a reader knows the list by the advert.
func TestPeersList(t *testing.T) {
	with := settings
	with.Peers = true
	s := Restore(&State{Phase: Armed, Number: 95000, Accepted: 95 * second, HasAccepted: true, PeerNodes: 5}, 100*second)
	for _, row := range []struct {
		at    time.Duration
		in    Inputs
		until time.Duration // by peers
	}{
		{100 * second, Inputs{Opened: true, PeersUntil: 101 * second, ListNodes: 5}, 101 * second},
		{101 * second, Inputs{PeersUntil: 110 * second, ListNodes: 6}, 101 * second}, // larger than the advert's
		{111 * second, Inputs{ListNodes: 7}, 101 * second},                           // requests an advert with 7
		{112 * second, Inputs{PeersUntil: 120 * second, ListNodes: 7}, 101 * second}, // not known to be accepted
		{113 * second, Inputs{Accepted: 111000, ListNodes: 7}, 101 * second},
		{114 * second, Inputs{PeersUntil: 121 * second, ListNodes: 7}, 121 * second},
		{122 * second, Inputs{ListNodes: 3}, 121 * second}, // requests one with 3, which may be accepted
		{123 * second, Inputs{PeersUntil: 130 * second, ListNodes: 7}, 121 * second},
		{124 * second, Inputs{PeersUntil: 131 * second, ListNodes: 3}, 131 * second},
		{133 * second, Inputs{ListNodes: 4}, 131 * second},
		{134 * second, Inputs{Accepted: 122000, PeersUntil: 140 * second, ListNodes: 4}, 131 * second}, // that with 4 is not
	} {
		var o Orders
		s, o = Step(s, with, row.in, row.at)
		if s.PeersUntil != row.until || o.Request && o.PeerNodes != row.in.ListNodes {
			t.Errorf("at %s with %+v: by peers until %s, an advert with a list of %d; want %s", row.at, row.in, s.PeersUntil, o.PeerNodes, row.until)
		}
	}
}

// In an outage no advert is accepted. The first one of a run, and one without a list of evictd-kube, therefore has the list
// of those before: with none, the majority of the next list would allow nothing.
func TestRestartInOutage(t *testing.T) {
	with := settings
	with.Peers = true
	s := Restore(&State{Phase: Armed, Number: 1, Accepted: 10 * second, HasAccepted: true, PeersUntil: 110 * second, PeerNodes: 5}, 100*second)
	for _, in := range []Inputs{{}, {Opened: true}, {}} {
		var o Orders
		if s, o = Step(s, with, in, 100*second); o.Request && o.PeerNodes != 5 {
			t.Errorf("%+v: an advert with a list of %d; want 5", in, o.PeerNodes)
		}
	}
	if s, _ = Step(s, with, Inputs{PeersUntil: 125 * second, ListNodes: 5}, 105*second); s.PeersUntil != 125*second || s.Phase != Armed {
		t.Errorf("%s, by peers until %s; want armed, 2m5s", s.Phase, s.PeersUntil)
	}
	if s, _ = Step(s, with, Inputs{PeersUntil: 130 * second, ListNodes: 6}, 110*second); s.PeersUntil != 125*second {
		t.Errorf("by peers until %s because of a larger list", s.PeersUntil)
	}
}

// A majority of nodes opens no device before an advert was accepted, allows nothing without Peers, and is not kept if
// the state was not that of an armed device.
func TestPeersAllowNothing(t *testing.T) {
	with := settings
	with.Peers = true
	allowed := Inputs{PeersUntil: 110 * second}
	if s, o := Step(Restore(nil, 100*second), with, allowed, 100*second); o.Open || s.ByPeers(with, 100*second) {
		t.Errorf("orders %q before an advert was accepted", orders(o))
	}
	armed := State{Phase: Armed, Number: 1, Accepted: 50 * second, HasAccepted: true, PeersUntil: 110 * second}
	if _, o := Step(armed, settings, allowed, 100*second); o.FeedUntil > 70*second {
		t.Errorf("orders %q without Peers", orders(o))
	}
	preparing := State{Phase: Preparing, Accepted: 50 * second, HasAccepted: true, PeersUntil: 110 * second}
	if _, o := Step(Restore(&preparing, 100*second), with, allowed, 100*second); o.Open {
		t.Errorf("orders %q after a run that had not armed it", orders(o))
	}
}

func TestCount(t *testing.T) {
	const now = 1000 * second
	for _, test := range []struct {
		count       Count
		valid, more bool
		until       time.Duration
	}{
		{Count{CannotReach: 3, Nodes: 5, At: now}, true, true, now + PeersValid},
		{Count{CannotReach: 2, Nodes: 4, At: now}, true, false, 0},
		{Count{CannotReach: 3, Nodes: 4, At: now - 5*second}, true, true, now - 5*second + PeersValid},
		{Count{CannotReach: 3, Nodes: 4, At: now + second}, true, true, 0},
		{Count{CannotReach: 3, Nodes: 4}, true, true, 0},
		{Count{CannotReach: 3, Nodes: 4, At: now, ListAge: MaxListAge}, true, false, 0},
		{Count{CannotReach: 3, Nodes: 4, At: now, ListAge: -1}, true, false, 0},
		{Count{}, true, false, 0},
		{Count{CannotReach: 1, At: now}, false, true, now + PeersValid},
		{Count{CannotReach: -1, Nodes: 1}, false, false, 0},
		{Count{CannotReach: 1, Nodes: MaxNodes + 1}, false, false, 0},
		{Count{Nodes: 1, At: -1}, false, false, 0},
	} {
		if err := test.count.Check(); (err == nil) != test.valid {
			t.Errorf("%+v.Check() = %v; want valid: %t", test.count, err, test.valid)
		}
		if more, until := test.count.Majority(), test.count.Until(now); more != test.more || until != test.until {
			t.Errorf("%+v: majority %t until %s; want %t until %s", test.count, more, until, test.more, test.until)
		}
	}
}

func TestReach(t *testing.T) {
	r := Reach{Votes: true, Renew: 20 * second, Unanswered: 80 * second, Waiting: AskInterval}
	for _, test := range []struct {
		change       func(*Reach)
		cannot, asks bool
	}{
		{func(*Reach) {}, true, true},
		{func(r *Reach) { r.Unanswered -= second }, false, true},
		{func(r *Reach) { r.Renew += second }, false, true},
		{func(r *Reach) { r.Waiting -= second }, true, false},
		{func(r *Reach) { r.Votes = false }, false, false},
	} {
		got := r
		test.change(&got)
		if got.Cannot() != test.cannot || got.Asks() != test.asks {
			t.Errorf("%+v: cannot %t, asks %t; want %t, %t", got, got.Cannot(), got.Asks(), test.cannot, test.asks)
		}
	}
}
