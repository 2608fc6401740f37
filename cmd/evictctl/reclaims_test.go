package main

import (
	"testing"

	"github.com/evictd/evictd/agent/control"
)

// TestReclaimRowsCountUnnamed checks that the outcome of a reclaim counts the objects
// whose names are not kept.
func TestReclaimRowsCountUnnamed(t *testing.T) {
	removed := control.List[string]{"a", "b"}
	for _, tt := range []struct {
		reclaim control.Reclaim
		want    string
	}{
		{control.Reclaim{Reason: "pressure", Removed: removed}, "pressure: 2 removed, 0 freed in 0s; a, b"},
		{control.Reclaim{Reason: "pressure", Removed: removed, RemovedMore: 7}, "pressure: 9 removed, 0 freed in 0s; a, b and 7 more"},
		{control.Reclaim{Reason: "age", DryRun: true, Removed: removed, RemovedMore: 7}, "age, dry run: 9 would be removed; a, b and 7 more"},
	} {
		rows := reclaimRows([]control.Reclaim{tt.reclaim})
		if got := rows[0][len(rows[0])-1]; got != tt.want {
			t.Errorf("reclaimRows(%+v) = %q; want %q", tt.reclaim, got, tt.want)
		}
	}
}
