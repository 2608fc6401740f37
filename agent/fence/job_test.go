package fence

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestJobs: a fence names the Jobs of its step and attempt, each of which has a name of its own.
func TestJobs(t *testing.T) {
	p := powerPlan(level(true, "bmc"), level(true, "pdu"))
	for _, l := range p.PowerManagement {
		for i := range l.Methods {
			l.Methods[i].Executor = InJob
		}
	}
	s := newSimulation(t, p)
	s.devices["bmc"].ignores = true
	s.devices["pdu"] = bmc()
	s.devices["pdu"].ignores = true
	s.done = func() bool { return s.state.Attempt == 2 && s.state.Level == 1 && len(s.state.Acts) == 2 }
	s.run()
	want := []string{JobName(s.state.UID, "power-management-2-0-0"), JobName(s.state.UID, "power-management-2-1-0")}
	if diff := cmp.Diff(want, s.state.Jobs); diff != "" {
		t.Errorf("Jobs in attempt %d (-want +got):\n%s", s.state.Attempt, diff)
	}
}

func TestJobName(t *testing.T) {
	for _, tt := range []struct{ fence, id, want string }{
		{"22222222-3333-0000-0000-000000000000", "isolation-1-0-0", "fence-222222223333-isolation-1-0-0"},
		{"short", "read-1", "fence-short-read-1"},
	} {
		if got := JobName(tt.fence, tt.id); got != tt.want {
			t.Errorf("JobName(%s, %s) = %s; want %s", tt.fence, tt.id, got, tt.want)
		}
	}
	// The longest names of Jobs and of labels have 63 characters.
	if name := JobName(strings.Repeat("f", 36), "power-management-1000-9-99"); len(name) > 63 {
		t.Errorf("JobName = %s, which has %d characters; want at most 63", name, len(name))
	}
}
