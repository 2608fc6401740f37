package fence

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// ahead moves each time of a fence's state forward, as if the clock had been set back since. Those of Leases are of other
// clocks.
func ahead(v reflect.Value, by time.Duration) {
	switch x := v.Addr().Interface().(type) {
	case *metav1.MicroTime:
		if !x.IsZero() {
			x.Time = x.Add(by)
		}
		return
	case *metav1.Time:
		x.Time = x.Add(by)
		return
	case *metav1.Duration, *Target:
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			ahead(v.Elem(), by)
		}
	case reflect.Slice:
		for i := range v.Len() {
			ahead(v.Index(i), by)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).Name != "LeaseRenewed" {
				ahead(v.Field(i), by)
			}
		}
	}
}

// setBack sets the clock back.
func (s *simulation) setBack(by time.Duration) {
	s.state = s.state.clone()
	s.state.Acts, s.state.History = slices.Clone(s.state.Acts), slices.Clone(s.state.History)
	if s.state.Proof != nil {
		p := *s.state.Proof
		p.Readings = slices.Clone(p.Readings)
		s.state.Proof = &p
	}
	ahead(reflect.ValueOf(&s.state.Detail).Elem(), by)
}

// TestClockSetBack: a clock that is set back by a year at any time of a fence has it wait no longer than for an act, and one
// that a person confirms neither.
func TestClockSetBack(t *testing.T) {
	const year = 365 * 24 * time.Hour
	isolated := powerPlan(level(true, "bmc"))
	isolated.Isolation = []Level{noIdentity(level(false, "switch"))}
	for name, setup := range map[string]func(*simulation){
		"fenced":   func(*simulation) {},
		"isolated": func(s *simulation) { s.plan = isolated },
		"ignored once": func(s *simulation) {
			s.devices["bmc"].ignores = true
			s.script[70*time.Second] = func(s *simulation) { s.devices["bmc"].ignores = false }
		},
		"confirmed": func(s *simulation) {
			s.devices["bmc"].silent = time.Millisecond
			s.script[45*time.Second] = func(s *simulation) { s.node.ConfirmOff = fenceUID }
			s.script[10*time.Minute] = func(s *simulation) { s.boot("b2") }
		},
		"held": func(s *simulation) {
			s.gate = storm
			s.script[time.Minute] = func(s *simulation) { s.gate = Gate{Open: true} }
		},
	} {
		for at := 50 * time.Millisecond; at < 10*time.Minute; at += 1700 * time.Millisecond {
			s := newSimulation(t, powerPlan(level(true, "bmc")))
			s.devices["switch"], s.noJSON, s.until = bmc(), true, 20*time.Minute
			setup(s)
			script := s.script[at]
			s.script[at] = func(s *simulation) {
				s.setBack(year)
				if script != nil {
					script(s)
				}
			}
			log := strings.Join(s.run(), "\n")
			if s.state.Result != Recovered || !strings.Contains(log, ": Released ") {
				t.Errorf("%s, set back after %v: %s %s %s\n%s", name, at, s.state.Step, s.state.Status, s.state.Phase, log)
				break
			}
		}
	}
}
