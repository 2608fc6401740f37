package agent

import (
	"slices"
	"strings"
	"testing"
)

// The status says whether evictd is ready by the checks of /readyz, and what is
// missing until then.
func TestStatusReady(t *testing.T) {
	d := buildHere(t)
	s := d.board.Status()
	if got := d.board.StatusLine(); !strings.HasPrefix(got, "not ready") {
		t.Errorf("status line before the first observation = %q; want not ready", got)
	}
	if s.Ready || !slices.Contains(s.Missing, "observation: the first observation is not complete yet") {
		t.Errorf("status before the first observation: ready %t, missing %q; want the observation missing", s.Ready, s.Missing)
	}
	step := running(t, d)
	step()
	step() // the view of the first is there now
	if s := d.board.Status(); slices.Contains(s.Missing, "observation: the first observation is not complete yet") || s.Ready != (len(s.Missing) == 0) {
		t.Errorf("status after it: ready %t, missing %q; want no observation missing", s.Ready, s.Missing)
	}
}
