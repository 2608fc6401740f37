package evict

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestEachTime(t *testing.T) {
	at := func(n int) time.Time { return start.Add(time.Duration(n)) }
	s := State{
		Timers: []Timer{{Since: at(1), Covered: at(9)}}, Conditions: []ConditionTimer{{Since: at(10), LastSeen: at(2)}},
		Ending: []EndingPod{{Seen: at(11), EndsBy: at(12)}}, Refusals: []Refusal{{At: at(13)}},
		Victims:  []Victim{{Decided: at(3), Due: at(4), ProgressAt: at(5)}},
		Backoffs: []Backoff{{Until: at(6)}}, Revivals: []Revival{{Until: at(7)}},
		ContentionEvictions: []ContentionEviction{{Acted: at(8)}},
	}
	kept := s.Clone()
	seen := map[int]int{}
	s.EachTime(func(t *time.Time) {
		seen[int(t.Sub(start))]++
		*t = start
	})
	if diff := cmp.Diff(map[int]int{1: 1, 2: 1, 3: 1, 4: 1, 5: 1, 6: 1, 7: 1, 8: 1, 9: 1, 10: 1, 11: 1, 12: 1, 13: 1}, seen); diff != "" {
		t.Errorf("EachTime (-want +got):\n%s", diff)
	}
	kept.EachTime(func(t *time.Time) {
		if t.Equal(start) {
			seen[0]++
		}
	})
	if seen[0] != 0 {
		t.Errorf("EachTime changed %d times of a clone; want 0", seen[0])
	}
}
