package evict

import (
	"testing"
	"time"
)

func TestUnexplained(t *testing.T) {
	const mi = 1 << 20
	type sight struct{ list, bytes int64 } // the number of the list
	for _, tc := range []struct {
		name string
		seen []sight
		want int64
	}{
		{"nothing seen", nil, 0},
		{"never listed", []sight{{0, 500}, {0, 500}, {0, 500}, {0, 500}}, 0},
		{"too few lists", []sight{{1, 500}, {1, 500}, {2, 500}}, 0},
		{"what stays is nothing new", []sight{{1, 500}, {2, 510}, {3, 505}}, 500},
		{"a newcomer while a list is made", []sight{{1, 500}, {2, 500}, {3, 2500}}, 500},
		{"newcomers while two are made", []sight{{1, 500}, {2, 1500}, {3, 2500}}, 500},
		{"a newcomer that grows until the next", []sight{{1, 500}, {2, 500}, {3, 500}, {3, 9000}}, 500},
		{"a pod has ended and left its tmpfs", []sight{{1, 0}, {2, 0}, {3, 0}, {4, 1000}, {5, 1000}}, 0},
		{"it is known after three lists", []sight{{1, 0}, {2, 0}, {3, 0}, {4, 1000}, {5, 1000}, {6, 1000}}, 1000},
		{"the tmpfs goes", []sight{{1, 1000}, {2, 1000}, {3, 1000}, {3, 20}, {3, 1000}}, 20},
		{"pods grow between two readings", []sight{{1, -30}, {2, -20}, {3, -10}}, 0},
	} {
		var u Unexplained
		for _, s := range tc.seen {
			asked := time.Time{}
			if s.list > 0 {
				asked = time.Unix(1000+s.list, 0)
			}
			u.See(asked, s.bytes*mi)
		}
		if u.Lowers(tc.want*mi) != (u.lists < listsRemembered) || tc.want > 0 && !u.Lowers(tc.want*mi-1) {
			t.Errorf("%s: Lowers(%d MiB) = %t, Lowers of a byte less = %t; want true of less alone", tc.name, tc.want, u.Lowers(tc.want*mi), u.Lowers(tc.want*mi-1))
		}
		if got := u.Known(); got != tc.want*mi {
			t.Errorf("%s: Known() = %d MiB; want %d", tc.name, got/mi, tc.want)
		}
	}
}
