package fence

import (
	"testing"
	"time"
)

// TestNewLeaderClock: a new leader waits for the act of another one for its whole time, from when it saw it first. Its
// clock may differ from that of the other one by 10 minutes, and may be set in the middle of the wait.
func TestNewLeaderClock(t *testing.T) {
	const minutes = 10 * time.Minute
	for _, tt := range []struct {
		name string
		// ahead is how far the new leader's clock is ahead of the one that the act was issued with, step by how much it is
		// set 20 s after it saw the act.
		ahead, step time.Duration
		want        time.Duration
	}{
		{"same", 0, 0, time.Minute},
		{"ahead", minutes, 0, time.Minute},
		// The deadline is waited for, too: the other one may live.
		{"behind", -minutes, 0, time.Minute + minutes - 5*time.Second},
		{"set forward", 0, minutes, time.Minute},
		{"ahead, set back", minutes, -minutes, time.Minute},
		{"set back", 0, -5 * time.Second, time.Minute},
	} {
		s := newSimulation(t, powerPlan(level(true, "bmc")))
		state, _ := Open(s.node, s.lease, s.plan, false, begin)
		issued := begin.Add(-tt.ahead)
		state.Step, state.Status, state.Attempt = PowerManagement, Running, 1
		state.Intent = &Intent{ID: "power-management-1-0-0", Attempt: 1, Step: PowerManagement, Method: "bmc-off", Action: Off,
			Executor: "c0", Issued: micro(issued), Deadline: micro(issued.Add(time.Minute))}
		// The new leader sees the act 5 s after it was issued.
		var over, writes time.Duration
		for waited := time.Duration(0); waited < 20*time.Minute; waited += time.Second {
			now := begin.Add(5*time.Second + waited)
			if waited >= 20*time.Second {
				now = now.Add(tt.step)
			}
			before := state.IntentSeen
			in := Inputs{Node: s.node, Lease: s.lease, Load: s.load, Gate: s.gate, Executor: "c1", IntentSince: now.Add(-waited)}
			if state, _ = Step(state, in, now); state.Intent == nil {
				over = waited
				break
			}
			if state.IntentSeen != before {
				writes++
			}
		}
		if over != tt.want || writes > 2 {
			t.Errorf("%s: the wait was over after %v with %d writes of its start; want %v and at most 2", tt.name, over, writes, tt.want)
		}
	}
}
