package bpf

import (
	"os"
	"time"
)

// Stats counts what the sampler does. Totals are since it was opened.
type Stats struct {
	Ticks    uint64
	LastTick time.Duration
	Period   time.Duration // until the next tick
	Rate     uint64        // fastest fill that is reckoned with, in bytes per second
	Raised   uint64        // crossings written
	// Lost counts records that found no room in the ring. A crossing is then tried
	// again in each tick for as long as it lasts.
	Lost uint64
	// RunTime is the time spent in ticks, Longest the longest of them.
	RunTime, Longest time.Duration
	Walks            uint64
	WalkTime         time.Duration // the last walk's
	Surveys          uint64
	SurveyTime       time.Duration // the last survey's
	SurveySlices     uint64        // likewise
	Truncated        uint64        // walks that took too long, walks and surveys with more cgroups than rows
	Faults           uint64        // figures that could not be read
	Nodes            uint64        // NUMA nodes with memory
	// Drift is how far the node's working set may be from the truth for what the
	// CPUs have not yet added to the node's counters.
	Drift uint64
}

// Stats reads the counters, without a system call. It allocates nothing, nor when it
// fails.
func (s *Sampler) Stats() (Stats, error) {
	var raw samplerLatest
	if err := s.read(&raw); err != nil {
		return Stats{}, err
	}
	c := &raw.Stats
	return Stats{
		Ticks: raw.Sample.Tick, LastTick: time.Duration(raw.Sample.Time),
		Period: time.Duration(c.Period), Rate: c.Rate,
		Raised: c.Raised, Lost: c.Lost,
		RunTime: time.Duration(c.RunTime), Longest: time.Duration(c.Longest),
		Walks: c.Walks, WalkTime: time.Duration(c.WalkTime),
		Surveys: c.Surveys, SurveyTime: time.Duration(c.SurveyTime), SurveySlices: c.SurveySlices, Truncated: c.Truncated,
		Faults: c.Faults, Nodes: c.Nodes,
		Drift: Drift(s.cpus, c.Nodes),
	}, nil
}

// Drift bounds, in bytes, what so many CPUs hold back of the three counters of each
// NUMA node that make a working set. mm/vmstat.c: calculate_normal_threshold gives no
// CPU more than 125 pages.
func Drift(cpus int, nodes uint64) uint64 {
	const items, pages = 3, 125
	return items * pages * uint64(cpus) * max(nodes, 1) * uint64(os.Getpagesize())
}
