package fence

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// TestBMCAnswersWithoutOutlets: a BMC of the node that answers although the outlets are off contradicts the proof.
func TestBMCAnswersWithoutOutlets(t *testing.T) {
	for _, c := range []struct {
		name  string
		setup func(*simulation)
		// proven and released say that the outlets were proven off, and that the node was released by them.
		proven, released bool
	}{
		{"the BMC loses its power with the machine", func(s *simulation) { s.devices["bmc"].silent = time.Millisecond }, true, true},
		{"capacitors feed it for a while", func(s *simulation) { s.devices["bmc"].silent = 20 * time.Second }, true, true},
		{"it goes on", func(*simulation) {}, false, false},
		{"it goes on, slower than the outlets", func(s *simulation) { s.devices["bmc"].read = time.Second }, false, false},
		{"it goes on, slower than two readings of the outlets", func(s *simulation) { s.devices["bmc"].read = 8 * time.Second }, true, false},
		{"it goes on, very slow", func(s *simulation) { s.devices["bmc"].read = 25 * time.Second }, true, false},
		{"capacitors feed it, and it is slower than the outlets", func(s *simulation) {
			d := s.devices["bmc"]
			d.read, d.silent = time.Second, 33*time.Second
		}, true, true},
		{"it has power of its own", func(s *simulation) {
			for i := range s.plan.PowerManagement[0].Methods {
				s.plan.PowerManagement[0].Methods[i].SeparatePower = true
			}
		}, true, true},
		{"it reads off", func(s *simulation) {
			d := s.devices["bmc"]
			d.on, d.repaired = false, 3*time.Second
		}, true, true},
		{"it reads off, of another machine", func(s *simulation) {
			d := s.devices["bmc"]
			d.on, d.repaired, d.uuid = false, 3*time.Second, "b"+uuid[1:]
		}, false, false},
		{"it reads off, of a machine that is not known", func(s *simulation) {
			d := s.devices["bmc"]
			d.on, d.repaired, d.uuid = false, 3*time.Second, strings.Repeat("0", 32)
		}, false, false},
		{"it answers again while the gate is closed", func(s *simulation) {
			s.devices["bmc"].silent, s.devices["bmc"].answers = time.Millisecond, 5*time.Minute
			s.script[36450*time.Millisecond] = func(s *simulation) { s.gate.Open = false }
			s.script[10*time.Minute] = func(s *simulation) { s.gate.Open = true }
		}, true, false},
		{"it answers again just before the release, and falls silent", func(s *simulation) {
			d := s.devices["bmc"]
			d.silent = time.Millisecond
			s.script[36450*time.Millisecond] = func(s *simulation) { s.gate.Open = false }
			s.script[60*time.Second] = func(*simulation) { d.silent = never }
			s.script[62*time.Second] = func(s *simulation) { s.gate.Open = true }
			s.script[70*time.Second] = func(*simulation) { d.silent = 0 }
			s.check = func(Inputs, Orders) {
				if s.at < 70*time.Second && s.state.Phase == Releasing {
					s.t.Error("released while the BMC answers")
				}
				if s.state.Retries > 0 {
					s.t.Error("a new attempt before Settle is over")
				}
			}
		}, true, true},
		{"it answers again during the release", func(s *simulation) {
			s.devices["bmc"].silent, s.devices["bmc"].answers = time.Millisecond, 5*time.Minute
			s.load.AttachmentsKnown = false
		}, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSimulation(t, powerPlan(level(false, "bmc"), plugs("plug")))
			s.devices["plug"] = bmc()
			s.devices["bmc"].broken = time.Millisecond
			s.until = 40 * time.Minute
			c.setup(s)
			for i := range s.plan.PowerManagement[1].Methods {
				s.plan.PowerManagement[1].Methods[i].Name = "plug-" + string(s.plan.PowerManagement[1].Methods[i].Action)
			}
			var proven, released bool
			check := s.check
			s.check = func(in Inputs, o Orders) {
				if check != nil {
					check(in, o)
				}
				has := func(reason string) bool {
					return slices.ContainsFunc(o.Events, func(e Event) bool { return e.Reason == reason })
				}
				proven, released = proven || has(ReasonOffProven), released || has(ReasonReleased)
			}
			s.run()
			if proven != c.proven || released != c.released {
				t.Errorf("proven %t, released %t; want %t, %t:\n%s", proven, released, c.proven, c.released, strings.Join(s.log, "\n"))
			}
			if c.released {
				return
			}
			message := ""
			for _, x := range s.state.Conditions {
				message += x.Message + "\n"
			}
			if !strings.Contains(message, "device bmc answers although the outlets are off") || s.taints.OutOfService {
				t.Errorf("out-of-service %t, conditions:\n%s\nwant the BMC named", s.taints.OutOfService, message)
			}
		})
	}
}
