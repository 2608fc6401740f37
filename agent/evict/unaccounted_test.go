package evict

import (
	"testing"
	"time"
)

func TestUnaccountedBaseline(t *testing.T) {
	const mi = 1 << 20
	type sample struct{ list, mebibytes int64 } // list is its number; 0 is no list
	for _, tc := range []struct {
		name    string
		samples []sample
		want    int64
	}{
		{"no sample", nil, 0},
		{"never listed", []sample{{0, 500}, {0, 500}, {0, 500}, {0, 500}}, 0},
		{"too few lists", []sample{{1, 500}, {1, 500}, {2, 500}}, 0},
		{"constant remainder", []sample{{1, 500}, {2, 510}, {3, 505}}, 500},
		{"a pod starts while a list is made", []sample{{1, 500}, {2, 500}, {3, 2500}}, 500},
		{"pods start while two lists are made", []sample{{1, 500}, {2, 1500}, {3, 2500}}, 500},
		{"an unlisted pod grows until the next list", []sample{{1, 500}, {2, 500}, {3, 500}, {3, 9000}}, 500},
		{"a pod has ended and left its tmpfs", []sample{{1, 0}, {2, 0}, {3, 0}, {4, 1000}, {5, 1000}}, 0},
		{"its tmpfs is in the baseline after three lists", []sample{{1, 0}, {2, 0}, {3, 0}, {4, 1000}, {5, 1000}, {6, 1000}}, 1000},
		{"the tmpfs is removed", []sample{{1, 1000}, {2, 1000}, {3, 1000}, {3, 20}, {3, 1000}}, 20},
		{"pods grow between two readings", []sample{{1, -30}, {2, -20}, {3, -10}}, 0},
	} {
		var u UnaccountedBaseline
		for _, s := range tc.samples {
			requested := time.Time{}
			if s.list > 0 {
				requested = time.Unix(1000+s.list, 0)
			}
			u.Update(requested, s.mebibytes*mi)
		}
		if u.WouldLower(tc.want*mi) != (u.lists < listsRemembered) || tc.want > 0 && !u.WouldLower(tc.want*mi-1) {
			t.Errorf("%s: a sample of %d MiB lowers the baseline: %t, of one byte less: %t; want true only for less", tc.name, tc.want, u.WouldLower(tc.want*mi), u.WouldLower(tc.want*mi-1))
		}
		if got := u.Bytes(); got != tc.want*mi {
			t.Errorf("%s: baseline = %d MiB; want %d", tc.name, got/mi, tc.want)
		}
	}
}
