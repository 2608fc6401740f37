package agent

import (
	"slices"
	"testing"
	"time"
)

// The status says whether evictd is ready by the checks of /readyz, and what is
// missing until then.
func TestStatusReady(t *testing.T) {
	d := buildHere(t)
	s := d.board.Status()
	if s.Ready || !slices.Contains(s.Missing, "observation: the first is not complete yet") {
		t.Errorf("status before the first observation: ready %t, missing %q; want the observation missing", s.Ready, s.Missing)
	}
	d.reports.stepped(d.loop.step(t.Context(), time.Now()))
	if s := d.board.Status(); slices.Contains(s.Missing, "observation: the first is not complete yet") || s.Ready != (len(s.Missing) == 0) {
		t.Errorf("status after it: ready %t, missing %q; want no observation missing", s.Ready, s.Missing)
	}
}
