package fence

import (
	"strings"
	"testing"
	"time"
)

// dumpRelease returns a fence whose plan releases the pods of the node while its kernel dumps.
func dumpRelease(t testing.TB, p Plan) *simulation {
	s := kdumpSimulation(t, p)
	s.plan.Kdump = KdumpRelease
	return s
}

func TestKdumpReleaseTimelines(t *testing.T) {
	power := powerPlan(level(true, "bmc"))
	for _, c := range []struct {
		name  string
		plan  Plan
		setup func(*simulation)
		want  string
	}{
		{"two datagrams release the pods, and the volumes wait for off", power, func(s *simulation) {
			s.dump(100*time.Millisecond, 25*time.Second)
			s.done = func() bool { return s.state.Phase == Releasing }
		}, `
0s: open FenceOpened! quarantine=true
1ms: PowerDelayOver AttemptStarted
100ms: KdumpStarted KdumpWait!
10.1s: KdumpReleased! delete=db-0
50.1s: KdumpFinished
50.3s: ActStarted! act=power-management-1-0-0=bmc-off
51.3s: ActEnded Proving
56.701s: OffProven
56.902s: Releasing out-of-service=true
`},
		{"one datagram", power, func(s *simulation) {
			s.dump(100*time.Millisecond, 9*time.Second)
			s.done = func() bool { return !s.state.FirstOff.IsZero() }
		}, `
0s: open FenceOpened! quarantine=true
1ms: PowerDelayOver AttemptStarted
100ms: KdumpStarted KdumpWait!
30.1s: KdumpFinished
30.3s: ActStarted! act=power-management-1-0-0=bmc-off
`},
		{"delay alone releases nothing", power, func(s *simulation) {
			s.plan.Kdump = KdumpDelay
			s.dump(100*time.Millisecond, 25*time.Second)
			s.done = func() bool { return !s.state.FirstOff.IsZero() }
		}, `
0s: open FenceOpened! quarantine=true
1ms: PowerDelayOver AttemptStarted
100ms: KdumpStarted KdumpWait!
50.1s: KdumpFinished
50.3s: ActStarted! act=power-management-1-0-0=bmc-off
`},
		{"gate closed", power, func(s *simulation) {
			s.dump(100*time.Millisecond, 45*time.Second)
			gateAt(s, 5*time.Second, storm)
			gateAt(s, 35*time.Second, Gate{Open: true})
			s.done = func() bool { return !s.state.FirstOff.IsZero() }
		}, `
0s: open FenceOpened! quarantine=true
1ms: PowerDelayOver AttemptStarted
100ms: KdumpStarted KdumpWait!
5s: StormHold!
35s: KdumpReleased! delete=db-0
1m10.1s: KdumpFinished
1m10.3s: ActStarted! act=power-management-1-0-0=bmc-off
`},
		{"the Lease is renewed between the two", power, func(s *simulation) {
			s.dump(100*time.Millisecond, 2*time.Minute)
			s.script[5*time.Second] = func(s *simulation) { s.lease.Renewed, s.lease.UnchangedSince = s.now(), s.now() }
			s.done = func() bool { return !s.state.FirstOff.IsZero() }
		}, `
0s: open FenceOpened! quarantine=true
1ms: PowerDelayOver AttemptStarted
100ms: KdumpStarted KdumpWait!
5s: Waiting!
1m5s: KdumpReleased! delete=db-0
2m20.1s: KdumpFinished
2m20.3s: ActStarted! act=power-management-1-0-0=bmc-off
`},
		{"dry run", power, func(s *simulation) {
			s.dryRun = true
			s.dump(100*time.Millisecond, 25*time.Second)
		}, `
0s: open FenceOpened!
1ms: PowerDelayOver AttemptStarted
100ms: KdumpStarted KdumpWait!
10.1s: KdumpReleased!
50.1s: KdumpFinished
50.3s: ActStarted! Proving
55.5s: WouldRelease
`},
		{"Ready with the old boot ID", power, func(s *simulation) {
			s.dump(100*time.Millisecond, 25*time.Second)
			s.script[20*time.Second] = func(s *simulation) { s.boot("b1") }
			s.script[time.Minute] = func(s *simulation) { s.boot("b2") }
		}, `
0s: open FenceOpened! quarantine=true
1ms: PowerDelayOver AttemptStarted
100ms: KdumpStarted KdumpWait!
10.1s: KdumpReleased! delete=db-0
20s: KdumpFinished FenceVerificationFailed!
1m20s: NodeReturned Recovered quarantine=false
`},
		{"Ready with a new boot ID", power, func(s *simulation) {
			s.dump(100*time.Millisecond, 25*time.Second)
			s.script[20*time.Second] = func(s *simulation) { s.boot("b2") }
		}, `
0s: open FenceOpened! quarantine=true
1ms: PowerDelayOver AttemptStarted
100ms: KdumpStarted KdumpWait!
10.1s: KdumpReleased! delete=db-0
20s: KdumpFinished Recovered quarantine=false
`},
		{"while isolation runs", storagePlan(), func(s *simulation) {
			s.devices["switch"] = bmc()
			s.devices["switch"].act = 30 * time.Second
			s.dump(0, time.Minute)
			s.done = func() bool { return s.state.Step == PowerManagement }
		}, `
0s: open FenceOpened! quarantine=true
0s: KdumpStarted AttemptStarted ActStarted! act=isolation-1-0-0=switch-off
10s: KdumpReleased! delete=db-0
30s: ActEnded Isolated
35.401s: StorageProven
1m32.401s: KdumpFinished
5m30s: PowerDelayOver AttemptStarted
`},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := dumpRelease(t, c.plan)
			c.setup(s)
			got := strings.Join(s.run(), "\n")
			if want := strings.TrimSpace(c.want); got != want {
				t.Errorf("timeline:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

// TestKdumpReleaseRules takes away one condition at a time.
func TestKdumpReleaseRules(t *testing.T) {
	ready := func(t *testing.T) (State, Inputs) {
		t.Helper()
		s := dumpRelease(t, powerPlan(level(true, "bmc")))
		s.dump(100*time.Millisecond, 15*time.Second)
		s.until = 9 * time.Second
		s.run()
		s.kdump.Last, s.kdump.Datagrams = s.now().Add(2*time.Second), 2
		return s.state, Inputs{Node: s.node, Lease: s.lease, Load: s.load, Gate: s.gate, Kdump: s.kdump}
	}
	for _, c := range []struct {
		name   string
		change func(*State, *Inputs)
		want   int
	}{
		{"as it is", func(*State, *Inputs) {}, 1},
		{"the plan delays", func(s *State, _ *Inputs) { s.Plan.Kdump = KdumpDelay }, 0},
		{"no listener", func(_ *State, in *Inputs) { in.Kdump.Since = time.Time{} }, 0},
		{"no second datagram", func(s *State, in *Inputs) { in.Kdump.Last = s.Kdump.Last.Time }, 0},
		{"the same datagram twice", func(s *State, in *Inputs) { in.Kdump.Last = s.Kdump.Last.Add(900 * time.Millisecond) }, 0},
		{"the first one was before the Lease was renewed", func(s *State, in *Inputs) {
			in.Lease.UnchangedSince = s.Kdump.Last.Add(time.Microsecond)
			s.Plan.Timings.Grace = duration(time.Microsecond)
		}, 0},
		{"the first one was while the node was Ready", func(s *State, in *Inputs) { in.Node.ReadySince = s.Kdump.Last.Add(time.Second) }, 0},
		{"Ready", func(_ *State, in *Inputs) { in.Node.Ready = ReadyTrue }, 0},
		{"no Lease", func(_ *State, in *Inputs) { in.Lease.Found = false }, 0},
		{"Lease unknown", func(_ *State, in *Inputs) { in.Lease.Known = false }, 0},
		{"Lease watched for less than grace", func(s *State, in *Inputs) { s.Plan.Timings.Grace = duration(time.Hour) }, 0},
		{"another Node", func(_ *State, in *Inputs) { in.Node.UID = "n2" }, 0},
		{"gate closed", func(_ *State, in *Inputs) { in.Gate = storm }, 0},
		{"dry run", func(s *State, _ *Inputs) { s.DryRun = true }, 0},
		{"switched off before", func(s *State, in *Inputs) { s.FirstOff = s.Created }, 0},
		{"kdump_max_wait is over", func(s *State, _ *Inputs) { s.Plan.Timings.KdumpMaxWait = duration(time.Second) }, 0},
		{"in the proof", func(s *State, _ *Inputs) { s.Phase, s.Status = Proving, Running }, 0},
		{"recovery", func(s *State, _ *Inputs) { s.Step = Recovery }, 0},
		{"a person decides", func(s *State, in *Inputs) {
			r := run{s: s, in: in, now: s.Since.Time}
			r.put(ConditionVerificationFailed, "True", "SameBootID", "")
		}, 0},
		{"the proof was lost", func(s *State, in *Inputs) {
			r := run{s: s, in: in, now: s.Since.Time}
			r.put(ConditionProofLost, "True", "Void", "")
		}, 0},
		{"pods not known", func(_ *State, in *Inputs) { in.Load.PodsKnown = false }, 0},
		{"no pods that it evicts", func(_ *State, in *Inputs) { in.Load.Pods = in.Load.Pods[1:] }, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			state, in := ready(t)
			now := in.Kdump.Last.Add(time.Millisecond)
			c.change(&state, &in)
			after, orders := Step(state, in, now)
			if len(orders.Delete) != c.want || orders.Taints.OutOfService || len(orders.Detach) > 0 {
				t.Errorf("deleted %v, detached %v, taints %+v; want %d pods and no taint", orders.Delete, orders.Detach, orders.Taints, c.want)
			}
			if got := after.dumpReleased(); got != (c.want > 0) {
				t.Errorf("dumpReleased() = %t; want %t", got, c.want > 0)
			}
		})
	}
}

// A datagram of a listener's session after a gap is the first one of another session.
func TestKdumpHeardAcrossGap(t *testing.T) {
	state, in := waits(t)
	state.Plan.Kdump = KdumpRelease
	in.Kdump.Since = time.Time{}
	state, _ = Step(state, in, begin.Add(20*time.Second)) // no listener: the session does not end
	in.Kdump = Kdump{Since: begin.Add(20 * time.Second), First: begin.Add(40 * time.Second), Last: begin.Add(40 * time.Second), Datagrams: 1}
	state, orders := Step(state, in, begin.Add(41*time.Second))
	if len(orders.Delete) > 0 || len(state.Kdump.Heard) != 1 {
		t.Errorf("released %v with %v; want nothing after a gap of 40 s", orders.Delete, state.Kdump.Heard)
	}
}
