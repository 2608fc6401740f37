package fence

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// offAt returns a reading off that took a time and ended before begin.
func offAt(device string, ended, took time.Duration) Reading {
	return Reading{Device: device, Power: PowerOff, UUID: uuid, Started: micro(begin.Add(-ended - took)), Ended: micro(begin.Add(-ended))}
}

// acted returns the state of a fence at begin whose machine was switched off two minutes before, and inputs with which
// nothing contradicts that it is off.
func acted(t *testing.T, phase Phase, levels ...Level) (State, Inputs) {
	t.Helper()
	s := newSimulation(t, powerPlan(levels...))
	s.lease.Renewed, s.lease.UnchangedSince = begin.Add(-time.Hour), begin.Add(-time.Hour)
	state, _ := Open(s.node, s.lease, s.plan, false, begin.Add(-10*time.Minute))
	state.UID, state.Attempt, state.LastAct = fenceUID, 1, micro(begin.Add(-2*time.Minute))
	state.Step, state.Status, state.Phase, state.Since = PowerManagement, Running, phase, micro(begin.Add(-30*time.Second))
	state.Deadline = micro(begin.Add(20 * time.Minute))
	return state, Inputs{Node: s.node, Lease: s.lease, Load: s.load, Gate: Gate{Open: true}}
}

// TestProofClauses checks each clause of a proof by readings alone.
func TestProofClauses(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*State, *Inputs)
		want   bool
	}{
		{"two readings", func(*State, *Inputs) {}, true},
		{"one reading that took no time, and no interval", func(s *State, _ *Inputs) {
			s.Plan.Timings.ProofInterval.Duration = 0
			s.Readings = []Reading{offAt("bmc", 5*time.Second, 0)}
		}, false},
		{"less than the interval between them", func(s *State, _ *Inputs) {
			s.Readings[0] = offAt("bmc", 5999*time.Millisecond, time.Second)
		}, false},
		{"the node is Ready, and its Lease unchanged", func(_ *State, in *Inputs) { in.Node.Ready = ReadyTrue }, false},
		{"the first reading was before the Lease changed", func(s *State, in *Inputs) {
			s.LastAct = micro(begin.Add(-4 * time.Minute))
			s.Readings[0] = offAt("bmc", 2*time.Minute, time.Second)
			in.Lease.Renewed, in.Lease.UnchangedSince = begin.Add(-61*time.Second), begin.Add(-61*time.Second)
		}, false},
		{"a late reading of before the act", func(s *State, in *Inputs) {
			s.Readings = s.Readings[1:]
			in.Readings = []Reading{offAt("bmc", 3*time.Minute, time.Second)}
		}, false},
		{"one of two plugs", func(s *State, _ *Inputs) {
			s.Plan.PowerManagement = []Level{noIdentity(level(false, "bmc", "plug"))}
		}, false},
		{"another device reads on", func(s *State, in *Inputs) {
			s.Plan.PowerManagement = append(s.Plan.PowerManagement, noIdentity(level(false, "plug")))
			in.Readings = []Reading{{Device: "plug", Power: PowerOn, Started: micro(begin.Add(-2 * time.Second)), Ended: micro(begin.Add(-time.Second))}}
		}, false},
		{"an unknown reading", func(s *State, _ *Inputs) { s.Readings[1].Power = PowerUnknown }, false},
		{"the machine of another node", func(s *State, in *Inputs) {
			in.Readings = []Reading{offAt("bmc", time.Second, time.Second)}
			in.Readings[0].UUID = "b" + uuid[1:]
		}, false},
	} {
		s, in := acted(t, Proving, level(true, "bmc"))
		s.Readings = []Reading{offAt("bmc", 10*time.Second, time.Second), offAt("bmc", time.Second, 3*time.Second)}
		c.change(&s, &in)
		next, o := Step(s, in, begin)
		noted := func(e Entry) bool { return e.Reason == ReasonOffProven }
		if proven := next.Proof != nil || slices.ContainsFunc(next.History, noted); proven != c.want || o.Taints.OutOfService {
			t.Errorf("%s: phase %q, proof %+v, taints %+v; want proven: %t", c.name, next.Phase, next.Proof, o.Taints, c.want)
		}
	}
}

// TestForgedRelease checks a saved state in Releasing that no release led to: a NodeFence that was edited by hand, or
// restored from a copy. Its Node has no taint, and gets none before the devices were read.
func TestForgedRelease(t *testing.T) {
	readings := func(change func(*Reading)) func(*State, *Inputs) {
		return func(s *State, _ *Inputs) { change(&s.Proof.Readings[0]) }
	}
	for _, c := range []struct {
		name   string
		change func(*State, *Inputs)
		want   Phase // "": the proof is void
	}{
		{"a release that has just begun", func(*State, *Inputs) {}, Releasing},
		{"not read for a minute and two intervals", func(s *State, _ *Inputs) {
			s.Readings[1] = offAt("bmc", 70*time.Second+time.Millisecond, time.Millisecond)
		}, OffProven},
		{"not read", func(s *State, _ *Inputs) { s.Readings = nil }, OffProven},
		{"not read, and confirmed by a person", func(s *State, _ *Inputs) {
			s.Readings, s.Proof = nil, &Proof{How: Confirmed, At: s.Proof.At, LeaseRenewed: s.Proof.LeaseRenewed}
		}, OffProven},
		{"not read, the taint is set", func(s *State, in *Inputs) { s.Readings, in.Node.OutOfService = nil, true }, Releasing},
		{"no proof", func(s *State, _ *Inputs) { s.Proof = nil }, ""},
		{"no readings in the proof", func(s *State, _ *Inputs) { s.Proof.Readings = nil }, ""},
		{"one reading", func(s *State, _ *Inputs) { s.Proof.Readings = s.Proof.Readings[1:] }, ""},
		{"a reading on", readings(func(x *Reading) { x.Power = PowerOn }), ""},
		{"a reading of another machine", readings(func(x *Reading) { x.UUID = "b" + uuid[1:] }), ""},
		{"a reading of no machine", readings(func(x *Reading) { x.UUID = "" }), ""},
		{"a device of no level", readings(func(x *Reading) { x.Device = "plug" }), ""},
		{"one of two plugs", func(s *State, _ *Inputs) {
			s.Plan.PowerManagement = []Level{noIdentity(level(false, "bmc", "plug"))}
		}, ""},
		{"a watchdog that the plan does not use", func(s *State, _ *Inputs) { s.Proof.How = ByWatchdog }, ""},
		{"another kind", func(s *State, _ *Inputs) { s.Proof.How = "Guessed" }, ""},
		{"no kind", func(s *State, _ *Inputs) { s.Proof.How = "" }, ""},
	} {
		s, in := acted(t, Releasing, level(true, "bmc"))
		s.Readings = []Reading{offAt("bmc", 40*time.Second, time.Second), offAt("bmc", time.Second, time.Second)}
		s.Proof = &Proof{How: ByReadings, LeaseRenewed: micro(in.Lease.Renewed), At: micro(begin.Add(-80 * time.Second)),
			Readings: []Reading{offAt("bmc", 90*time.Second, time.Second), offAt("bmc", 80*time.Second, time.Second)}}
		c.change(&s, &in)
		next, o := Step(s, in, begin)
		if next.Phase != c.want || (next.Proof != nil) != (c.want != "") {
			t.Errorf("%s: phase %q, proof %+v; want %q", c.name, next.Phase, next.Proof, c.want)
		}
		if o.Taints.OutOfService != (c.want == Releasing) || c.want != Releasing && len(o.Delete) > 0 {
			t.Errorf("%s: taints %+v, deleted %v; want the release: %t", c.name, o.Taints, o.Delete, c.want == Releasing)
		}
		if c.want == OffProven && !slices.Contains(o.Read, "bmc") {
			t.Errorf("%s: read = %v; want the device", c.name, o.Read)
		}
	}
}

// TestEditedToRecovery: a release whose step a person has edited to Recovery goes on with nothing.
func TestEditedToRecovery(t *testing.T) {
	s, in := releasing(begin.Add(time.Minute))
	s.Step = Recovery
	for _, status := range []Status{New, Running, Done, Error} {
		s.Status = status
		if _, o := Step(s, in, begin.Add(time.Minute)); o.Taints.OutOfService || len(o.Delete) > 0 {
			t.Errorf("%s: taints %+v, deleted %v; want no release", status, o.Taints, o.Delete)
		}
	}
}

// TestReleaseEnds checks that a release ends only when the pods that the taint evicts and their volumes are known to be
// gone.
func TestReleaseEnds(t *testing.T) {
	pod, volume := Pod{UID: "p1", Name: "db-0"}, Attachment{UID: "v1", Name: "csi-1"}
	for _, c := range []struct {
		name      string
		load      Load
		untainted bool
		want      Phase
	}{
		{"all gone", Load{PodsKnown: true, AttachmentsKnown: true}, false, Released},
		{"only those that stay", Load{PodsKnown: true, AttachmentsKnown: true, Pods: []Pod{{Tolerates: true}, {DaemonSet: true}, {Mirror: true}},
			Attachments: []Attachment{{KeptByPod: true}}}, false, Released},
		{"a pod", Load{PodsKnown: true, AttachmentsKnown: true, Pods: []Pod{pod}}, false, Releasing},
		{"a pod that ends", Load{PodsKnown: true, AttachmentsKnown: true, Pods: []Pod{{UID: "p1", Terminating: true}}}, false, Releasing},
		{"a volume", Load{PodsKnown: true, AttachmentsKnown: true, Attachments: []Attachment{volume}}, false, Releasing},
		{"pods not listed", Load{AttachmentsKnown: true}, false, Releasing},
		{"volumes not listed", Load{PodsKnown: true}, false, Releasing},
		{"the taint is not set", Load{PodsKnown: true, AttachmentsKnown: true}, true, Releasing},
	} {
		s, in := acted(t, Releasing, level(true, "bmc"))
		s.Readings = []Reading{offAt("bmc", 40*time.Second, time.Second), offAt("bmc", time.Second, time.Second)}
		s.Proof = &Proof{How: ByReadings, LeaseRenewed: micro(in.Lease.Renewed), At: micro(begin.Add(-80 * time.Second)),
			Readings: []Reading{offAt("bmc", 90*time.Second, time.Second), offAt("bmc", 80*time.Second, time.Second)}}
		in.Load, in.Node.OutOfService = c.load, !c.untainted
		next, o := Step(s, in, begin)
		if next.Phase != c.want || o.Taints.OutOfService != (c.want == Releasing) {
			t.Errorf("%s: phase %s, taints %+v; want %s", c.name, next.Phase, o.Taints, c.want)
		}
	}
}

// TestNoDeletionWithoutLease checks that no pod is deleted while it is not known whether the Lease was renewed.
func TestNoDeletionWithoutLease(t *testing.T) {
	for _, known := range []bool{true, false} {
		s, in := acted(t, Releasing, level(true, "bmc"))
		s.Readings = []Reading{offAt("bmc", 40*time.Second, time.Second), offAt("bmc", time.Second, time.Second)}
		s.Proof = &Proof{How: ByReadings, LeaseRenewed: micro(in.Lease.Renewed), At: micro(begin.Add(-80 * time.Second)),
			Readings: []Reading{offAt("bmc", 90*time.Second, time.Second), offAt("bmc", 80*time.Second, time.Second)}}
		in.Node.OutOfService, in.Lease.Known = true, known
		if _, o := Step(s, in, begin); len(o.Delete) > 0 != known {
			t.Errorf("Lease known: %t: deleted %v; want deletion only if it is", known, o.Delete)
		}
	}
}

// TestSlowDevices checks that two devices of one level prove that the machine is off however long their readings take
// that fit twice into ProofTimeout: their last readings need not end at the same time.
func TestSlowDevices(t *testing.T) {
	for a := time.Second; a < 27*time.Second; a += 1300 * time.Millisecond {
		for b := time.Second; b < 27*time.Second; b += 1700 * time.Millisecond {
			s := newSimulation(t, powerPlan(noIdentity(level(false, "plug1", "plug2"))))
			s.devices = map[string]*fakeDevice{"plug1": bmc(), "plug2": bmc()}
			s.devices["plug1"].read, s.devices["plug2"].read = a, b
			s.noJSON = true
			s.until = 10 * time.Minute
			if log := strings.Join(s.run(), "\n"); s.state.Phase != Released || strings.Contains(log, ReasonNotProven) {
				t.Errorf("readings of %v and %v: phase %q:\n%s", a, b, s.state.Phase, log)
			}
		}
	}
}

// TestSlowDeviceOfLivingNode checks that a device which takes longer to read than the Lease is renewed is seen to read
// off: the drill of the plug of another machine ends.
func TestSlowDeviceOfLivingNode(t *testing.T) {
	s := drillSimulation(t)
	s.plan = powerPlan(noIdentity(level(true, "bmc")))
	s.devices["bmc"].foreign, s.devices["bmc"].read = true, 15*time.Second
	s.until = 10 * time.Minute
	if s.run(); !s.state.is(ConditionWaiting) || s.state.Proof != nil {
		t.Errorf("conditions %+v, proof %+v; want that the device is said to read off:\n%s", s.state.Conditions, s.state.Proof,
			strings.Join(s.log, "\n"))
	}
}
