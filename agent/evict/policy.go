package evict

import (
	"time"

	"github.com/evictd/evictd/agent/signal"
)

// Layout tells how the node's filesystems are cut.
type Layout uint8

const (
	// SingleFs: images, containers and the node share one filesystem.
	SingleFs Layout = iota
	// ImageFs: images and writable layers share one apart from the node's.
	ImageFs
	// SplitFs: only images are apart; writable layers are on the node's.
	SplitFs
)

// String returns the layout's name in scenarios: single, imagefs or split.
func (l Layout) String() string {
	switch l {
	case SingleFs:
		return "single"
	case ImageFs:
		return "imagefs"
	case SplitFs:
		return "split"
	}
	return "unknown"
}

// Policy is what an operator configured, ready for Step.
type Policy struct {
	// Thresholds lists every threshold that can be met, the derived ones
	// included, in the order in which they are shown.
	Thresholds []Threshold
	// TransitionPeriod is how long a condition outlives its last sight.
	TransitionPeriod time.Duration
	// MaxPodGraceSeconds caps the grace of soft evictions; negative means the
	// pod's own.
	MaxPodGraceSeconds int64
	// MaxVictims is the most pods that one decision evicts, at least 1.
	MaxVictims int
	// SettleTimeout is how long a victim's expected memory is waited for.
	SettleTimeout time.Duration
	// Contention is what is done about stalls on memory.
	Contention ContentionPolicy
	Layout     Layout
	// SpareUnknownPriority leaves a kubelet's pods alone while their priority
	// is not known.
	SpareUnknownPriority bool
	// Protected returns why the operator wants a pod left alone, or "". It
	// must depend on the pod alone. Nil protects none.
	Protected func(*Pod) string
}

// Threshold is a signal's threshold and where it comes from.
type Threshold struct {
	signal.Threshold
	// Copy tells that the threshold was derived from another signal's.
	Copy bool
}

// Key returns the threshold's name.
func (t Threshold) Key() Key {
	return Key{Signal: t.Signal, Soft: !t.Hard(), Copy: t.Copy}
}

// Key names a threshold across steps and restarts: of a signal there is at most
// one for each combination.
type Key struct {
	Signal signal.Signal `json:"signal"`
	Soft   bool          `json:"soft,omitempty"`
	Copy   bool          `json:"copy,omitempty"`
}

// WithCopies completes configured thresholds, the hard ones before the soft
// and each in the order of signals, with those that are derived:
// allocatableMemory.available from every hard memory.available where the
// node's allocatable is enforced, and containerfs from the filesystem that
// holds the writable layers. Configured containerfs thresholds are dropped, as
// by the kubelet.
func WithCopies(configured []signal.Threshold, layout Layout, enforceAllocatable bool) []Threshold {
	var all, allocatable, containerFs []Threshold
	source := map[signal.Signal]signal.Signal{
		signal.NodeFsAvailable:  signal.ContainerFsAvailable,
		signal.NodeFsInodesFree: signal.ContainerFsInodesFree,
	}
	if layout == ImageFs {
		source = map[signal.Signal]signal.Signal{
			signal.ImageFsAvailable:  signal.ContainerFsAvailable,
			signal.ImageFsInodesFree: signal.ContainerFsInodesFree,
		}
	}
	for _, t := range configured {
		if t.Signal == signal.ContainerFsAvailable || t.Signal == signal.ContainerFsInodesFree {
			continue
		}
		all = append(all, Threshold{Threshold: t})
		if t.Signal == signal.MemoryAvailable && t.Hard() && enforceAllocatable {
			t := t
			t.Signal = signal.AllocatableMemoryAvailable
			allocatable = append(allocatable, Threshold{Threshold: t, Copy: true})
		}
		if to, ok := source[t.Signal]; ok {
			t := t
			t.Signal = to
			containerFs = append(containerFs, Threshold{Threshold: t, Copy: true})
		}
	}
	return append(append(all, allocatable...), containerFs...)
}

// stages lists the node-level reclaims that may spare pods when a signal is
// met, in the order in which they are tried.
func (l Layout) stages(s signal.Signal) []ReclaimKind {
	if !s.IsDisk() {
		return nil
	}
	image := s == signal.ImageFsAvailable || s == signal.ImageFsInodesFree
	node := s == signal.NodeFsAvailable || s == signal.NodeFsInodesFree
	switch l {
	case ImageFs:
		if node {
			return []ReclaimKind{ReclaimContainers}
		}
	case SplitFs:
		if image {
			return []ReclaimKind{ReclaimImages}
		}
		return []ReclaimKind{ReclaimContainers}
	}
	return []ReclaimKind{ReclaimContainers, ReclaimImages}
}
