package scenario

import (
	"slices"
	"time"

	"github.com/evictd/evictd/agent/config/strict"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
)

// Scenario is a valid scenario, ready to be replayed.
type Scenario struct {
	// Notices are what whoever wrote the file should know about it.
	Notices []strict.Problem

	policy *evict.Policy
	// capacity holds what percentages are taken of; nil is not known.
	capacity [signal.Count]*int64
	// oomCapacity is the memory that OOM scores are a share of, 0 where it is
	// not known.
	oomCapacity int64
	// closedLoop is set where the memory signals follow from the pods' usage.
	closedLoop *closedLoop
	pods       []pod
	steps      []step
}

// closedLoop is what the memory signals are computed from, in bytes.
type closedLoop struct {
	memory, allocatable, system int64
}

// pod is a pod with its usage as the file gives it.
type pod struct {
	evict.Pod
	// memory is the pod-level figure; nil makes it the containers' sum.
	memory *int64
}

// step is one evaluation.
type step struct {
	at      time.Duration
	gone    []string
	add     []pod
	usage   map[string]stepUsage // by the pod's key
	signals signals
	cache   fileCache
	stalled *bool // nil: as in the step before
	after   map[evict.ReclaimKind]signals
	admit   []pod
}

// settle computes the pod-level figures that follow from the containers'.
// Released is set where the pod holds no memory any more.
func (p *pod) settle(released bool) evict.Pod {
	settled := p.Pod
	if released {
		settled.Containers = withoutMemory(p.Containers)
		settled.InitContainers = withoutMemory(p.InitContainers)
		settled.EphemeralContainers = withoutMemory(p.EphemeralContainers)
		settled.Usage.Memory = 0
	} else {
		settled.Usage.Memory = p.memoryUsage()
	}
	// Nothing tells file cache apart here: all of it is expected back.
	settled.Usage.Freeable = settled.Usage.Memory
	return settled
}

// memoryUsage returns what the pod uses, in bytes.
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

// withoutMemory returns containers that hold no memory any more.
func withoutMemory(containers []evict.Container) []evict.Container {
	containers = slices.Clone(containers)
	for i := range containers {
		containers[i].Usage.Memory = 0
	}
	return containers
}
