package bpf

import (
	"fmt"
	"math"
	"os"
	"sync/atomic"
)

// Source is where a figure comes from.
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

// Threshold is crossed when less than Available of Capacity is available, where
// what is available is the capacity without the working set of the source, and
// with its active file pages where they are to count.
type Threshold struct {
	Key       uint64 // comes back in each Crossing
	Source    Source
	Capacity  uint64
	Available uint64
	// CountCache counts active file pages as available, too.
	CountCache bool
	// GrowthFloor is how many bytes other memory than file cache must grow by to
	// answer a crossing that file cache brought ([Crossing].Waiting). 0: no crossing
	// waits.
	GrowthFloor uint64
	// Margin above Available ends a crossing, so that the next is a new one. It
	// should be no less than [Stats.Drift].
	Margin uint64
}

// Left returns what is available by a sample, of which the source's part is valid.
func (t *Threshold) Left(s *Sample) uint64 {
	used, active := s.Node.WorkingSet(), s.Node.ActiveFile
	if t.Source == SourcePods {
		used, active = s.Pods.WorkingSet(), s.Pods.ActiveFile
	}
	if t.CountCache {
		used -= min(used, active)
	}
	return t.Capacity - min(t.Capacity, used)
}

// MaxThresholds is how many can be armed at once.
const MaxThresholds = len(samplerControl{}.Thresholds)

// Arm replaces all thresholds, as a whole and between two ticks. One that is
// crossed already raises at once. At most [MaxThresholds] can be armed.
func (s *Sampler) Arm(thresholds []Threshold) error {
	if len(thresholds) > MaxThresholds {
		return fmt.Errorf("arm thresholds: %d are too many; at most %d", len(thresholds), MaxThresholds)
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

// Rearm makes the threshold at an index of what was last armed raise anew if it
// is crossed. It is for a caller that took a crossing for none, or for over: the
// sampler by itself waits for a margin above the threshold.
func (s *Sampler) Rearm(index int) error {
	if s.closed.Load() {
		return errRearmClosed
	}
	if index < 0 || index >= MaxThresholds {
		return fmt.Errorf("rearm threshold: %d is out of range", index)
	}
	atomic.AddUint64(&s.orders.first().Rearm[index], 1)
	return s.Kick()
}
