package fence

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
)

// TestFailureTimelines: what a machine and its BMC do by themselves in the middle of a fence. Each node recovers.
func TestFailureTimelines(t *testing.T) {
	for _, c := range []struct {
		name  string
		setup func(*simulation)
		offs  int    // acts that switch off
		has   string // is in the timeline, before the release
		kept  bool   // nothing is released
	}{
		{"on by power policy before the proof", func(s *simulation) {
			s.script[3*time.Second] = func(s *simulation) { s.devices["bmc"].on = true }
		}, 2, "NotProven!", false},
		{"BMC and node are back after GaveUp", func(s *simulation) {
			s.devices["bmc"].silent, s.devices["bmc"].answers = 0, 20*time.Minute
			s.script[20*time.Minute] = func(s *simulation) { s.boot("b1") }
		}, 0, "GaveUp!", true},
		{"button pressed in Released", func(s *simulation) {
			s.script[8500*time.Millisecond] = func(s *simulation) { s.power(s.devices["bmc"], On) }
		}, 1, "OffProven", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSimulation(t, powerPlan(level(true, "bmc")))
			s.until = time.Hour
			c.setup(s)
			log := strings.Join(s.run(), "\n")
			if n := strings.Count(log, "=bmc-off"); n != c.offs {
				t.Errorf("switched off %d times; want %d", n, c.offs)
			}
			before, _, released := strings.Cut(log, "out-of-service=true")
			if !strings.Contains(before, c.has) || released == c.kept {
				t.Errorf("released: %t; want %t, after %s", released, !c.kept, c.has)
			}
			if s.state.Result != Recovered || s.taints != (Taints{}) {
				t.Errorf("result %q, taints %+v; want Recovered and none", s.state.Result, s.taints)
			}
			if t.Failed() {
				t.Log(log)
			}
		})
	}
}

// A reading that fails at once is repeated after ProofInterval, not in the step that follows because its result was saved.
func TestReadingThatFailsAtOnce(t *testing.T) {
	for _, power := range []Power{PowerUnknown, PowerOn} {
		s := newSimulation(t, powerPlan(level(true, "bmc")))
		state, _ := Open(s.node, s.lease, s.plan, false, begin)
		state.UID = fenceUID
		in := Inputs{Node: s.node, Lease: s.lease, Load: s.load, Gate: s.gate, Executor: "c0"}
		reads, limit := 0, int(s.plan.PowerManagement[0].Methods[0].Deadline.Duration/s.plan.Timings.ProofInterval.Duration)+1
		for now := begin; len(state.Acts) == 0 && now.Before(begin.Add(2*time.Minute)); now = now.Add(20 * time.Millisecond) {
			var o Orders
			state, o = Step(state, in, now)
			in.Readings = nil
			for _, d := range o.Read {
				reads++
				in.Readings = append(in.Readings, Reading{Device: d, Power: power, Error: "refused", Started: micro(now), Ended: micro(now.Add(time.Millisecond))})
			}
		}
		if len(state.Acts) != 1 || state.Acts[0].Outcome.Kind != Refused || reads < 2 || reads > limit {
			t.Errorf("%s: %d readings before the acts %+v; want at most %d before one that is refused", power, reads, state.Acts, limit)
		}
	}
}

// TestGaveUpSaysWhy: the condition GaveUp of a fence that could send nothing has the error of the device.
func TestGaveUpSaysWhy(t *testing.T) {
	s := newSimulation(t, powerPlan(level(true, "bmc")))
	s.devices["bmc"].silent = 0
	s.until = 20 * time.Minute
	s.run()
	const why = "off by bmc-off: its device did not tell the UUID of its machine: no answer"
	if c := meta.FindStatusCondition(s.state.Conditions, ConditionGaveUp); c == nil || !strings.Contains(c.Message, why) {
		t.Errorf("GaveUp = %+v; want %q", c, why)
	}
}
