package fence

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// storm is a gate that the storm policy has closed; dryRun is one that the controller has.
var (
	storm  = Gate{Reason: ReasonTooManyUnhealthy, Message: "3 of 5 nodes are unhealthy; 50 % allow 2", Storm: true, Overridable: true}
	dryRun = Gate{Reason: "DryRun", Message: "dry run was switched on after the fence began"}
)

// gateAt scripts the gate.
func gateAt(s *simulation, at time.Duration, g Gate) {
	s.script[at] = func(s *simulation) { s.gate = g }
}

// untilProven is the timeline before the gate is closed at 6 s.
const untilProven = `
0s: open FenceOpened! quarantine=true
1ms: PowerDelayOver AttemptStarted
201ms: ActStarted! act=power-management-1-0-0=bmc-off
1.201s: ActEnded Proving
6.602s: OffProven StormHold!
`

// TestReleaseHeld checks the gate before the release, from a proof at 6.6 s on.
func TestReleaseHeld(t *testing.T) {
	for _, c := range []struct {
		name  string
		setup func(*simulation)
		want  string // after untilProven
	}{
		{"held, and released when the gate opens", func(s *simulation) {
			gateAt(s, 6*time.Second, storm)
			gateAt(s, 2*time.Hour, Gate{Open: true})
			s.until = 2*time.Hour + 2*time.Second
		}, `
2h0m0.2s: Releasing out-of-service=true
2h0m0.3s: delete=db-0
2h0m1.3s: Released out-of-service=false
`},
		{"dry run was switched on", func(s *simulation) {
			gateAt(s, 6*time.Second, dryRun)
			s.until = 2 * time.Hour
		}, ""},
		{"back on while the gate is closed", func(s *simulation) {
			gateAt(s, 6*time.Second, storm)
			s.script[20*time.Minute] = func(s *simulation) { s.devices["bmc"].on = true }
			s.until = 30 * time.Minute
		}, `
20m10.803s: ProofLost! Retrying
`},
		{"silent while the gate is closed: no failed attempt until it has been open for ProofTimeout", func(s *simulation) {
			gateAt(s, 6*time.Second, storm)
			s.script[10*time.Second] = func(s *simulation) { s.devices["bmc"].silent = s.at }
			gateAt(s, 20*time.Minute, Gate{Open: true})
			s.until = 21*time.Minute + 8*time.Second
		}, `
21m0s: NotProven!
`},
		{"Ready while the gate is closed", func(s *simulation) {
			gateAt(s, 6*time.Second, storm)
			s.script[time.Minute] = func(s *simulation) { s.boot("b2") }
			s.until = 5 * time.Minute
		}, `
1m0s: ProofLost! Retrying NodeReadyUnproven!
2m0s: NodeReturned Recovered quarantine=false
`},
		{"a storm that begins in the release does not stop it", func(s *simulation) {
			gateAt(s, 6*time.Second, Gate{Open: true})
			s.load.AttachmentsKnown = false
			gateAt(s, 7*time.Second, storm)
			s.script[time.Minute] = func(s *simulation) { s.load.AttachmentsKnown = true }
			s.until = 62 * time.Second
		}, `
6.803s: Releasing out-of-service=true
6.903s: delete=db-0
1m0s: Released out-of-service=false
`},
		{"confirmed in a storm", func(s *simulation) {
			gateAt(s, 6*time.Second, storm)
			s.script[time.Minute] = func(s *simulation) { s.node.ConfirmOff = fenceUID }
			s.until = 62 * time.Second
		}, `
1m0s: ConfirmedOff!
1m0.201s: Releasing out-of-service=true
1m0.301s: delete=db-0
1m1.301s: Released out-of-service=false
`},
		{"confirmed in dry run", func(s *simulation) {
			gateAt(s, 6*time.Second, dryRun)
			s.script[time.Minute] = func(s *simulation) { s.node.ConfirmOff = fenceUID }
			gateAt(s, 40*time.Minute, Gate{Open: true})
			s.until = 40*time.Minute + 4*time.Second
		}, `
1m0s: ConfirmedOff! StormHold!
40m0.2s: Releasing out-of-service=true
40m0.3s: delete=db-0
40m1.3s: Released out-of-service=false
`},
		{"restart while the gate is closed, which opens before the new controller looks", func(s *simulation) {
			gateAt(s, 6*time.Second, storm)
			s.script[30*time.Minute] = func(s *simulation) {
				s.restart()
				s.lease.UnchangedSince = begin // the grace period after a restart is over
				s.gate = Gate{Open: true}
			}
			s.until = 30*time.Minute + 2*time.Second
		}, `
30m0.2s: Releasing out-of-service=true
30m0.3s: delete=db-0
30m1.3s: Released out-of-service=false
`},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSimulation(t, powerPlan(level(true, "bmc")))
			c.setup(s)
			got := strings.Join(s.run(), "\n")
			want := strings.TrimSpace(untilProven + strings.TrimSpace(c.want))
			if strings.HasPrefix(c.name, "a storm that begins") {
				want = strings.Replace(want, " StormHold!", "", 1)
			}
			if got != want {
				t.Errorf("timeline:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

// TestReleaseNeedsRecentReading checks that an old reading of the state, as a new controller finds it after an outage,
// does not confirm a proof.
func TestReleaseNeedsRecentReading(t *testing.T) {
	proven := begin.Add(-10 * time.Minute)
	for _, c := range []struct {
		name           string
		started, ended time.Duration // before now
		opened         time.Duration // when the gate opened, before now; 0: it was never closed
		want           Phase
	}{
		{"just now", 200 * time.Millisecond, 0, 0, Releasing},
		{"two intervals ago", 10 * time.Second, 10 * time.Second, 0, Releasing},
		{"more than two intervals ago", 11 * time.Second, 10*time.Second + 1000, 0, OffProven},
		{"an hour ago", time.Hour, time.Hour, 0, OffProven},
		{"a slow one, after the gate opened", 25 * time.Second, 0, time.Minute, Releasing},
		{"a slow one, before the gate opened", 25 * time.Second, 0, 20 * time.Second, OffProven},
		{"before the gate opened, recent", 8 * time.Second, 7 * time.Second, 2 * time.Second, Releasing},
	} {
		s := newSimulation(t, powerPlan(level(true, "bmc")))
		state, _ := Open(s.node, s.lease, s.plan, false, proven)
		state.UID, state.Attempt = fenceUID, 1
		state.Step, state.Status, state.Phase, state.Since = PowerManagement, Running, OffProven, micro(begin)
		off := func(started, ended time.Time) Reading {
			return Reading{Device: "bmc", Power: PowerOff, UUID: uuid, Started: micro(started), Ended: micro(ended)}
		}
		state.Proof = &Proof{How: ByReadings, At: micro(proven.Add(-2 * time.Hour)), LeaseRenewed: micro(s.lease.Renewed),
			Readings: []Reading{off(proven, proven), off(proven, proven)}}
		state.Readings = []Reading{off(proven, proven), off(begin.Add(-c.started), begin.Add(-c.ended))}
		s.lease.UnchangedSince = begin.Add(-3 * time.Hour)
		if c.opened > 0 {
			meta.SetStatusCondition(&state.Conditions, metav1.Condition{Type: ConditionStormHold, Status: metav1.ConditionFalse,
				LastTransitionTime: metav1.NewTime(begin.Add(-c.opened))})
		}
		next, o := Step(state, Inputs{Node: s.node, Lease: s.lease, Load: s.load, Gate: Gate{Open: true}}, begin)
		if next.Phase != c.want || o.Taints.OutOfService != (c.want == Releasing) {
			t.Errorf("%s: phase %s, taints %+v; want %s", c.name, next.Phase, o.Taints, c.want)
		}
		if c.want == OffProven && c.ended > 0 && !slices.Contains(o.Read, "bmc") {
			t.Errorf("%s: read = %v; want a new reading", c.name, o.Read)
		}
	}
}

// TestHoldMessages checks how often the condition of a fence that waits is saved while the numbers change.
func TestHoldMessages(t *testing.T) {
	s := newSimulation(t, powerPlan(level(true, "bmc")))
	s.gate = storm
	s.until = 30 * time.Minute
	var last, events int
	var message string
	s.check = func(_ Inputs, o Orders) {
		c := meta.FindStatusCondition(s.state.Conditions, ConditionStormHold)
		if c == nil {
			return
		}
		if c.Message != message {
			last++
			message = c.Message
		}
		for _, e := range o.Events {
			if e.Reason == ConditionStormHold {
				events++
			}
		}
		s.gate.Message = fmt.Sprintf("%v", s.at)
		if s.at > 29*time.Minute {
			s.gate.Reason = ReasonCooldown
		}
	}
	s.run()
	if last < 25 || last > 32 || events != 2 {
		t.Errorf("message changed %d times in 30 min, with %d events; want each minute, and one event for each of 2 reasons", last, events)
	}
}

// TestHoldStopsTheTime checks that the time in which the gate is closed does not count in the time for all attempts.
func TestHoldStopsTheTime(t *testing.T) {
	s := newSimulation(t, powerPlan(level(true, "bmc")))
	s.devices["bmc"].refuses = true
	gateAt(s, 70*time.Second, storm) // between the first attempt and the second
	gateAt(s, 3*time.Hour, Gate{Open: true})
	s.script[3*time.Hour+30*time.Second] = func(s *simulation) { s.devices["bmc"].refuses = false }
	s.until = 4 * time.Hour
	s.run()
	if s.state.is(ConditionGaveUp) || s.state.Result != Recovered {
		t.Errorf("gave up, or not fenced, after the gate was closed for 3 h:\n%s", strings.Join(s.log, "\n"))
	}
}

// TestRecordStorm checks what Step records of a gate, and that it survives JSON.
func TestRecordStorm(t *testing.T) {
	s := newSimulation(t, powerPlan(level(true, "bmc")))
	until, full := begin.Add(6*time.Minute), begin.Add(10*time.Minute)
	s.gate = storm
	s.gate.StormUntil = until
	gateAt(s, time.Minute, Gate{Open: true, RateFull: full})
	s.script[62*time.Second] = func(s *simulation) {
		if got, want := s.state.Storm.Started, micro(begin.Add(time.Minute)); !got.Equal(&want) {
			t.Errorf("Started = %v; want when the first attempt began", got)
		}
		s.gate.RateFull = begin.Add(time.Hour) // it has begun: no further token
	}
	s.until = 2 * time.Minute
	s.run()
	if got := s.state.Storm; !got.Until.Time.Equal(until) || !got.RateFull.Time.Equal(full) {
		t.Errorf("Storm = %+v; want until %v, full %v", got, until, full)
	}

	dry := newSimulation(t, powerPlan(level(true, "bmc")))
	dry.dryRun, dry.gate, dry.until = true, Gate{Open: true, RateFull: full}, time.Minute
	dry.run()
	if got := dry.state.Storm; !got.Started.IsZero() || !got.RateFull.IsZero() {
		t.Errorf("Storm of a dry run = %+v; want no start", got)
	}
}

// TestStartedAgain checks that a fence which gave up its place, and acts again, goes after those that began before.
func TestStartedAgain(t *testing.T) {
	s := newSimulation(t, powerPlan(level(true, "bmc")))
	s.devices["bmc"].silent, s.devices["bmc"].answers = 0, 20*time.Minute
	s.until = 21 * time.Minute
	s.run()
	if got := s.state.Storm.Started.Sub(begin); got < 20*time.Minute {
		t.Errorf("Started = %v; want after the device answered again at 20 min", got)
	}
}

// withheld is a gate that a person has closed.
var withheld = Gate{Reason: "Paused", Message: "fencing of the node is paused", Withheld: true}

// TestWithheldRelease checks that a release which was interrupted begins again only with a new reading: the person who
// paused it may have switched the machine on.
func TestWithheldRelease(t *testing.T) {
	for _, c := range []struct {
		name  string
		setup func(*simulation)
		want  string
	}{
		{"still off", func(*simulation) {}, `
7s: ReleaseInterrupted! StormHold! out-of-service=false
1h0m0.2s: Releasing out-of-service=true
1h0m0.3s: delete=db-0
`},
		{"the device does not answer any more", func(s *simulation) {
			s.script[30*time.Minute] = func(s *simulation) { s.devices["bmc"].silent = s.at }
		}, `
7s: ReleaseInterrupted! StormHold! out-of-service=false
1h1m0s: NotProven!
`},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSimulation(t, powerPlan(level(true, "bmc")))
			s.load.AttachmentsKnown = false
			s.script[6850*time.Millisecond] = func(s *simulation) { s.load.PodsKnown = false }
			gateAt(s, 7*time.Second, withheld)
			s.script[8*time.Second] = func(s *simulation) { s.load.PodsKnown = true }
			gateAt(s, time.Hour, Gate{Open: true})
			s.until = time.Hour + 62*time.Second
			c.setup(s)
			got := s.run()
			i := slices.IndexFunc(got, func(line string) bool { return strings.Contains(line, "Releasing") })
			if rest := strings.Join(got[i+1:], "\n"); rest != strings.TrimSpace(c.want) {
				t.Errorf("timeline:\n%s\nwant after Releasing:\n%s", strings.Join(got, "\n"), c.want)
			}
		})
	}
}

// TestWithheldOn checks that a machine is switched on when the gate is no longer withheld, and that a storm does not
// hold it back.
func TestWithheldOn(t *testing.T) {
	unreadable := Gate{Reason: "FencesUnknown", Message: "list NodeFences: forbidden"}
	for name, g := range map[string]Gate{"paused": withheld, "unknown": unreadable, "storm": storm} {
		s := newSimulation(t, powerPlan(level(true, "bmc")))
		s.script[8300*time.Millisecond] = func(s *simulation) { s.gate = g } // released, and not yet switched on
		gateAt(s, 2*time.Hour, Gate{Open: true})
		var on time.Duration
		s.check = func(_ Inputs, o Orders) {
			if o.Act != nil && o.Act.Action == On && on == 0 {
				on = s.at
			}
		}
		s.run()
		if late := on >= 2*time.Hour; late == g.Storm || s.state.Result != Recovered {
			t.Errorf("%s: switched on at %v, result %q:\n%s", name, on, s.state.Result, strings.Join(s.log, "\n"))
		}
	}
}

// TestConfirmedInIsolation checks that the level of isolation in use is not taken for one of Power-Management: the
// machine would not be switched on.
func TestConfirmedInIsolation(t *testing.T) {
	p := powerPlan(level(true, "bmc"))
	p.Isolation = []Level{noIdentity(level(false, "switch")), noIdentity(level(false, "other"))}
	s := newSimulation(t, p)
	s.devices["switch"], s.devices["other"] = bmc(), bmc()
	s.devices["switch"].refuses = true
	s.script[time.Minute] = func(s *simulation) {
		if s.state.Step != Isolation || s.state.Level != 1 {
			t.Errorf("step %s, level %d; want the second level of isolation", s.state.Step, s.state.Level)
		}
		s.devices["bmc"].on = false
		s.node.ConfirmOff = fenceUID
	}
	if s.run(); s.state.Result != Recovered {
		t.Errorf("result = %q; want that the machine is switched on:\n%s", s.state.Result, strings.Join(s.log, "\n"))
	}
}

// TestRunningNodeKeepsNoPlace checks that a fence whose node renews its Lease again, and stays not Ready, does not keep
// all others from acting for as long as that lasts.
func TestRunningNodeKeepsNoPlace(t *testing.T) {
	s := newSimulation(t, powerPlan(level(true, "bmc")))
	s.devices["bmc"].ignores = true
	s.script[3*time.Second] = func(s *simulation) { s.leaseRuns = true }
	s.script[5*time.Minute] = func(s *simulation) {
		if !s.state.is(ConditionWaiting) || s.state.Phase != Proving || s.state.Acting() {
			t.Errorf("phase %s, acting %t, conditions %+v; want a fence that waits and keeps no place", s.state.Phase,
				s.state.Acting(), s.state.Conditions)
		}
		s.die()
	}
	s.script[6*time.Minute+30*time.Second] = func(s *simulation) {
		if !s.state.Acting() || s.state.Storm.Started.Sub(begin) < 6*time.Minute-10*time.Second {
			t.Errorf("acting %t since %v; want that it goes on, after the others", s.state.Acting(), s.state.Storm.Started)
		}
	}
	s.until = 7 * time.Minute
	s.run()
}
