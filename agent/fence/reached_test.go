package fence

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// generatorMode says what random fences have besides devices, events and storms. A quarter of the runs has each
// combination: what only shows without the one is found, too.
type generatorMode struct {
	// withheld says that a gate that no storm closes forbids all acts, and interrupts a release.
	withheld bool
	// drills says that a part of the fences are drills of healthy nodes.
	drills bool
}

func modeOf(seed uint64) generatorMode {
	return generatorMode{withheld: seed&1 > 0, drills: seed&2 > 0}
}

// randomDrill makes a run the drill of a node that is healthy, cordoned and empty at the beginning. One more event
// follows.
func randomDrill(s *simulation, rnd *rand.Rand) {
	s.drill, s.dryRun, s.leaseRuns = true, false, true
	s.node.Ready, s.node.Unschedulable = ReadyTrue, true
	s.lease.Renewed, s.lease.UnchangedSince = begin.Add(-5*time.Second), begin.Add(-5*time.Second)
	s.load = Load{PodsKnown: true, AttachmentsKnown: true, Pods: []Pod{{UID: "p2", Namespace: "x", Name: "ds", DaemonSet: true}}}
	s.after(10*time.Second, func() {}) // the controller looks at the node
	for _, name := range slices.Sorted(maps.Keys(s.devices)) {
		s.devices[name].foreign = rnd.IntN(8) == 0
	}
	at := time.Duration(rnd.IntN(20_000)) * time.Millisecond
	s.script[at] = []func(*simulation){
		func(*simulation) {},
		func(s *simulation) { s.node.Unschedulable = false },
		func(s *simulation) {
			s.load.Pods = append(slices.Clone(s.load.Pods), Pod{UID: "p1", Namespace: "x", Name: "db-0", StatefulSet: true})
		},
		func(s *simulation) { s.node.Ready = ReadyUnknown },
	}[rnd.IntN(4)]
}

// ambush has something happen just after a fence came near its release: with events at random times alone that is rare.
func (v *verifier) ambush(mode generatorMode) {
	phase := v.s.state.Phase
	if phase != OffProven && phase != Releasing || v.ambushed[phase] {
		return
	}
	v.ambushed[phase] = true
	if v.rnd.IntN(2) == 0 {
		return
	}
	devices := v.s.state.powerDevices()
	events := []func(*simulation){
		(*simulation).restart,
		func(s *simulation) { s.gate = randomGate(v.rnd, mode, s.now()) },
		func(s *simulation) { s.gate = randomGate(v.rnd, mode, s.now()) },
		func(s *simulation) { s.lease.Renewed, s.lease.UnchangedSince = s.now(), s.now() },
		func(s *simulation) { s.boot([]string{"b1", "b2"}[v.rnd.IntN(2)]) },
		func(s *simulation) { s.node.ConfirmOff = fenceUID },
		func(s *simulation) { s.node.UID = "n2" },
	}
	for range len(devices) {
		name := devices[v.rnd.IntN(len(devices))]
		events = append(events, func(s *simulation) { s.devices[name].on = true },
			func(s *simulation) { s.devices[name].silent, s.devices[name].answers = s.at, s.at+time.Minute })
	}
	if v.rnd.IntN(2) == 0 { // the release takes a while
		v.s.load.AttachmentsKnown = false
		v.s.after(time.Duration(v.rnd.IntN(60_000))*time.Millisecond, func() { v.s.load.AttachmentsKnown = true })
	}
	v.s.after(time.Duration(v.rnd.IntN(8000))*time.Millisecond, func() { events[v.rnd.IntN(len(events))](v.s) })
	if !v.s.gate.Open || v.rnd.IntN(2) == 0 {
		v.s.after(2*time.Minute, func() { v.s.gate = Gate{Open: true} })
	}
}

// reach notes what happens in a step.
func (v *verifier) reach(in Inputs, o Orders, on bool) {
	s := &v.s.state
	for _, e := range o.Events {
		v.reached[e.Reason] = true
	}
	held := !in.Gate.Open && in.Gate.Storm
	for what, is := range map[string]bool{
		"read on while tainted":                 v.tainted && on,
		"storm before the release":              s.Phase == OffProven && held,
		"storm in the release":                  s.Phase == Releasing && held,
		"withheld":                              in.Gate.Withheld,
		"answers without power":                 v.unpowered(),
		"another controller waits for an act":   s.Intent != nil && !s.IntentSeen.IsZero(),
		"second level":                          s.Step == PowerManagement && s.Level > 0,
		"second attempt":                        s.Step == PowerManagement && s.Attempt > 1 && s.Retries > 0,
		"off again after on":                    s.OnRepeats > 0,
		"two plugs proven":                      s.Proof != nil && len(s.Proof.Readings) == 4,
		"dry run with a proof":                  s.DryRun && s.Status == Done,
		"drill":                                 s.Drill,
		"drill proven":                          s.Drill && s.Proof != nil,
		"drill, proven with pods":               s.Drill && s.Proof != nil && len(in.Load.Evicted()) > 0,
		"fence of a Ready node":                 in.Node.Ready == ReadyTrue && !s.Drill && s.acted(),
		"lost its Lease while a device was off": len(v.lastOff) > 0 && !in.Lease.Known,
	} {
		if is {
			v.reached[what] = true
		}
	}
	v.reachActs()
}

// unpowered reports whether the BMC answers with an error while another device reads off.
func (v *verifier) unpowered() bool {
	return v.s.state.Phase == Proving && v.answer.Answered && len(v.lastOff) > 0
}

// reachActs notes the acts that have ended.
func (v *verifier) reachActs() {
	for _, a := range v.s.state.Acts {
		v.reached["act "+string(a.Action)] = true
		v.reached["outcome "+string(a.Outcome.Kind)] = true
	}
}

// rare are what fewer than two runs of a thousand reach, with the least number of runs of 100,000.
var rare = map[string]uint64{
	"released storage": 100, "unfenced": 20, "released for a dump": 100, "reset by its watchdog": 100, "drill, proven with pods": 20,
	ReasonRebootNeeded: 40,
}

// everyRun are what the runs must reach besides those of rare: the ends, the reasons of events, and what reach notes.
var everyRun = []string{
	// The ends. A run that has none of them fails.
	"Recovered", "Fenced", "NodeGone", "Refused", "gave up", "held", "dry run",
	ReasonAttemptStarted, ReasonActStarted, ReasonActEnded, ReasonActNotSent, ReasonRetrying, ReasonNextLevel, ReasonIsolated,
	ReasonStorageProven, ReasonKdumpStarted, ReasonKdumpFinished, ReasonNotProven, ReasonOffProven,
	ReasonResetProven, ReasonConfirmedOff, ReasonConfirmOffIgnored, ReasonReleasing, ReasonReleaseInterrupted, ReasonReleased,
	ReasonWouldRelease, ReasonSwitchedOn, ReasonSwitchingOn, ReasonNodeReadyUnproven, ReasonNodeReturned, ReasonMethodFailed,
	ReasonDeviceAnswersAgain, ConditionProofLost, ConditionVerificationFailed, ConditionReleaseStuck, ConditionNodeDidNotReturn,
	ConditionGaveUp, ConditionIdentityMismatch, ConditionStormHold, ConditionWaiting, ConditionKdumpWait,
	"outcome Succeeded", "outcome Failed", "outcome Unknown", "outcome Refused", "act off", "act on", "act cordon", "act clean-pods",
	"read on while tainted", "storm before the release", "storm in the release", "withheld", "another controller waits for an act",
	"outcome reported twice", "second level", "second attempt", "off again after on", "two plugs proven", "dry run with a proof",
	"released by plugs beside a BMC", "answers without power", "drill", "drill proven", "fence of a Ready node", "lost its Lease while a device was off",
}

// checkReached fails the test if the runs did not reach what they are for: a generator that no longer does would let
// each rule pass.
func checkReached(t *testing.T, total map[string]int, runs uint64) {
	t.Helper()
	t.Logf("%d runs reached: %v", runs, total)
	want := map[string]uint64{}
	for _, what := range everyRun {
		want[what] = 200
	}
	for what, n := range rare {
		want[what] = n
	}
	for what, n := range want {
		if got, least := uint64(total[what]), max(1, n*runs/100_000); got < least {
			t.Errorf("%q in %d of %d runs; want at least %d", what, got, runs, least)
		}
	}
}

// checkWithheld checks that nothing is done to a node while all acts are forbidden, but to undo its isolation.
func (v *verifier) checkWithheld(in Inputs, o Orders) {
	if !in.Gate.Withheld || in.Gate.Open {
		return
	}
	act := o.Act != nil && o.Act.Step != Recovery
	if act || o.Taints.OutOfService || len(o.Delete)+len(o.Detach) > 0 {
		v.fail("withheld, and ordered %+v, taints %+v, %d pods and %d attachments", o.Act, o.Taints, len(o.Delete), len(o.Detach))
	}
}

// checkDrill checks that a drill switches off only a node that was healthy, cordoned and empty just before its first
// act.
func (v *verifier) checkDrill(i *Intent) {
	s, n := &v.s.state, v.s.node
	if !s.Drill || i.Action != Off || len(v.acts) > 0 {
		return
	}
	if n.Ready != ReadyTrue || !n.Unschedulable || len(v.s.load.movable())+len(v.s.load.Attachments) > 0 {
		v.fail("drill of a node that is %+v with %+v", n, v.s.load)
	}
}

// longestOther returns how long the last reading off of another device of the proof took.
func (v *verifier) longestOther(device string) time.Duration {
	longest := time.Duration(0)
	for _, x := range v.s.state.Proof.Readings {
		if y := v.lastOff[x.Device]; x.Device != device {
			longest = max(longest, y.Ended.Sub(y.Started.Time))
		}
	}
	return longest
}
