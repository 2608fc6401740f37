package fence

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

// kdumpSimulation is a fence with a listener that runs long since.
func kdumpSimulation(t testing.TB, p Plan) *simulation {
	p.Kdump = KdumpDelay
	s := newSimulation(t, p)
	s.kdump.Since = begin.Add(-time.Hour)
	return s
}

// heard sets what the listener received before the beginning.
func (s *simulation) heard(first, last time.Duration, datagrams int) {
	s.kdump.First, s.kdump.Last, s.kdump.Datagrams = begin.Add(-first), begin.Add(-last), datagrams
}

// dump has the node send datagrams each 10 s.
func (s *simulation) dump(from, to time.Duration) {
	for at := from; at <= to; at += 10 * time.Second {
		s.queue = append(s.queue, occurrence{at, func() {
			k := &s.kdump
			if k.Since.IsZero() {
				return
			}
			if s.now().Sub(k.Last) >= kdumpSilence {
				k.First, k.Datagrams = s.now(), 0
			}
			k.Last, k.Datagrams = s.now().Add(500*time.Nanosecond), k.Datagrams+1
		}})
	}
}

func TestKdumpTimelines(t *testing.T) {
	for _, c := range []struct {
		name  string
		plan  Plan
		setup func(*simulation)
		want  string // to the first act of Power-Management
	}{
		{"dumps until 2 min", powerPlan(level(true, "bmc")), func(s *simulation) {
			s.heard(50*time.Second, 5*time.Second, 5)
			s.dump(5*time.Second, 2*time.Minute)
		}, `
0s: open FenceOpened! quarantine=true
1ms: KdumpStarted PowerDelayOver KdumpWait!
2m25s: KdumpFinished AttemptStarted
2m25.2s: ActStarted! act=power-management-1-0-0=bmc-off
`},
		{"dumps for ever", powerPlan(level(true, "bmc")), func(s *simulation) {
			s.heard(50*time.Second, 5*time.Second, 5)
			s.dump(5*time.Second, time.Hour)
		}, `
0s: open FenceOpened! quarantine=true
1ms: KdumpStarted PowerDelayOver KdumpWait!
9m10s: KdumpFinished AttemptStarted
9m10.2s: ActStarted! act=power-management-1-0-0=bmc-off
`},
		{"one datagram", powerPlan(level(true, "bmc")), func(s *simulation) {
			s.heard(5*time.Second, 5*time.Second, 1)
		}, `
0s: open FenceOpened! quarantine=true
1ms: KdumpStarted PowerDelayOver KdumpWait!
25s: KdumpFinished AttemptStarted
25.2s: ActStarted! act=power-management-1-0-0=bmc-off
`},
		{"one wait", powerPlan(level(true, "bmc")), func(s *simulation) {
			s.heard(5*time.Second, 5*time.Second, 1)
			s.dump(25200*time.Millisecond, time.Hour)
		}, `
0s: open FenceOpened! quarantine=true
1ms: KdumpStarted PowerDelayOver KdumpWait!
25s: KdumpFinished AttemptStarted
25.2s: ActStarted! act=power-management-1-0-0=bmc-off
`},
		{"ended before the fence", powerPlan(level(true, "bmc")), func(s *simulation) {
			s.heard(2*time.Minute, 30*time.Second, 10)
		}, `
0s: open FenceOpened! quarantine=true
1ms: PowerDelayOver AttemptStarted
201ms: ActStarted! act=power-management-1-0-0=bmc-off
`},
		{"sent for long before the node ceased to be Ready", powerPlan(level(true, "bmc")), func(s *simulation) {
			s.node.ReadySince = begin.Add(-20 * time.Second)
			s.heard(time.Hour, 5*time.Second, 360)
			s.dump(5*time.Second, time.Hour)
		}, `
0s: open FenceOpened! quarantine=true
1ms: KdumpStarted PowerDelayOver KdumpWait!
9m40s: KdumpFinished AttemptStarted
9m40.2s: ActStarted! act=power-management-1-0-0=bmc-off
`},
		{"Ready since a time to come", powerPlan(level(true, "bmc")), func(s *simulation) {
			s.node.ReadySince = begin.Add(time.Hour)
			s.heard(50*time.Second, 5*time.Second, 5)
			s.dump(5*time.Second, time.Hour)
		}, `
0s: open FenceOpened! quarantine=true
1ms: KdumpStarted PowerDelayOver KdumpWait!
10m0.001s: KdumpFinished AttemptStarted
10m0.201s: ActStarted! act=power-management-1-0-0=bmc-off
`},
		{"no listener", powerPlan(level(true, "bmc")), func(s *simulation) {
			s.heard(50*time.Second, 5*time.Second, 5)
			s.kdump.Since = time.Time{}
		}, `
0s: open FenceOpened! quarantine=true
1ms: PowerDelayOver AttemptStarted
201ms: ActStarted! act=power-management-1-0-0=bmc-off
`},
		{"switched off", powerPlan(level(true, "bmc")), func(s *simulation) {
			s.plan.Kdump = KdumpOff
			s.heard(50*time.Second, 5*time.Second, 5)
			s.dump(5*time.Second, time.Hour)
		}, `
0s: open FenceOpened! quarantine=true
1ms: PowerDelayOver AttemptStarted
201ms: ActStarted! act=power-management-1-0-0=bmc-off
`},
		{"no wait", powerPlan(level(true, "bmc")), func(s *simulation) {
			s.plan.Timings.KdumpMaxWait = duration(0)
			s.heard(0, 0, 5)
			s.dump(0, time.Hour)
		}, `
0s: open FenceOpened! quarantine=true
0s: KdumpStarted KdumpFinished PowerDelayOver AttemptStarted
200ms: ActStarted! act=power-management-1-0-0=bmc-off
`},
		{"isolation runs at the same time", storagePlan(), func(s *simulation) {
			s.devices["switch"] = bmc()
			s.dump(0, 7*time.Minute)
		}, `
0s: open FenceOpened! quarantine=true
0s: KdumpStarted AttemptStarted ActStarted! act=isolation-1-0-0=switch-off
1s: ActEnded Isolated
6.401s: StorageProven
5m1s: PowerDelayOver KdumpWait!
7m30s: KdumpFinished AttemptStarted
7m30.2s: ActStarted! act=power-management-2-0-0=bmc-off
`},
		{"begins while the identity is read", powerPlan(level(true, "bmc")), func(s *simulation) {
			s.dump(100*time.Millisecond, time.Minute)
		}, `
0s: open FenceOpened! quarantine=true
1ms: PowerDelayOver AttemptStarted
100ms: KdumpStarted KdumpWait!
1m20.1s: KdumpFinished
1m20.3s: ActStarted! act=power-management-1-0-0=bmc-off
`},
		{"restart, and the dump goes on", powerPlan(level(true, "bmc")), func(s *simulation) {
			s.dump(0, 3*time.Minute)
			s.script[65*time.Second] = (*simulation).restart
		}, `
0s: open FenceOpened! quarantine=true
0s: KdumpStarted PowerDelayOver KdumpWait!
1m5s: Waiting!
3m30s: KdumpFinished AttemptStarted
3m30.2s: ActStarted! act=power-management-1-0-0=bmc-off
`},
		{"restart, and nothing more comes", powerPlan(level(true, "bmc")), func(s *simulation) {
			s.dump(0, time.Minute)
			s.script[65*time.Second] = (*simulation).restart
		}, `
0s: open FenceOpened! quarantine=true
0s: KdumpStarted PowerDelayOver KdumpWait!
1m5s: Waiting!
2m5s: KdumpFinished AttemptStarted
2m5.2s: ActStarted! act=power-management-1-0-0=bmc-off
`},
		{"restarts again and again", powerPlan(level(true, "bmc")), func(s *simulation) {
			s.dump(0, time.Minute)
			for at := time.Minute; at < time.Hour; at += 20 * time.Second {
				s.script[at] = (*simulation).restart
			}
		}, `
0s: open FenceOpened! quarantine=true
0s: KdumpStarted PowerDelayOver KdumpWait!
1m0s: Waiting!
10m0s: KdumpFinished
1h0m40s: AttemptStarted
1h0m40.2s: ActStarted! act=power-management-1-0-0=bmc-off
`},
		{"restart without a listener", powerPlan(level(true, "bmc")), func(s *simulation) {
			s.dump(0, time.Hour)
			s.script[65*time.Second] = func(s *simulation) { s.kdump = Kdump{}; s.restart() }
		}, `
0s: open FenceOpened! quarantine=true
0s: KdumpStarted PowerDelayOver KdumpWait!
1m5s: Waiting!
2m5s: AttemptStarted
2m5.2s: ActStarted! act=power-management-1-0-0=bmc-off
`},
		{"Ready while it waits", powerPlan(level(true, "bmc")), func(s *simulation) {
			s.dump(0, time.Hour)
			s.script[time.Minute] = func(s *simulation) { s.boot("b2") }
		}, `
0s: open FenceOpened! quarantine=true
0s: KdumpStarted PowerDelayOver KdumpWait!
1m0s: KdumpFinished Recovered quarantine=false
`},
		{"confirmed while it waits", powerPlan(level(true, "bmc")), func(s *simulation) {
			s.dump(0, time.Hour)
			s.devices["bmc"].on = false
			s.script[2*time.Minute] = func(s *simulation) { s.node.ConfirmOff = fenceUID }
		}, `
0s: open FenceOpened! quarantine=true
0s: KdumpStarted PowerDelayOver KdumpWait!
2m0s: ConfirmedOff!
`},
		{"dry run", powerPlan(level(true, "bmc")), func(s *simulation) {
			s.dryRun = true
			s.dump(0, time.Minute)
		}, `
0s: open FenceOpened!
0s: KdumpStarted PowerDelayOver KdumpWait!
1m30s: KdumpFinished AttemptStarted
1m30.2s: ActStarted! Proving
`},
		{"gate closed at the end", powerPlan(level(true, "bmc")), func(s *simulation) {
			s.dump(0, time.Minute)
			gateAt(s, 30*time.Second, storm)
			gateAt(s, 20*time.Minute, Gate{Open: true})
		}, `
0s: open FenceOpened! quarantine=true
0s: KdumpStarted PowerDelayOver KdumpWait!
30s: StormHold!
1m30s: KdumpFinished
20m0s: AttemptStarted
20m0.2s: ActStarted! act=power-management-1-0-0=bmc-off
`},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := kdumpSimulation(t, c.plan)
			c.setup(s)
			s.done = func() bool { return !s.state.FirstOff.IsZero() || s.state.Proof != nil }
			got := strings.Join(s.run(), "\n")
			if want := strings.TrimSpace(c.want); got != want {
				t.Errorf("timeline:\n%s\nwant:\n%s", got, want)
			}
			if s.state.is(ConditionKdumpWait) {
				t.Errorf("the condition %s is true at the end", ConditionKdumpWait)
			}
		})
	}
}

// waits returns the state of a fence that waits for a dump of which one datagram came.
func waits(t *testing.T) (State, Inputs) {
	t.Helper()
	s := kdumpSimulation(t, powerPlan(level(true, "bmc")))
	s.heard(0, 0, 1)
	s.until = time.Second
	s.run()
	if !s.state.is(ConditionKdumpWait) {
		t.Fatalf("the fence does not wait: %v", s.log)
	}
	return s.state, Inputs{Node: s.node, Lease: s.lease, Load: s.load, Gate: s.gate, Kdump: s.kdump}
}

func TestKdumpSession(t *testing.T) {
	state, in := waits(t)
	if k := state.Kdump; k.Phase != KdumpStarted || k.Datagrams != 1 || !k.Started.Time.Equal(begin) {
		t.Errorf("session %+v; want one with 1 datagram", k)
	}
	later := func(at time.Duration, first, last time.Duration, datagrams int) *KdumpSession {
		in.Kdump.First, in.Kdump.Last, in.Kdump.Datagrams = begin.Add(first), begin.Add(last), datagrams
		state, _ = Step(state, in, begin.Add(at))
		return state.Kdump
	}
	if k := later(time.Second, 0, 500*time.Nanosecond, 1); k.Datagrams != 1 {
		t.Errorf("session %+v; want one with the same datagram", k)
	}
	if k := later(10*time.Second, 0, 10*time.Second, 2); k.Phase != KdumpDumping || k.Datagrams != 2 {
		t.Errorf("session %+v; want one with 2 datagrams", k)
	}
	if k := later(20*time.Second, 20*time.Second, 20*time.Second, 1); k.Datagrams != 3 {
		t.Errorf("session %+v after a restart; want one with 3 datagrams", k)
	}
	if k := later(25*time.Second, 20*time.Second, 40*time.Second, 9); k.Datagrams != 3 {
		t.Errorf("session %+v; want one without a datagram of a time to come", k)
	}
	// The clock is set back by a minute: the wait is not longer than from now on.
	k := later(-time.Minute, -time.Minute, -time.Minute, 10)
	if !k.Started.Time.Equal(begin.Add(-time.Minute)) || k.Last.After(k.Started.Time) {
		t.Errorf("session %+v; want one that began at the new time", k)
	}
}

// What comes after the machine was ordered off delays nothing: neither the next attempt, nor for the first time.
func TestKdumpAfterOff(t *testing.T) {
	s := kdumpSimulation(t, powerPlan(level(true, "bmc")))
	s.devices["bmc"].refuses = true
	s.dump(5*time.Second, time.Hour)
	s.until = time.Hour
	log := strings.Join(s.run(), "\n")
	if s.state.Kdump != nil || strings.Contains(log, "Kdump") || strings.Count(log, "ActStarted") != 4 {
		t.Errorf("session %+v; want none, and 4 attempts:\n%s", s.state.Kdump, log)
	}
}

// The time of the wait does not count in the time for all attempts.
func TestKdumpDeadline(t *testing.T) {
	s := kdumpSimulation(t, powerPlan(level(true, "bmc")))
	s.dump(100*time.Millisecond, time.Hour)
	s.done = func() bool { return !s.state.FirstOff.IsZero() }
	s.run()
	if got, least := s.state.Deadline.Sub(begin), 40*time.Minute-time.Second; got < least {
		t.Errorf("the time for all attempts ends after %v; want %v", got, least)
	}
}

// A step that finds the time of all attempts over does not give up while it waits for a dump.
func TestKdumpExhausted(t *testing.T) {
	state, in := waits(t)
	state.Attempt, state.Deadline = 1, micro(begin.Add(10*time.Second))
	in.Kdump.Last, in.Kdump.Datagrams = begin.Add(20*time.Second), 3
	if state, _ = Step(state, in, begin.Add(20*time.Second)); state.is(ConditionGaveUp) || !state.is(ConditionKdumpWait) {
		t.Errorf("conditions %v; want one that waits", state.Conditions)
	}
}

// TestKdumpUnused checks states in which what a dump kernel sends changes nothing but the record.
func TestKdumpUnused(t *testing.T) {
	state, in := waits(t)
	in.Kdump.Last, in.Kdump.Datagrams = begin.Add(5*time.Second), 2
	before := *state.Kdump
	if Step(state, in, begin.Add(5*time.Second)); !reflect.DeepEqual(*state.Kdump, before) {
		t.Errorf("Step changed the session of its argument to %+v", state.Kdump)
	}
	// It was switched off while no controller listened, and one listens again.
	state.FirstOff = micro(begin.Add(4 * time.Second))
	if after, _ := Step(state, in, begin.Add(5*time.Second)); after.Kdump.Phase != KdumpFinished || after.is(ConditionKdumpWait) {
		t.Errorf("session %+v after the order to switch off; want one that has finished", after.Kdump)
	}
	// Datagrams of a node that is Ready do not use up the wait.
	state.FirstOff.Time, state.Kdump = time.Time{}, nil
	in.Node.Ready = ReadyTrue
	if after, _ := Step(state, in, begin.Add(5*time.Second)); after.Kdump != nil {
		t.Errorf("session %+v of a node that is Ready; want none", after.Kdump)
	}
}
