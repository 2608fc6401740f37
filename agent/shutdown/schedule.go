package shutdown

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
	"time"

	"github.com/evictd/evictd/agent/evict"
)

// Reserve is the part of the time allowed by the service manager that remains after
// the last pod, to complete and save its record. The pods get the rest.
const Reserve = 2 * time.Second

// Group is a range of priorities and the time of its pods.
type Group struct {
	// Priority is the lowest priority of the group. The group ends below the
	// priority of the next group.
	Priority int32 `json:"priority"`
	// Time is the duration that the group adds to the shutdown, at least 0.
	Time time.Duration `json:"timeNanoseconds"`
}

// Schedule lists the groups of a shutdown by ascending priority, the order in which
// their pods are stopped. An empty schedule stops no pod.
type Schedule []Group

// ByPriority returns a schedule of groups in any order.
func ByPriority(groups []Group) Schedule {
	s := slices.Clone(Schedule(groups))
	slices.SortStableFunc(s, func(a, b Group) int { return cmp.Compare(a.Priority, b.Priority) })
	return s
}

// ByPeriods returns the schedule of shutdownGracePeriod (total) and
// shutdownGracePeriodCriticalPods (critical): critical pods get critical, and all
// others before them the rest of total (nodeshutdown_manager.go: migrateConfig,
// which truncates both to whole seconds). The schedule is empty if total is 0 or
// critical is longer.
func ByPeriods(total, critical time.Duration) Schedule {
	if total <= 0 || critical < 0 || critical > total {
		return nil
	}
	return Schedule{{Priority: 0, Time: total - critical}, {Priority: evict.SystemCriticalPriority, Time: critical}}
}

// Total returns the sum of the times of all groups.
func (s Schedule) Total() time.Duration {
	var total time.Duration
	for _, g := range s {
		total = add(total, g.Time)
	}
	return total
}

// Delay returns how long the node's shutdown must be delayed: the time of all
// groups and Reserve. It is 0 for an empty schedule.
func (s Schedule) Delay() time.Duration {
	if len(s) == 0 {
		return 0
	}
	return add(s.Total(), Reserve)
}

// FitInto returns a schedule that fits into allowed with Reserve. If s needs more,
// the time of each group is cut by the same factor.
func (s Schedule) FitInto(allowed time.Duration) Schedule {
	total, most := s.Total(), max(0, allowed-Reserve)
	if total <= most {
		return s
	}
	cut := slices.Clone(s)
	var before, end time.Duration
	for i := range cut {
		before = add(before, s[i].Time)
		// Integer arithmetic, so that the sum of the parts does not exceed most.
		hi, lo := bits.Mul64(uint64(before), uint64(most))
		quotient, _ := bits.Div64(hi, lo, uint64(total))
		cut[i].Time = time.Duration(quotient) - end
		end = time.Duration(quotient)
	}
	return cut
}

// GroupOf returns the index of the group of a priority; nil is 0. It is the last
// group that begins at or below the priority, or the first group if all begin above
// it. The schedule must not be empty.
func (s Schedule) GroupOf(priority *int32) int {
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

// add returns the sum of two durations that are not negative, limited to the
// maximum duration.
func add(a, b time.Duration) time.Duration {
	if b > math.MaxInt64-a {
		return math.MaxInt64
	}
	return a + b
}
