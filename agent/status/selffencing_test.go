package status

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/selffence"
	"github.com/evictd/evictd/agent/selffence/driver"
)

func TestSelfFencingStatus(t *testing.T) {
	fed := driver.Status{
		Device: "/dev/watchdog", Armed: true, Identity: "iTCO_wdt", Timeout: time.Minute, SinceFed: 12 * time.Second, SinceAccepted: 90 * time.Second,
		FedBecause: driver.FedByPeers, ResetIn: 48 * time.Second, Peers: true, Count: selffence.Count{CannotReach: 3, Nodes: 5, ListAge: 4 * time.Minute},
	}
	starved, old, lost := fed, fed, fed
	starved.FedBecause, old.Count.ListAge, lost.Count = driver.FedByNothing, time.Hour, selffence.Count{ListAge: -1}
	for _, tt := range []struct {
		name     string
		s        driver.Status
		warnings []string
		reason   string // of the metrics
	}{
		{"fed", fed, nil, driver.FedByPeers},
		{"starved", starved, []string{"the watchdog is not fed: the API server accepts no advert; the machine is reset in 48 s"}, driver.FedByNothing},
		{"old list", old, []string{"evictd-kube's list of all nodes is 60 minutes old: it is used up to 360"}, driver.FedByPeers},
		{"no list", lost, []string{"evictd-kube has no list of all nodes: in an outage of the API server this node is reset"}, driver.FedByPeers},
		{"busy", driver.Status{Device: "/dev/watchdog", Failure: "busy"}, []string{"the node does not fence itself: busy"}, ""},
		{"dry run", driver.Status{Device: "/dev/watchdog", DryRun: true, Peers: true, Count: selffence.Count{ListAge: -1}}, nil, ""},
		{"off", driver.Status{}, nil, ""},
	} {
		if diff := cmp.Diff(tt.warnings, selfFencingWarnings(tt.s)); diff != "" {
			t.Errorf("%s: warnings differ (-want +got):\n%s", tt.name, diff)
		}
		b := &Backend{o: Options{SelfFencing: func() driver.Status { return tt.s }}}
		m := b.SelfFencingMetrics()
		for _, reason := range []string{driver.FedByAdvert, driver.FedByPeers, driver.FedByNothing} {
			if is, ok := m.FedBecause[reason]; !ok || is != (reason == tt.reason) {
				t.Errorf("%s: metrics %v; want %q", tt.name, m.FedBecause, tt.reason)
			}
		}
	}
	want := &control.SelfFencing{
		Device: "/dev/watchdog", Armed: true, Identity: "iTCO_wdt", TimeoutSeconds: 60, FedSeconds: new(12.0), AcceptedSeconds: new(90.0),
		FedBecause: "peers", ResetSeconds: new(48.0), Peers: &control.SelfFencingPeers{CannotReach: 3, Nodes: 5, ListAgeSeconds: new(240.0)},
	}
	if diff := cmp.Diff(want, selfFencingStatus(fed)); diff != "" {
		t.Errorf("status differs (-want +got):\n%s", diff)
	}
	if got := selfFencingStatus(driver.Status{SinceAccepted: -1}); got != nil {
		t.Errorf("status without a watchdog: %+v", got)
	}
}
