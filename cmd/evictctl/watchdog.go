package main

import (
	"fmt"

	"github.com/evictd/evictd/agent/control"
)

// watchdogLine describes the watchdog of a node that fences itself.
func watchdogLine(s *control.SelfFencing) string {
	text := s.Device
	switch {
	case s.DryRun:
		return text + ", not opened in dry run"
	case !s.Armed:
		text += ", not armed"
		if s.Failure != "" {
			text += ": " + s.Failure
		}
	default:
		text += fmt.Sprintf(" (%s), armed, %s since it was fed, timeout %s", s.Identity, seconds(value(s.FedSeconds)), seconds(s.TimeoutSeconds))
		if s.NoWayOut {
			text += ", nowayout"
		}
	}
	if s.AcceptedSeconds != nil {
		text += fmt.Sprintf("; last accepted advert %s ago", seconds(*s.AcceptedSeconds))
	} else {
		text += "; no advert accepted"
	}
	switch s.FedBecause {
	case "advert":
		text += "; fed because of the advert"
	case "peers":
		text += "; fed because a majority of nodes cannot reach the API server"
	case "nothing":
		text += fmt.Sprintf("; not fed, the machine is reset in %s", seconds(value(s.ResetSeconds)))
	}
	if p := s.Peers; p != nil {
		if p.ListAgeSeconds == nil {
			return text + "; peers: no list of nodes"
		}
		text += fmt.Sprintf("; peers: %d of %d cannot reach the API server, list %s old", p.CannotReach, p.Nodes, seconds(*p.ListAgeSeconds))
	}
	return text
}

// value returns a number that is known while the watchdog is armed.
func value(n *float64) float64 {
	if n == nil {
		return 0
	}
	return *n
}
