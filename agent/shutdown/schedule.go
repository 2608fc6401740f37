package shutdown

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
	"time"

	"github.com/evictd/evictd/agent/evict"
)

// Reserve is how much of the time that the service manager allows is kept for
// what follows the last pod: the report of it. The pods get the rest.
const Reserve = 2 * time.Second

// Group is a range of priorities and the time that its pods are given.
type Group struct {
	// Priority is the lowest of the group, which ends below that of the next.
	Priority int32 `json:"priority"`
	// Time is what the group adds to the shutdown, at least 0.
	Time time.Duration `json:"timeNanoseconds"`
}

// Schedule is the groups of a shutdown, by ascending priority, which is the
// order in which their pods are stopped. An empty one stops nobody.
type Schedule []Group

// ByPriority returns the schedule of groups in any order.
func ByPriority(groups []Group) Schedule {
	s := slices.Clone(Schedule(groups))
	slices.SortStableFunc(s, func(a, b Group) int { return cmp.Compare(a.Priority, b.Priority) })
	return s
}

// ByPeriods returns the schedule of two groups that shutdownGracePeriod and
// shutdownGracePeriodCriticalPods stand for: the critical pods get the second
// out of the first, and everybody before them the rest
// (nodeshutdown_manager.go: migrateConfig, which cuts both to whole seconds). It
// is empty where the first is 0 or the second is longer.
func ByPeriods(total, critical time.Duration) Schedule {
	if total <= 0 || critical < 0 || critical > total {
		return nil
	}
	return Schedule{{Priority: 0, Time: total - critical}, {Priority: evict.SystemCriticalPriority, Time: critical}}
}

// Total returns the time of all groups together.
func (s Schedule) Total() time.Duration {
	var total time.Duration
	for _, g := range s {
		total = add(total, g.Time)
	}
	return total
}

// Needs returns how long the node's shutdown must be held up for the schedule:
// all groups and the Reserve. An empty schedule needs none.
func (s Schedule) Needs() time.Duration {
	if len(s) == 0 {
		return 0
	}
	return add(s.Total(), Reserve)
}

// Within returns the schedule where a shutdown is held up no longer than
// allowed: the same where that is what it needs, else with every group's time
// cut by the same factor.
func (s Schedule) Within(allowed time.Duration) Schedule {
	total, most := s.Total(), max(0, allowed-Reserve)
	if total <= most {
		return s
	}
	cut := slices.Clone(s)
	var before, end time.Duration
	for i := range cut {
		before = add(before, s[i].Time)
		// In whole numbers, so that the parts sum up to no more than the most.
		hi, lo := bits.Mul64(uint64(before), uint64(most))
		quotient, _ := bits.Div64(hi, lo, uint64(total))
		cut[i].Time = time.Duration(quotient) - end
		end = time.Duration(quotient)
	}
	return cut
}

// Group returns the index of the group that a pod of that priority belongs to,
// nil being 0: the last that begins at or below it, and the first where all
// begin above it. The schedule must not be empty.
func (s Schedule) Group(priority *int32) int {
	var p int32
	if priority != nil {
		p = *priority
	}
	above, _ := slices.BinarySearchFunc(s, p, func(g Group, p int32) int {
		if g.Priority <= p {
			return -1
		}
		return 1
	})
	return max(0, above-1)
}

// add adds times that are not negative without running over.
func add(a, b time.Duration) time.Duration {
	if b > math.MaxInt64-a {
		return math.MaxInt64
	}
	return a + b
}
