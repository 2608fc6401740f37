package bpf

import (
	"fmt"
	"math"
	"os"
	"sync/atomic"
)

// Source is the origin of the figures that a threshold is compared with.
type Source uint32

// The sources: the working set of the node, or of the pods' cgroup.
const (
	SourceNode Source = iota
	SourcePods
)

func (s Source) String() string {
	switch s {
	case SourceNode:
		return "node"
	case SourcePods:
		return "pods"
	}
	return fmt.Sprintf("Source(%d)", uint32(s))
}

// Threshold is crossed when less than Available is available. Available memory is the
// capacity less the working set of the source, plus the source's active file pages if
// CountCache is set.
type Threshold struct {
	Key       uint64 // copied into each Crossing
	Source    Source
	Capacity  uint64
	Available uint64
	// CountCache counts active file pages as available.
	CountCache bool
	// GrowthFloor is the growth, in bytes, of memory other than file cache that answers a
	// crossing that file cache brought ([Crossing].Waiting). 0: no crossing waits.
	GrowthFloor uint64
	// Margin is how far available memory must rise above Available to end a crossing. It
	// should be no less than [Stats.Drift].
	Margin uint64
}

// AvailableIn returns the memory that is available in a sample, by the threshold's rule. The
// caller checks that the sample is valid for the threshold's source.
func (t *Threshold) AvailableIn(s *Sample) uint64 {
	used, active := s.Node.WorkingSet(), s.Node.ActiveFile
	if t.Source == SourcePods {
		used, active = s.Pods.WorkingSet(), s.Pods.ActiveFile
	}
	if t.CountCache {
		used -= min(used, active)
	}
	return t.Capacity - min(t.Capacity, used)
}

// MaxThresholds is the number of thresholds that can be armed at once.
const MaxThresholds = len(samplerControl{}.Thresholds)

// Arm replaces all thresholds at once, between two ticks. A threshold that is crossed
// already is reported at once. It fails for more than [MaxThresholds].
func (s *Sampler) Arm(thresholds []Threshold) error {
	if len(thresholds) > MaxThresholds {
		return fmt.Errorf("arm thresholds: %d thresholds; at most %d are possible", len(thresholds), MaxThresholds)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed.Load() {
		return fmt.Errorf("arm thresholds: %w", os.ErrClosed)
	}
	want := s.want
	want.Thresholds = samplerControl{}.Thresholds
	for i, t := range thresholds {
		if t.Available+t.Margin < t.Available || t.Source > SourcePods {
			return fmt.Errorf("arm threshold %d: %+v is out of range", i, t)
		}
		want.Thresholds[i] = samplerThreshold{
			Key: t.Key, Capacity: t.Capacity, Available: t.Available, Margin: t.Margin, Source: uint64(t.Source), GrowthFloor: t.GrowthFloor,
		}
		if t.CountCache {
			want.Thresholds[i].CacheMask = math.MaxUint64
		}
	}
	want.Count = uint64(len(thresholds))
	want.Generation++
	s.want = want
	s.publish()
	return s.Kick()
}

// Rearm makes the sampler report the threshold again if it is crossed. index is the one
// in the slice last given to Arm. It is for a caller that has not confirmed a crossing or
// considers it over: otherwise the sampler reports the threshold again only after
// available memory was above it by the margin.
func (s *Sampler) Rearm(index int) error {
	if s.closed.Load() {
		return errRearmClosed
	}
	if index < 0 || index >= MaxThresholds {
		return fmt.Errorf("rearm threshold: index %d is out of range", index)
	}
	atomic.AddUint64(&s.orders.first().Rearm[index], 1)
	return s.Kick()
}
