package fence

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

func watchdogLevel() Level {
	return Level{Methods: []Method{{Name: "wd", Agent: "watchdog", Action: Watchdog, Identity: CheckNone}}}
}

// wdSimulation is a fence of a node whose watchdog is armed, and whose bound of 2 min ends after a time.
func wdSimulation(t testing.TB, left time.Duration, levels ...Level) *simulation {
	s := newSimulation(t, powerPlan(levels...))
	s.watchdog = WatchdogFacts{Advert: "advert 7", Armed: true, BootID: "b1", Bound: 2 * time.Minute}
	s.unchanged = left - 2*time.Minute
	return s
}

func TestWatchdogTimelines(t *testing.T) {
	silent := func(s *simulation) { s.devices["bmc"].silent = 0 }
	for _, c := range []struct {
		name   string
		left   time.Duration
		levels []Level
		setup  func(*simulation)
		want   string
	}{
		{"the bound is over when the BMC has failed", 0, []Level{level(true, "bmc"), watchdogLevel()}, silent, `
0s: open FenceOpened! quarantine=true
1ms: PowerDelayOver AttemptStarted
30.001s: ActNotSent! NextLevel! Proving ResetProven!
40.002s: Releasing out-of-service=true
40.102s: delete=db-0
41.102s: Released out-of-service=false
46.202s: Fenced
`},
		{"only the watchdog", time.Minute, []Level{watchdogLevel()}, nil, `
0s: open FenceOpened! quarantine=true
1ms: PowerDelayOver AttemptStarted Proving
1m0s: ResetProven! Releasing out-of-service=true
1m0.001s: delete=db-0
1m1.001s: Released out-of-service=false
1m6.101s: Fenced
`},
		{"only the watchdog, and the advert changes", time.Minute, []Level{watchdogLevel()}, func(s *simulation) {
			s.script[70*time.Second] = func(s *simulation) { s.watchdog.Advert = "advert 8" }
			s.script[30*time.Second] = func(s *simulation) { s.load.PodsKnown = false }
		}, `
0s: open FenceOpened! quarantine=true
1ms: PowerDelayOver AttemptStarted Proving
1m0s: ResetProven! Releasing out-of-service=true
1m10s: FenceVerificationFailed! out-of-service=false
`},
		{"softdog", 0, []Level{watchdogLevel()}, func(s *simulation) {
			s.watchdog.Armed, s.watchdog.Why = false, "softdog dies with the kernel"
			s.plan.Timings.Retries = 0
		}, `
0s: open FenceOpened! quarantine=true
1ms: PowerDelayOver AttemptStarted Proving
1m0.001s: GaveUp!
`},
		{"the BMC answers again, and reads on", 0, []Level{level(true, "bmc"), watchdogLevel()}, func(s *simulation) {
			silent(s)
			s.devices["bmc"].answers = 3 * time.Minute
			s.load.PodsKnown = false // the release does not end
			s.until = 10 * time.Minute
		}, `
0s: open FenceOpened! quarantine=true
1ms: PowerDelayOver AttemptStarted
30.001s: ActNotSent! NextLevel! Proving ResetProven!
40.002s: Releasing out-of-service=true
3m0.202s: ProofLost! Retrying AttemptStarted ActStarted! act=power-management-2-0-0=bmc-off out-of-service=false
3m1.202s: ActEnded Proving
3m6.603s: OffProven
3m6.804s: Releasing out-of-service=true
`},
		{"dry run", time.Minute, []Level{watchdogLevel()}, func(s *simulation) { s.dryRun = true; s.until = 10 * time.Minute }, `
0s: open FenceOpened!
1ms: PowerDelayOver AttemptStarted Proving WouldRelease
`},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := wdSimulation(t, c.left, c.levels...)
			s.until = 20 * time.Minute
			if c.setup != nil {
				c.setup(s)
			}
			got := strings.Join(s.run(), "\n")
			if want := strings.TrimSpace(c.want); got != want {
				t.Errorf("timeline:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

// TestWatchdogClauses takes random clauses of the proof away: there is one only if none is missing.
func TestWatchdogClauses(t *testing.T) {
	clauses := []struct {
		name string
		omit func(*State, *Inputs)
	}{
		{"the level in use", func(s *State, _ *Inputs) { s.Level = 0 }},
		{"armed", func(_ *State, in *Inputs) { in.Watchdog.Armed = false }},
		{"of the target's boot", func(_ *State, in *Inputs) { in.Watchdog.BootID = "b0" }},
		{"a boot ID of the target", func(s *State, in *Inputs) { s.Target.BootID, in.Watchdog.BootID, in.Node.BootID = "", "", "" }},
		{"the node's boot", func(_ *State, in *Inputs) { in.Node.BootID = "b2" }},
		{"not Ready", func(_ *State, in *Inputs) { in.Node.Ready = ReadyTrue }},
		{"Lease known", func(_ *State, in *Inputs) { in.Lease.Known = false }},
		{"Lease found", func(_ *State, in *Inputs) { in.Lease.Found = false }},
		{"Lease unchanged for grace", func(_ *State, in *Inputs) { in.Lease.UnchangedSince = begin }},
		{"no device on", func(s *State, _ *Inputs) {
			s.Readings = []Reading{{Device: "bmc", Power: PowerOn, Started: micro(begin), Ended: micro(begin)}}
		}},
		{"the bound is over", func(_ *State, in *Inputs) { in.Watchdog.Unchanged = in.Watchdog.Bound - 1 }},
		{"a bound", func(_ *State, in *Inputs) { in.Watchdog.Bound = 0 }},
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	for run := range 20_000 {
		s := wdSimulation(t, 0, level(true, "bmc"), watchdogLevel())
		state, _ := Open(s.node, s.lease, s.plan, false, begin)
		state.Step, state.Status, state.Phase, state.Level, state.Attempt = PowerManagement, Running, Proving, 1, 1
		in := Inputs{Node: s.node, Lease: s.lease, Load: s.load, Gate: s.gate, Watchdog: s.watchdog}
		in.Watchdog.Unchanged = in.Watchdog.Bound + time.Duration(rnd.IntN(100))*time.Second
		var omitted []string
		for i, c := range clauses {
			if run > 0 && (run-1 == i || run > len(clauses) && rnd.IntN(4) == 0) {
				c.omit(&state, &in)
				omitted = append(omitted, c.name)
			}
		}
		after, orders := Step(state, in, begin.Add(time.Second))
		proven := after.Proof != nil
		if proven != (len(omitted) == 0) || orders.Taints.OutOfService {
			t.Fatalf("proof %+v, taints %+v without %q", after.Proof, orders.Taints, omitted)
		}
		if proven && (after.Proof.How != ByWatchdog || after.Proof.Watchdog != "advert 7") {
			t.Fatalf("proof %+v; want one by the watchdog, with its advert", after.Proof)
		}
	}
}

// A device that was silent and reads off now does not make the wait for the watchdog shorter.
func TestWatchdogWaitsLongest(t *testing.T) {
	s := newSimulation(t, powerPlan(noIdentity(level(false, "pdu1", "pdu2")), watchdogLevel()))
	now := begin.Add(10 * time.Minute)
	state, _ := Open(s.node, s.lease, s.plan, false, begin)
	state.Step, state.Status, state.Phase, state.Attempt, state.Level = PowerManagement, Running, Proving, 1, 1
	proving := s.plan.Timings.ProofTimeout.Duration + s.plan.Timings.Settle.Duration + time.Second
	state.Since = micro(now.Add(-proving))
	at := func(before time.Duration) Reading {
		return Reading{Started: micro(now.Add(-before)), Ended: micro(now.Add(-before))}
	}
	silent, off := at(20*time.Second), at(10*time.Second)
	silent.Device, silent.Power = "pdu1", PowerUnknown
	off.Device, off.Power = "pdu1", PowerOff
	state.Readings = []Reading{silent, off}
	in := Inputs{Node: s.node, Lease: s.lease, Load: s.load, Gate: s.gate, Executor: "c1", Watchdog: WatchdogFacts{
		Advert: "advert 7", Armed: true, BootID: "b1", Bound: 5 * time.Minute, Unchanged: 5*time.Minute - 30*time.Second,
	}}
	if next, _ := Step(state, in, now); next.Phase != Proving {
		t.Errorf("30 s before the bound is over: %s/%s, phase %q; want Proving", next.Step, next.Status, next.Phase)
	}
}
