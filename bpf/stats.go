package bpf

import (
	"os"
	"time"
)

// Stats are counters and durations of the sampler. Totals are since [OpenSampler].
type Stats struct {
	Ticks     uint64
	LastTick  time.Duration
	Period    time.Duration // until the next tick
	Rate      uint64        // fill rate that the period is computed from, in bytes per second
	Crossings uint64        // crossings written
	// Lost counts crossings for which the ring was full. The sampler tries again in each
	// tick as long as the threshold is crossed.
	Lost uint64
	// RunTime is the time spent in ticks, LongestTick that of the longest tick.
	RunTime, LongestTick time.Duration
	Walks                uint64
	WalkTime             time.Duration // of the last walk
	Surveys              uint64
	SurveyTime           time.Duration // of the last survey
	SurveySlices         uint64        // of the last survey
	Truncated            uint64        // walks that took too long, walks and surveys with more cgroups than rows
	Faults               uint64        // figures that could not be read
	Nodes                uint64        // NUMA nodes with memory
	// Drift bounds the error of the node's working set: changes that the CPUs have not
	// yet added to the node's counters, in bytes.
	Drift uint64
}

// Stats returns the counters. It returns [ErrNoTick] before the first tick. It takes no
// system call and does not allocate, even if it fails.
func (s *Sampler) Stats() (Stats, error) {
	var raw samplerLatest
	if err := s.read(&raw); err != nil {
		return Stats{}, err
	}
	c := &raw.Stats
	return Stats{
		Ticks: raw.Sample.Tick, LastTick: time.Duration(raw.Sample.Time),
		Period: time.Duration(c.Period), Rate: c.Rate,
		Crossings: c.Raised, Lost: c.Lost,
		RunTime: time.Duration(c.RunTime), LongestTick: time.Duration(c.Longest),
		Walks: c.Walks, WalkTime: time.Duration(c.WalkTime),
		Surveys: c.Surveys, SurveyTime: time.Duration(c.SurveyTime), SurveySlices: c.SurveySlices, Truncated: c.Truncated,
		Faults: c.Faults, Nodes: c.Nodes,
		Drift: Drift(s.cpus, c.Nodes),
	}, nil
}

// Drift returns a bound, in bytes, on the changes that CPUs have not yet added to the
// three counters of each NUMA node that a working set is computed from. The bound is 125
// pages for each CPU and counter (mm/vmstat.c: calculate_normal_threshold).
func Drift(cpus int, nodes uint64) uint64 {
	const counters, pages = 3, 125
	return counters * pages * uint64(cpus) * max(nodes, 1) * uint64(os.Getpagesize())
}
