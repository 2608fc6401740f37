package fence

import (
	"testing"
	"time"
)

// releasing returns a fence that releases a node whose machine is proven off, and what is observed of it at a time.
func releasing(now time.Time) (State, Inputs) {
	s := newSimulation(nil, powerPlan(level(false, "bmc")))
	s.state, _ = Open(s.node, s.lease, s.plan, false, begin)
	s.state.UID, s.state.Attempt = fenceUID, 1
	s.state.Step, s.state.Status, s.state.Phase = PowerManagement, Running, Releasing
	s.state.Deadline = micro(begin.Add(30 * time.Minute))
	s.state.Proof = &Proof{How: ByReadings, LeaseRenewed: micro(s.lease.Renewed), At: micro(begin.Add(10 * time.Second)), Readings: []Reading{
		{Device: "bmc", Power: PowerOff, UUID: uuid, Started: micro(begin), Ended: micro(begin.Add(time.Second))},
		{Device: "bmc", Power: PowerOff, UUID: uuid, Started: micro(begin.Add(8 * time.Second)), Ended: micro(begin.Add(9 * time.Second))},
	}}
	s.node.OutOfService = true
	s.lease.UnchangedSince = now.Add(-2 * time.Minute)
	return s.state, Inputs{Node: s.node, Lease: s.lease, Load: s.load, Gate: s.gate, Executor: "c0"}
}

// A device that reads on takes a proof back, whatever the clock says: it may have been set back since.
func TestOnAfterClockStep(t *testing.T) {
	for _, step := range []time.Duration{time.Minute, -time.Hour} {
		now := begin.Add(step)
		s, in := releasing(now)
		in.Readings = []Reading{{Device: "bmc", Power: PowerOn, UUID: uuid, Started: micro(now.Add(-time.Second)), Ended: micro(now)}}
		s, o := Step(s, in, now)
		if s.Proof != nil || o.Taints.OutOfService || len(o.Delete) > 0 {
			t.Errorf("clock %v: after on: proof %+v, taints %+v, deleted %v; want the release to end", step, s.Proof, o.Taints, o.Delete)
		}
	}
}

// A reading of a controller whose clock is ahead, or from before the clock was set back, is not one from now.
func TestReadingsFromTheFuture(t *testing.T) {
	now := begin
	s, in := releasing(now)
	ahead := now.Add(10 * time.Minute)
	s.Phase, s.Proof, s.Since = Proving, nil, micro(now)
	s.Readings = []Reading{
		{Device: "bmc", Power: PowerOff, UUID: uuid, Started: micro(ahead), Ended: micro(ahead.Add(time.Second))},
		{Device: "bmc", Power: PowerOff, UUID: uuid, Started: micro(ahead.Add(10 * time.Second)), Ended: micro(ahead.Add(11 * time.Second))},
	}
	s, o := Step(s, in, now)
	if s.Proof != nil || s.Phase != Proving || len(o.Read) == 0 {
		t.Errorf("phase %s, proof %+v, reads %v; want Proving and a new reading", s.Phase, s.Proof, o.Read)
	}
}

// No reading follows another one at once whose result would be dropped, as the last act, or the last reading on, is not
// before it: the clock was set back, or the NodeFence was edited.
func TestNoReadingBeforeLastAct(t *testing.T) {
	now := begin
	for _, tt := range []struct {
		act, on time.Duration
		reads   int
	}{{-time.Minute, -2 * time.Minute, 1}, {0, -time.Minute, 0}, {time.Hour, -time.Minute, 0}, {-time.Minute, time.Hour, 0}} {
		s, in := releasing(now)
		s.Phase, s.LastAct, s.LastOn, s.Readings = OffProven, micro(now.Add(tt.act)), micro(now.Add(tt.on)), nil
		s.Proof.At = micro(now.Add(-time.Second))
		if _, o := Step(s, in, now); len(o.Read) != tt.reads {
			t.Errorf("last act in %v, on in %v: reads %v; want %d", tt.act, tt.on, o.Read, tt.reads)
		}
	}
}

// While the clock says that nothing which is read off counts, the devices are read on in a release: one that is on ends it.
// In the other phases nothing is read. Neither has one reading follow another at once.
func TestReadingsAfterClockStep(t *testing.T) {
	now, ahead := begin.Add(2*time.Minute), micro(begin.Add(10*time.Minute))
	for name, change := range map[string]func(*State, *Inputs){
		"last act": func(s *State, _ *Inputs) { s.LastAct = ahead },
		"last on":  func(s *State, _ *Inputs) { s.LastOn = ahead },
		"Lease":    func(_ *State, in *Inputs) { in.Lease.UnchangedSince = ahead.Time },
		"proof":    func(s *State, _ *Inputs) { s.Proof.At = ahead },
		"nothing":  func(*State, *Inputs) {},
	} {
		for _, phase := range []Phase{Proving, OffProven, Releasing} {
			s, in := releasing(now)
			s.Phase, s.Since, s.LastAct = phase, micro(now), micro(begin.Add(-time.Minute))
			change(&s, &in)
			reads, off := 0, s
			for at := now; at.Before(now.Add(30 * time.Second)); at = at.Add(20 * time.Millisecond) {
				var o Orders
				off, o = Step(off, in, at)
				in.Readings = nil
				for _, d := range o.Read {
					reads++
					in.Readings = append(in.Readings, Reading{Device: d, Power: PowerOff, UUID: uuid, Started: micro(at), Ended: micro(at)})
				}
				if len(o.Read) == 0 && o.Wake.After(at.Add(20*time.Millisecond)) {
					at = o.Wake.Add(-20 * time.Millisecond) // nothing else has it look again
				}
			}
			if phase == Releasing && reads < 6 || reads > 8 {
				t.Errorf("%s, %s: %d readings in 30 s; want one each 5 s", name, phase, reads)
			}
			if phase != Releasing {
				continue
			}
			in.Readings = []Reading{{Device: "bmc", Power: PowerOn, UUID: uuid, Started: micro(now), Ended: micro(now)}}
			if s, o := Step(s, in, now); s.Proof != nil || o.Taints.OutOfService {
				t.Errorf("%s: released although the device is on", name)
			}
		}
	}
}

// The release waits for a reading of each device of the node, for ProofTimeout at most: one that is slow may say on.
func TestSlowDeviceOfTheNode(t *testing.T) {
	at := func(d time.Duration) time.Time { return begin.Add(20*time.Second + d) }
	for _, tt := range []struct {
		name  string
		other *Reading
		after time.Duration // of the step, from OffProven on
		want  Phase
	}{
		{"not read yet", nil, 0, OffProven},
		{"not read for the whole time", nil, time.Minute, Releasing},
		{"read before the act", &Reading{Power: PowerUnknown, Started: micro(begin.Add(-2 * time.Second)), Ended: micro(begin.Add(-time.Second))}, 0, OffProven},
		{"silent", &Reading{Power: PowerUnknown, Error: "no answer", Started: micro(begin.Add(time.Second)), Ended: micro(at(-time.Second))}, 0, Releasing},
		{"on", &Reading{Power: PowerOn, UUID: uuid, Started: micro(begin.Add(time.Second)), Ended: micro(at(-time.Second))}, 0, ""},
	} {
		now := at(tt.after)
		s, in := releasing(now)
		s.Plan = powerPlan(level(false, "bmc"), level(false, "slow"))
		s.Phase, s.Since, s.LastAct = OffProven, micro(at(0)), micro(begin)
		s.Readings = []Reading{{Device: "bmc", Power: PowerOff, UUID: uuid, Started: micro(now.Add(-2 * time.Second)), Ended: micro(now.Add(-time.Second))}}
		if tt.other != nil {
			tt.other.Device = "slow"
			in.Readings = []Reading{*tt.other}
		}
		if s, _ = Step(s, in, now); s.Phase != tt.want {
			t.Errorf("%s: phase %q; want %q", tt.name, s.Phase, tt.want)
		}
	}
}

// A fence whose saved proof is gone releases nothing.
func TestProofMissing(t *testing.T) {
	for _, phase := range []Phase{OffProven, Releasing} {
		s, in := releasing(begin.Add(time.Minute))
		s.Phase, s.Proof = phase, nil
		s, o := Step(s, in, begin.Add(time.Minute))
		if s.Phase != "" || o.Taints.OutOfService || len(o.Delete) > 0 {
			t.Errorf("%s: phase %s, taints %+v, deleted %v; want the release to end", phase, s.Phase, o.Taints, o.Delete)
		}
	}
	s, in := releasing(begin.Add(time.Minute))
	s.Phase, s.Proof, s.Untainted = Released, nil, micro(begin)
	in.Node.OutOfService = false
	s.Plan.PowerManagement = []Level{level(true, "bmc")}
	if s, _ = Step(s, in, begin.Add(time.Minute)); s.Phase != Released {
		t.Errorf("phase = %s; want Released", s.Phase)
	}
}

// A device that says on and not whose machine it is has not answered the question whose it is: the question is repeated
// until the deadline. That it is on contradicts a proof nevertheless.
func TestOnWithoutUUID(t *testing.T) {
	now := begin.Add(time.Second)
	s, in := releasing(now)
	s.Phase, s.Proof, s.Since = "", nil, micro(begin)
	in.Readings = []Reading{{Device: "bmc", Power: PowerOn, Error: "no session", Started: micro(begin.Add(-10 * time.Second)), Ended: micro(now)}}
	after, o := Step(s, in, now)
	if len(after.Acts) > 0 || len(o.Read) != 1 || after.is(ConditionIdentityMismatch) {
		t.Errorf("acts %+v, reads %v, mismatch %t; want the device read again", after.Acts, o.Read, after.is(ConditionIdentityMismatch))
	}
	now = begin.Add(time.Minute)
	in.Readings[0].Started, in.Readings[0].Ended = micro(now.Add(-time.Second)), micro(now)
	after, o = Step(s, in, now)
	if o.Act != nil || len(after.Acts) != 1 || after.Acts[0].Outcome.Kind != Refused || after.Status != Error {
		t.Errorf("after the deadline: act %+v, acts %+v, status %s; want one refused and the next attempt", o.Act, after.Acts, after.Status)
	}
	s, again := releasing(now)
	again.Readings = in.Readings
	if s, o = Step(s, again, now); s.Proof != nil || o.Taints.OutOfService {
		t.Errorf("proof %+v, taints %+v; want the proof void", s.Proof, o.Taints)
	}
}

// A machine may boot with a clock that is behind. Its node is back nevertheless.
func TestReturnWithClockBehind(t *testing.T) {
	now := begin.Add(time.Minute)
	s, in := releasing(now)
	s.Phase, s.Status, in.Node.OutOfService = Released, Done, false
	in.Node.Ready, in.Node.BootID = ReadyTrue, "b2"
	in.Lease.Renewed, in.Lease.UnchangedSince = begin.AddDate(-40, 0, 0), now
	if s, _ = Step(s, in, now); s.HealthySince.IsZero() {
		t.Errorf("the node is not taken for Ready: %+v", s.Conditions)
	}
	in.Lease.Renewed = s.Target.LeaseRenewed.Time
	if s, _ = Step(s, in, now); !s.HealthySince.IsZero() {
		t.Error("a node that has not renewed its Lease is taken for Ready")
	}
}
