package fence

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestSuspect(t *testing.T) {
	old, young := begin.Add(-time.Minute), begin.Add(-59*time.Second)
	lease := Lease{Known: true, Found: true, Renewed: old, UnchangedSince: old}
	for _, c := range []struct {
		name   string
		change func(*Node, *Lease)
		want   bool
	}{
		{"Unknown and unchanged", func(*Node, *Lease) {}, true},
		{"False and unchanged", func(n *Node, _ *Lease) { n.Ready = ReadyFalse }, true},
		{"no condition", func(n *Node, _ *Lease) { n.Ready = "" }, true},
		{"Ready", func(n *Node, _ *Lease) { n.Ready = ReadyTrue }, false},
		{"no node", func(n *Node, _ *Lease) { n.Found = false }, false},
		{"False and renewed", func(n *Node, l *Lease) { n.Ready, l.Renewed = ReadyFalse, young }, false},
		{"no Lease", func(_ *Node, l *Lease) { l.Found = false }, false},
		{"Lease not read", func(_ *Node, l *Lease) { l.Known = false }, false},
		{"old by the node's clock, young by ours", func(_ *Node, l *Lease) { l.UnchangedSince = young }, false},
		{"never seen", func(_ *Node, l *Lease) { l.UnchangedSince = time.Time{} }, false},
		{"renewTime in the future", func(_ *Node, l *Lease) { l.Renewed = begin.Add(time.Hour) }, false},
	} {
		n, l := Node{Found: true, Ready: ReadyUnknown}, lease
		c.change(&n, &l)
		if got := Suspect(n, l, DefaultTimings(), begin); got != c.want {
			t.Errorf("Suspect(%s) = %v; want %v", c.name, got, c.want)
		}
	}
}

func TestSameMachine(t *testing.T) {
	for _, c := range []struct {
		device, node string
		want         Match
	}{
		{uuid, uuid, Yes},
		{strings.ToUpper(uuid), uuid, Yes},
		{strings.ReplaceAll(uuid, "-", ""), uuid, Yes},
		{"674523a1-ab89-efcd-a123-456789abcdef", uuid, Yes},
		{uuid, "674523a1-ab89-efcd-a123-456789abcdef", Yes},
		{"efcdab89-6745-23a1-efcd-ab89674523a1", uuid, Yes},
		{"b1234567-89ab-cdef-a123-456789abcdef", uuid, No},
		{"674523a1-89ab-cdef-a123-456789abcdef", uuid, No},
		{"", uuid, NotComparable},
		{uuid, "", NotComparable},
		{"00000000-0000-0000-0000-000000000000", uuid, NotComparable},
		{uuid, "ffffffff-ffff-ffff-ffff-ffffffffffff", NotComparable},
		{"a1234567_89ab_cdef_a123_456789abcdef", uuid, NotComparable},
		{"a1234567-89ab-cdef-a123-456789abcdeg", uuid, NotComparable},
		{"4c4c4544", "4c4c4544", NotComparable},
	} {
		if got := SameMachine(c.device, c.node); got != c.want {
			t.Errorf("SameMachine(%q, %q) = %s; want %s", c.device, c.node, got, c.want)
		}
	}
}

// TestMessages checks the texts for operators.
func TestMessages(t *testing.T) {
	s := newSimulation(t, powerPlan(level(true, "bmc")))
	s.dryRun, s.until = true, time.Minute
	s.run()
	var got []string
	for _, e := range s.state.History {
		got = append(got, e.Message)
	}
	want := []string{
		"node is not Ready (Unknown) and its Lease has not changed since 2030-01-02T03:03:05Z; " +
			"dry run: would set the taint evictd.io/fencing:NoSchedule",
		"the plan has no isolation methods",
		"attempt 1 of Power-Management",
		"dry run: would switch off by bmc-off (attempt 1)",
		"the power devices are read in sessions of their own",
		"dry run: after the proof that the machine is off, would release 1 pods and 1 volume attachments; " +
			"nothing was switched off; bmc: On",
	}
	if g, w := strings.Join(got, "\n"), strings.Join(want, "\n"); g != w {
		t.Errorf("history:\n%s\nwant:\n%s", g, w)
	}
}

// TestStuckNames checks that a release that is stuck names what is left.
func TestStuckNames(t *testing.T) {
	s := newSimulation(t, powerPlan(level(true, "bmc")))
	s.until = 11 * time.Minute
	for i := range 7 {
		s.load.Attachments = append(s.load.Attachments, Attachment{UID: fmt.Sprint(i), Name: fmt.Sprint("csi-x", i)})
	}
	s.load.Pods = nil // no pod: the fake attacher, which waits for one, detaches nothing
	s.run()
	if !s.state.is(ConditionReleaseStuck) || s.state.Acting() {
		t.Fatalf("conditions = %+v; want ReleaseStuck, which frees the slot", s.state.Conditions)
	}
	want := "not gone yet: volume attachment csi-1, volume attachment csi-x0, volume attachment csi-x1, " +
		"volume attachment csi-x2, volume attachment csi-x3 and 3 more"
	for _, c := range s.state.Conditions {
		if c.Type == ConditionReleaseStuck && c.Message != want {
			t.Errorf("message = %q; want %q", c.Message, want)
		}
	}
}

// TestStepChangesNoInput checks that Step does not change the state that it is given.
func TestStepChangesNoInput(t *testing.T) {
	s := newSimulation(t, powerPlan(level(true, "bmc")))
	var before State
	s.script[0] = func(s *simulation) { before = s.state }
	s.check = func(in Inputs, _ Orders) {
		// A second Step from the same state has the same result.
		a, ordersA := Step(before, in, s.now())
		b, ordersB := Step(before, in, s.now())
		if fmt.Sprint(a.Detail.History, a.Readings, a.Acts, a.Conditions, ordersA.Events, ordersA.Read) !=
			fmt.Sprint(b.Detail.History, b.Readings, b.Acts, b.Conditions, ordersB.Events, ordersB.Read) {
			t.Fatalf("at %v: Step changed its argument", s.at)
		}
		before = s.state
	}
	s.run()
}

// TestNotReleased checks that a rule alone keeps a fence from being proven or released.
func TestNotReleased(t *testing.T) {
	for _, c := range []struct {
		name   string
		setup  func(*simulation)
		reason string // that must not be in the history
	}{
		{"one reading, without an interval", func(s *simulation) {
			s.plan.Timings.ProofInterval.Duration = 0
			s.until = 1402 * time.Millisecond
		}, ReasonOffProven},
		{"plug of a level that was not used reads off", func(s *simulation) {
			s.plan = powerPlan(level(true, "bmc"), noIdentity(level(true, "plug")))
			s.devices["plug"] = bmc()
			s.devices["plug"].on = false
			s.devices["bmc"].silent = 201 * time.Millisecond
			s.until = time.Minute
		}, ReasonOffProven},
		{"another device read on, and is silent since", func(s *simulation) {
			s.plan = powerPlan(level(true, "bmc"), noIdentity(level(true, "plug")))
			s.devices["plug"] = bmc()
			s.devices["plug"].silent = 1300 * time.Millisecond
			s.until = time.Minute
		}, ReasonOffProven},
		{"silent after the proof", func(s *simulation) {
			s.devices["bmc"].silent = 6500 * time.Millisecond
			s.until = time.Minute
		}, ReasonReleasing},
		{"Ready after the proof", func(s *simulation) {
			s.script[6603*time.Millisecond] = func(s *simulation) { s.node.Ready = ReadyTrue }
		}, ReasonReleasing},
		{"Lease renewed after the proof", func(s *simulation) {
			s.script[6603*time.Millisecond] = func(s *simulation) { s.lease.Renewed = s.now() }
		}, ReasonReleasing},
		{"Lease not read after the proof", func(s *simulation) {
			s.script[6603*time.Millisecond] = func(s *simulation) { s.lease.Known = false }
		}, ReasonReleasing},
		{"Lease renewed every 10 s, the device lies", func(s *simulation) {
			s.devices["bmc"].lies, s.devices["bmc"].ignores = true, true
			s.script[2*time.Second] = func(s *simulation) { s.leaseRuns = true }
		}, ReasonOffProven},
		{"Lease not read, the device lies", func(s *simulation) {
			s.devices["bmc"].lies = true
			s.script[2*time.Second] = func(s *simulation) { s.lease.Known = false }
		}, ReasonOffProven},
		{"confirmed while the Lease is renewed", func(s *simulation) {
			s.gate.Open = false
			s.script[2*time.Second] = func(s *simulation) { s.leaseRuns, s.node.ConfirmOff = true, fenceUID }
		}, ReasonConfirmedOff},
		{"confirmed while Ready", func(s *simulation) {
			s.gate.Open = false
			s.script[2*time.Second] = func(s *simulation) { s.node.Ready, s.node.ConfirmOff = ReadyTrue, fenceUID }
		}, ReasonConfirmedOff},
		{"confirmed with the UID of another fence", func(s *simulation) {
			s.gate.Open = false
			s.node.ConfirmOff = "other"
		}, ReasonConfirmedOff},
		{"confirmed in dry run", func(s *simulation) {
			s.dryRun = true
			s.node.ConfirmOff = fenceUID
		}, ReasonConfirmedOff},
		{"another machine: no act", func(s *simulation) { s.devices["bmc"].uuid = "b" + uuid[1:] }, ReasonActStarted},
		{"no UUID: no act", func(s *simulation) { s.devices["bmc"].uuid = "" }, ReasonActStarted},
		{"not Ready but renews its Lease: no act", func(s *simulation) {
			s.gate.Open = false
			s.script[2*time.Second] = func(s *simulation) { s.leaseRuns, s.node.Ready, s.gate.Open = true, ReadyFalse, true }
		}, ReasonActStarted},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSimulation(t, powerPlan(level(true, "bmc")))
			s.until = 10 * time.Minute
			c.setup(s)
			s.run()
			for _, e := range s.state.History {
				if e.Reason == c.reason {
					t.Errorf("%s:\n%s", c.reason, strings.Join(s.log, "\n"))
				}
			}
		})
	}
}

// TestOneAttemptAfterGaveUp checks that a device that is away and back again and again gets one attempt.
func TestOneAttemptAfterGaveUp(t *testing.T) {
	s := newSimulation(t, powerPlan(level(true, "bmc")))
	d := s.devices["bmc"]
	d.ignores, d.silent = true, 0
	for i := range 4 {
		at := time.Duration(i+1) * 20 * time.Minute
		s.script[at] = func(*simulation) { d.silent = never }
		s.script[at+10*time.Minute] = func(*simulation) { d.silent = 0 }
	}
	s.run()
	got := 0
	for _, e := range s.state.History {
		if e.Reason == ReasonDeviceAnswersAgain {
			got++
		}
	}
	if got != 1 || !s.state.is(ConditionGaveUp) {
		t.Errorf("attempts after GaveUp = %d; want 1:\n%s", got, strings.Join(s.log, "\n"))
	}
}
