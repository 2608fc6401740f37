package shutdown

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestByPeriods(t *testing.T) {
	for _, tt := range []struct {
		total, critical time.Duration
		want            Schedule
	}{
		{30 * second, 10 * second, Schedule{{0, 20 * second}, {2_000_000_000, 10 * second}}},
		{30 * second, 0, Schedule{{0, 30 * second}, {2_000_000_000, 0}}},
		{30 * second, 30 * second, Schedule{{0, 0}, {2_000_000_000, 30 * second}}},
		{0, 0, nil},
		{0, 10 * second, nil},
		{10 * second, 30 * second, nil},
		{-second, -2 * second, nil},
	} {
		if diff := cmp.Diff(tt.want, ByPeriods(tt.total, tt.critical)); diff != "" {
			t.Errorf("ByPeriods(%v, %v) differs (-want +got):\n%s", tt.total, tt.critical, diff)
		}
	}
}

func TestGroupOf(t *testing.T) {
	for _, tt := range []struct {
		schedule Schedule
		priority *int32
		want     int32 // the group's
	}{
		{fourGroups, nil, 0},
		{fourGroups, priority(0), 0},
		{fourGroups, priority(999), 0},
		{fourGroups, priority(1000), 1000},
		{fourGroups, priority(9999), 1000},
		{fourGroups, priority(10000), 10000},
		{fourGroups, priority(99999), 10000},
		{fourGroups, priority(100000), 100000},
		{fourGroups, priority(math.MaxInt32), 100000},
		{fourGroups, priority(-1), 0}, // below the lowest
		{fourGroups, priority(math.MinInt32), 0},
		{threeGroups, priority(10000), 1000},
		{Schedule{{10, second}}, nil, 10},
		{Schedule{{-10, second}, {5, second}}, nil, -10},
	} {
		if got := tt.schedule[tt.schedule.GroupOf(tt.priority)].Priority; got != tt.want {
			t.Errorf("%v.GroupOf(%v) has priority %d; want %d", tt.schedule, deref(tt.priority), got, tt.want)
		}
	}
}

func deref(p *int32) any {
	if p == nil {
		return nil
	}
	return *p
}

func TestFitInto(t *testing.T) {
	for _, tt := range []struct {
		name     string
		schedule Schedule
		allowed  time.Duration
		want     []time.Duration
	}{
		{"exactly enough", fourGroups, 372 * second, []time.Duration{60 * second, 120 * second, 180 * second, 10 * second}},
		{"half of it", fourGroups, 187 * second, []time.Duration{30 * second, 60 * second, 90 * second, 5 * second}},
		{"logind's 5s", ByPeriods(30*second, 10*second), 5 * second, []time.Duration{2 * second, second}},
		{"only the reserve", fourGroups, Reserve, []time.Duration{0, 0, 0, 0}},
		{"nothing", fourGroups, 0, []time.Duration{0, 0, 0, 0}},
		{"an uneven third", Schedule{{0, second}, {1, second}, {2, second}}, Reserve + second, []time.Duration{333333333, 333333333, 333333334}},
		{"durations that overflow", Schedule{{0, math.MaxInt64}, {1, math.MaxInt64}}, math.MaxInt64, []time.Duration{math.MaxInt64 - Reserve, 0}},
	} {
		var got []time.Duration
		for _, g := range tt.schedule.FitInto(tt.allowed) {
			got = append(got, g.Time)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s: FitInto(%v) differs (-want +got):\n%s", tt.name, tt.allowed, diff)
		}
	}
}

func TestDelay(t *testing.T) {
	if got := Schedule(nil).Delay(); got != 0 {
		t.Errorf("without groups Delay() = %v; want 0s", got)
	}
	if got, want := fourGroups.Delay(), 370*second+Reserve; got != want {
		t.Errorf("Delay() = %v; want %v", got, want)
	}
}
