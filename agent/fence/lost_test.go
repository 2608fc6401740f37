package fence

import (
	"strings"
	"testing"
	"time"
)

// TestLostUncordon checks that an uncordon whose controller was killed is repeated, also if it need not succeed:
// nothing else would make the Node schedulable again.
func TestLostUncordon(t *testing.T) {
	for _, must := range []bool{true, false} {
		p := powerPlan(level(true, "bmc"))
		p.Isolation = []Level{{Methods: []Method{{Name: "cordon", Action: Cordon, Deadline: duration(time.Minute)}}}}
		p.Recovery = []Level{{Methods: []Method{{Name: "uncordon", Action: Uncordon, Deadline: duration(time.Minute), MustSuccess: must}}}}
		s := newSimulation(t, p)
		sent, done := 0, 0
		s.check = func(in Inputs, o Orders) {
			for _, x := range in.Outcomes {
				if strings.HasPrefix(x.Intent, "recovery") && x.Kind == Succeeded {
					done++
				}
			}
			if o.Act != nil && o.Act.Action == Uncordon {
				if sent++; sent == 1 {
					s.after(100*time.Millisecond, s.restart)
				}
			}
		}
		s.run()
		if sent != 2 || done != 1 || s.state.Result != Recovered {
			t.Errorf("must_success %t: uncordon was ordered %d times and done %d times, result %q; want 2, 1 and Recovered:\n%s",
				must, sent, done, s.state.Result, strings.Join(s.log, "\n"))
		}
	}
}

// TestErrorWithoutNextAttempt checks that a fence that was set to Error by hand goes on.
func TestErrorWithoutNextAttempt(t *testing.T) {
	s := newSimulation(t, powerPlan(level(true, "bmc")))
	s.script[1100*time.Millisecond] = func(s *simulation) { s.state.Status, s.state.Phase = Error, "" }
	s.run()
	if s.state.Result != Recovered {
		t.Errorf("%s/%s, result %q; want Recovered:\n%s", s.state.Step, s.state.Status, s.state.Result, strings.Join(s.log, "\n"))
	}
}

// TestTwoControllersWait checks that two controllers which run at the same time, and neither of which executes the
// intent, do not make each other wait for ever. Nor do they wait for less than the time of the act.
func TestTwoControllersWait(t *testing.T) {
	s := newSimulation(t, powerPlan(level(true, "bmc")))
	intent := Intent{ID: "power-management-1-0-0", Attempt: 1, Step: PowerManagement, Method: "bmc-off", Action: Off, Executor: "c0",
		Issued: micro(begin), Deadline: micro(begin.Add(time.Minute))}
	state, _ := Open(s.node, s.lease, s.plan, false, begin)
	state.Step, state.Status, state.Attempt, state.Intent = PowerManagement, Running, 1, &intent
	const seen = 10 * time.Second
	over := time.Duration(0)
	for at := seen; at < 5*time.Minute && over == 0; at += time.Second {
		for _, executor := range []string{"c1", "c2"} {
			in := Inputs{Node: s.node, Lease: s.lease, Load: s.load, Gate: s.gate, Executor: executor, IntentSince: begin.Add(seen)}
			if state, _ = Step(state, in, begin.Add(at)); state.Intent == nil {
				over = at
				break
			}
		}
	}
	if want := seen + time.Minute; over != want {
		t.Errorf("the wait for the intent was over after %s, want %s", over, want)
	}
}
