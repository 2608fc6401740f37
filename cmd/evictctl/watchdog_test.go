package main

import (
	"testing"

	"github.com/evictd/evictd/agent/control"
)

func TestWatchdogLine(t *testing.T) {
	armed := func(because string, change func(*control.SelfFencing)) control.SelfFencing {
		s := control.SelfFencing{
			Device: "/dev/watchdog", Armed: true, Identity: "iTCO_wdt", TimeoutSeconds: 60, FedSeconds: new(12.0), AcceptedSeconds: new(90.0),
			FedBecause: because, ResetSeconds: new(48.0),
		}
		if change != nil {
			change(&s)
		}
		return s
	}
	const common = "/dev/watchdog (iTCO_wdt), armed, 12s since it was fed, timeout 1m; last accepted advert 1m30s ago; "
	for _, tt := range []struct {
		want string
		s    control.SelfFencing
	}{
		{"/dev/watchdog, not opened in dry run", control.SelfFencing{Device: "/dev/watchdog", DryRun: true}},
		{"/dev/watchdog, not armed; no advert accepted", control.SelfFencing{Device: "/dev/watchdog"}},
		{"/dev/watchdog, not armed: busy; last accepted advert 3s ago",
			control.SelfFencing{Device: "/dev/watchdog", Failure: "busy", AcceptedSeconds: new(3.0)}},
		{common + "fed because of the advert", armed("advert", nil)},
		{common + "not fed, the machine is reset in 48s", armed("nothing", nil)},
		{common + "fed because a majority of nodes cannot reach the API server; peers: 3 of 5 cannot reach the API server, list 4m old",
			armed("peers", func(s *control.SelfFencing) {
				s.Peers = &control.SelfFencingPeers{CannotReach: 3, Nodes: 5, ListAgeSeconds: new(240.0)}
			})},
		{common + "fed because of the advert; peers: no list of nodes", armed("advert", func(s *control.SelfFencing) { s.Peers = &control.SelfFencingPeers{} })},
	} {
		if got := watchdogLine(&tt.s); got != tt.want {
			t.Errorf("watchdogLine(%+v) = %q; want %q", tt.s, got, tt.want)
		}
	}
}
