package agent

import (
	"slices"
	"strings"
	"testing"
)

// The status has the result of the checks of /readyz, and what is missing.
func TestStatusReady(t *testing.T) {
	d := buildHere(t)
	s := d.statusBackend.Status()
	if got := d.statusBackend.StatusLine(); !strings.HasPrefix(got, "not ready") {
		t.Errorf("status line before the first observation = %q; want not ready", got)
	}
	if s.Ready || !slices.Contains(s.Missing, "observation: the first observation is not complete yet") {
		t.Errorf("status before the first observation: ready %t, missing %q; want the observation missing", s.Ready, s.Missing)
	}
	step := runLoop(t, d)
	step()
	step() // the view of the first step is published now
	if s := d.statusBackend.Status(); slices.Contains(s.Missing, "observation: the first observation is not complete yet") || s.Ready != (len(s.Missing) == 0) {
		t.Errorf("status after it: ready %t, missing %q; want no observation missing", s.Ready, s.Missing)
	}
}
