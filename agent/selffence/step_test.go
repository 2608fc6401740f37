package selffence

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

const second = time.Second

var settings = Settings{FeedGap: 20 * second, Renew: 10 * second}

// orders shows what Orders say.
func orders(o Orders) string {
	var parts []string
	if o.Disarm {
		parts = append(parts, "disarm")
	}
	if o.Open {
		parts = append(parts, "open")
	}
	if o.Request {
		parts = append(parts, fmt.Sprintf("request %d armed=%t", o.Number, o.Armed))
	}
	if o.FeedUntil > 0 {
		parts = append(parts, "feed until "+o.FeedUntil.String())
	}
	return strings.Join(parts, ", ")
}

type stepRow struct {
	at    time.Duration
	in    Inputs
	phase Phase
	want  string
}

func checkSteps(t *testing.T, s State, rows []stepRow) State {
	t.Helper()
	for _, row := range rows {
		var o Orders
		s, o = Step(s, settings, row.in, row.at)
		if got := orders(o); got != row.want || s.Phase != row.phase {
			t.Errorf("at %s with %+v: phase %s, orders %q; want %s, %q", row.at, row.in, s.Phase, got, row.phase, row.want)
		}
	}
	return s
}

func TestArmAndWithdraw(t *testing.T) {
	checkSteps(t, Restore(nil, 100*second), []stepRow{
		{100 * second, Inputs{}, Preparing, "request 100000 armed=false"},
		{105 * second, Inputs{Accepted: 99}, Preparing, ""}, // of another run
		{110 * second, Inputs{}, Preparing, "request 110000 armed=false"},
		{112 * second, Inputs{Accepted: 100000}, Preparing, "open, feed until 2m0s"},
		{112 * second, Inputs{Opened: true}, Armed, "request 112000 armed=true, feed until 2m0s"},
		{113 * second, Inputs{Accepted: 112000}, Armed, "feed until 2m12s"},
		{113 * second, Inputs{Accepted: 110000}, Armed, "feed until 2m12s"}, // late
		{122 * second, Inputs{}, Armed, "request 122000 armed=true, feed until 2m12s"},
		{123 * second, Inputs{Stop: true}, Withdrawing, "request 123000 armed=false, feed until 2m12s"},
		{124 * second, Inputs{Stop: true, Accepted: 122000}, Withdrawing, "feed until 2m22s"},
		{133 * second, Inputs{Stop: true}, Withdrawing, "request 133000 armed=false, feed until 2m22s"},
		{134 * second, Inputs{Stop: true, Accepted: 123000}, Disarmed, "disarm"},
		{144 * second, Inputs{Stop: true}, Disarmed, ""},
	})
}

func TestStopBeforeArmed(t *testing.T) {
	checkSteps(t, Restore(nil, 100*second), []stepRow{
		{100 * second, Inputs{}, Preparing, "request 100000 armed=false"},
		{101 * second, Inputs{Stop: true}, Disarmed, ""},
	})
}

func TestPermissionExpiredBeforeOpening(t *testing.T) {
	checkSteps(t, Restore(nil, 100*second), []stepRow{
		{100 * second, Inputs{}, Preparing, "request 100000 armed=false"},
		{120 * second, Inputs{Accepted: 100000}, Preparing, "request 120000 armed=false"},
	})
}

func TestOpenFails(t *testing.T) {
	checkSteps(t, Restore(nil, 100*second), []stepRow{
		{100 * second, Inputs{}, Preparing, "request 100000 armed=false"},
		{101 * second, Inputs{Accepted: 100000}, Preparing, "open, feed until 2m0s"},
		{101 * second, Inputs{OpenFailed: true}, Preparing, ""},
		{160 * second, Inputs{}, Preparing, ""},
		{161 * second, Inputs{}, Preparing, "request 161000 armed=false"},
		{162 * second, Inputs{Accepted: 161000}, Preparing, "open, feed until 3m1s"},
	})
	// The device that an earlier run had armed is open elsewhere: the armed advert is withdrawn at once.
	saved := &State{Phase: Armed, Number: 95000, Accepted: 95 * second, HasAccepted: true}
	checkSteps(t, Restore(saved, 100*second), []stepRow{
		{100 * second, Inputs{}, Preparing, "open, feed until 1m55s"},
		{100 * second, Inputs{OpenFailed: true}, Preparing, "request 100000 armed=false"},
	})
}

func TestRestart(t *testing.T) {
	for _, test := range []struct {
		name  string
		saved *State
		want  string
	}{
		{"no state", nil, "request 100000 armed=false"},
		{"armed", &State{Phase: Armed, Number: 95000, Accepted: 95 * second, HasAccepted: true}, "open, feed until 1m55s"},
		{"withdrawing", &State{Phase: Withdrawing, Number: 95000, Accepted: 95 * second, HasAccepted: true}, "open, feed until 1m55s"},
		{"expired", &State{Phase: Armed, Number: 95000, Accepted: 80 * second, HasAccepted: true}, "request 100000 armed=false"},
		{"preparing", &State{Phase: Preparing, Number: 95000, Accepted: 95 * second, HasAccepted: true}, "request 100000 armed=false"},
		{"disarmed", &State{Phase: Disarmed, Number: 95000, Accepted: 95 * second, HasAccepted: true}, "request 100000 armed=false"},
		{"number of the future", &State{Phase: Disarmed, Number: 100000}, "request 100001 armed=false"},
		{"time of the future", &State{Phase: Armed, Number: 95000, Accepted: 101 * second, HasAccepted: true}, "request 100000 armed=false"},
	} {
		if _, o := Step(Restore(test.saved, 100*second), settings, Inputs{}, 100*second); orders(o) != test.want {
			t.Errorf("%s: orders %q; want %q", test.name, orders(o), test.want)
		}
	}
}

func TestRequestsAreBounded(t *testing.T) {
	s := Restore(nil, 0)
	var o Orders
	for i := range 3 * maxRequests {
		s, o = Step(s, settings, Inputs{}, time.Duration(i)*settings.Renew)
		if !o.Request {
			t.Fatalf("request %d is missing", i)
		}
	}
	if len(s.requests) != maxRequests {
		t.Errorf("%d requests are remembered; want %d", len(s.requests), maxRequests)
	}
}
