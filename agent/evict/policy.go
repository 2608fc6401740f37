package evict

import (
	"time"

	"github.com/evictd/evictd/agent/signal"
)

// Layout is the division of the node's storage into filesystems.
type Layout uint8

const (
	// SingleFs: nodefs has everything.
	SingleFs Layout = iota
	// ImageFs: images and writable layers are on imagefs.
	ImageFs
	// SplitFs: images are on imagefs, writable layers on nodefs.
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

// Policy is the part of the configuration that Step uses.
type Policy struct {
	// Thresholds lists all thresholds, the derived ones included, in the order in which
	// they are displayed.
	Thresholds []Threshold
	// TransitionPeriod is how long a condition stays published after it was last true.
	TransitionPeriod time.Duration
	// MaxPodGraceSeconds limits the grace period of soft evictions. If it is negative,
	// the pod's own applies.
	MaxPodGraceSeconds int64
	// MaxVictims is the maximum number of pods that one decision evicts, at least 1.
	MaxVictims int
	// SettleTimeout is how long a victim's usage may stay the same before it is stuck.
	// If usage is not measured, the victim counts as settled after it.
	SettleTimeout time.Duration
	// Contention is the policy for stalls on memory.
	Contention ContentionPolicy
	Layout     Layout
	// ProtectUnknownPriority exempts a kubelet's pods from eviction while their priority
	// is unknown.
	ProtectUnknownPriority bool
	// ProtectUnreportable exempts pods whose eviction can't be reported to the API server
	// ([Pod.Unreportable]): their kubelet would start them again.
	ProtectUnreportable bool
	// RefuseArrivals evicts BestEffort pods of a kubelet that arrive under memory pressure.
	RefuseArrivals bool
	// Protected returns why the configuration exempts a pod from eviction, or "". It
	// must be a pure function of the pod. Nil exempts none.
	Protected func(*Pod) string
}

// Threshold is a signal's threshold and its origin.
type Threshold struct {
	signal.Threshold
	// Derived is set if the threshold was derived from another signal's.
	Derived bool
}

// Key returns the threshold's identity.
func (t Threshold) Key() ThresholdKey {
	return ThresholdKey{Signal: t.Signal, Soft: !t.Hard(), Derived: t.Derived}
}

// ThresholdKey identifies a threshold across Steps and restarts. A signal has at most one
// threshold for each combination.
type ThresholdKey struct {
	Signal  signal.Signal `json:"signal"`
	Soft    bool          `json:"soft,omitempty"`
	Derived bool          `json:"copy,omitempty"`
}

// WithDerived returns the configured thresholds, hard before soft and each in the order
// of signals, followed by the derived ones: allocatableMemory.available from each hard
// memory.available if enforceAllocatable is set, and containerfs from the filesystem of
// the writable layers. Like the kubelet, it drops configured containerfs thresholds.
func WithDerived(configured []signal.Threshold, layout Layout, enforceAllocatable bool) []Threshold {
	var all, allocatable, containerFs []Threshold
	containerFsSignal := map[signal.Signal]signal.Signal{ // by the signal that it is derived from
		signal.NodeFsAvailable:  signal.ContainerFsAvailable,
		signal.NodeFsInodesFree: signal.ContainerFsInodesFree,
	}
	if layout == ImageFs {
		containerFsSignal = map[signal.Signal]signal.Signal{
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
			derived := Threshold{Threshold: t, Derived: true}
			derived.Signal = signal.AllocatableMemoryAvailable
			allocatable = append(allocatable, derived)
		}
		if s, ok := containerFsSignal[t.Signal]; ok {
			derived := Threshold{Threshold: t, Derived: true}
			derived.Signal = s
			containerFs = append(containerFs, derived)
		}
	}
	return append(append(all, allocatable...), containerFs...)
}

// stages returns the kinds of node-level reclaim that can free space for a signal
// without evicting pods, in the order in which they are tried.
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
