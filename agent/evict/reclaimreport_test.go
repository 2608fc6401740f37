package evict

import (
	"slices"
	"strconv"
	"testing"
)

// TestReclaimReportBounded checks that a bounded report has the first names and the
// number of the others, also if it was bounded before.
func TestReclaimReportBounded(t *testing.T) {
	var names []string
	for i := range 3000 {
		names = append(names, "container "+strconv.Itoa(i))
	}
	for _, tt := range []struct{ removed, more, kept, wantMore int }{
		{0, 0, 0, 0},
		{maxRemovedNames, 0, maxRemovedNames, 0},
		{maxRemovedNames, 7, maxRemovedNames, 7},
		{3000, 0, maxRemovedNames, 3000 - maxRemovedNames},
		{maxRemovedNames + 1, 7, maxRemovedNames, 8},
	} {
		got := ReclaimReport{Removed: names[:tt.removed], RemovedMore: tt.more}.Bounded()
		if !slices.Equal(got.Removed, names[:tt.kept]) || got.RemovedMore != tt.wantMore {
			t.Errorf("Bounded() of %d names and %d more = %d names and %d more; want the first %d and %d",
				tt.removed, tt.more, len(got.Removed), got.RemovedMore, tt.kept, tt.wantMore)
		}
	}
}
