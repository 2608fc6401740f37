package scenario

import (
	"slices"
	"time"

	"github.com/evictd/evictd/agent/config/strict"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
)

// Scenario is a valid scenario that can be replayed.
type Scenario struct {
	// Notices are hints for the author of the file.
	Notices []strict.Problem

	policy *evict.Policy
	// capacity has the capacity of each signal; nil if unknown.
	capacity [signal.Count]*int64
	// oomCapacity is the memory that OOM scores are computed with; 0 if unknown.
	oomCapacity int64
	// closedLoop is set if the memory signals are computed from the pods' usage.
	closedLoop *closedLoop
	pods       []pod
	steps      []step
}

// closedLoop has what the memory signals are computed from, in bytes.
type closedLoop struct {
	memory, allocatable, system int64
}

// pod is a pod with its usage as in the file.
type pod struct {
	evict.Pod
	// memory is the pod-level usage; nil means the sum of the containers.
	memory *int64
}

// step is one evaluation.
type step struct {
	at      time.Duration
	gone    []string
	deleted map[string]instant // grace periods of pods that are deleted, by namespace/name
	add     []pod
	usage   map[string]stepUsage // by namespace/name
	signals signals
	cache   fileCache
	stalled *bool // nil: unchanged
	after   map[evict.ReclaimKind]signals
	admit   []pod
}

// evictPod returns the pod as an evict.Pod, with its pod-level usage computed. If
// released is set, the pod's memory has been freed.
func (p *pod) evictPod(released bool) evict.Pod {
	settled := p.Pod
	if released {
		settled.Containers = withoutMemory(p.Containers)
		settled.InitContainers = withoutMemory(p.InitContainers)
		settled.EphemeralContainers = withoutMemory(p.EphemeralContainers)
		settled.Usage.Memory = 0
	} else {
		settled.Usage.Memory = p.memoryUsage()
	}
	// A scenario does not distinguish a pod's file cache: a kill is expected to free all.
	settled.Usage.Freeable = settled.Usage.Memory
	return settled
}

// memoryUsage returns the pod's memory usage in bytes.
func (p *pod) memoryUsage() int64 {
	if p.memory != nil {
		return *p.memory
	}
	var sum int64
	for _, cs := range [][]evict.Container{p.Containers, p.InitContainers, p.EphemeralContainers} {
		for i := range cs {
			sum = saturatingAdd(sum, cs[i].Usage.Memory)
		}
	}
	return sum
}

// withoutMemory returns the containers with a memory usage of 0.
func withoutMemory(containers []evict.Container) []evict.Container {
	containers = slices.Clone(containers)
	for i := range containers {
		containers[i].Usage.Memory = 0
	}
	return containers
}
