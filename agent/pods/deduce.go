package pods

import (
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/cri"
)

// annotationGrace is the container annotation with the pod's terminationGracePeriodSeconds
// (pkg/kubelet/kuberuntime/labels.go).
const annotationGrace = "io.kubernetes.pod.terminationGracePeriod"

// deduction derives the properties of a pod from its sandbox, containers and specification.
type deduction struct {
	rules       *rules
	kubelet     evict.Kubelet
	capacity    int64 // the node's memory, bytes
	capacityErr error
	listed      *listedPod
	specs       Specifications        // nil if there is no source of them
	forbidden   func(uid string) bool // see Options; may be nil
	spec        *evict.Pod            // the pod's specification; nil if there is none
}

// fill completes a pod whose containers are set.
func (d *deduction) fill(p *pod) {
	l := d.listed
	sandbox := &l.Sandbox
	d.specify(p)
	p.explanation = Explanation{Handler: sandbox.RuntimeHandler, KeptSince: l.kept}

	var running []*Container
	for _, pc := range p.containers {
		c := l.container(pc.id)
		running = append(running, c)
		p.assignIndex(pc)
		if !c.Created.IsZero() {
			p.spec.LastStart = max(p.spec.LastStart, c.Created.UnixNano())
		}
		if pc.location.essential != "" {
			p.spec.ProtectedReason, p.spec.Essential = "contains "+pc.location.essential, true
		}
	}
	if p.spec.TerminationGraceSeconds == nil {
		p.spec.TerminationGraceSeconds = grace(running)
	}
	if d.spec == nil {
		d.resources(p, running)
	} else {
		p.explanation.QoSOrigin, p.explanation.RequestOrigin = "the pod's specification", "the pod's specification"
		p.declared = !d.spec.SummedRequests // the kubelet computes a container's score from its own request
	}
	d.annotations(p)
}

// assignIndex finds the index of a running container among the spec's containers, and adds one
// to the spec if none has its name.
func (p *pod) assignIndex(pc *podContainer) {
	named := func(c evict.Container) bool { return c.Name == pc.name }
	if pc.index = slices.IndexFunc(p.spec.Containers, named); pc.index >= 0 && !p.indexTaken(pc) {
		return
	}
	if pc.index = slices.IndexFunc(p.spec.InitContainers, named); pc.index >= 0 {
		if pc.init = true; !p.indexTaken(pc) {
			return
		}
	}
	pc.init, pc.index = false, len(p.spec.Containers)
	p.spec.Containers = append(p.spec.Containers, evict.Container{Name: pc.name})
}

// indexTaken reports whether an earlier container has the index of pc: names need not be unique
// in pods that no kubelet made.
func (p *pod) indexTaken(pc *podContainer) bool {
	for _, other := range p.containers {
		if other == pc {
			return false
		}
		if other.index == pc.index && other.init == pc.init {
			return true
		}
	}
	return false
}

// resources sets the QoS class, and the limits and requests of each container.
func (d *deduction) resources(p *pod, running []*Container) {
	p.spec.QoS, p.explanation.QoSOrigin = d.qos(p, running)
	var origins []string
	for i, c := range running {
		container := &p.spec.Containers[p.containers[i].index]
		if c.MemoryLimit != nil {
			container.Resources.Limits.Memory = bytes(*c.MemoryLimit)
		}
		request := d.request(c, p.spec.QoS)
		container.Resources.Requests.Memory, container.MemoryRequestText = request.amount, request.text
		origin := request.origin
		if len(running) > 1 {
			origin = c.Name + ": " + origin
		}
		origins = append(origins, origin)
	}
	p.explanation.RequestOrigin = strings.Join(origins, "; ")
}

// qos returns the pod's class and its origin: the name of the pod's cgroup, which a kubelet
// derives from the class, else the oom_score_adj, else the limits.
func (d *deduction) qos(p *pod, running []*Container) (evict.QoS, string) {
	for _, parent := range []string{d.listed.Sandbox.CgroupParent, p.parent()} {
		if qos := qosOf(parent); qos != "" {
			return qos, "cgroup parent " + parent
		}
	}
	if qos := qosByScore(running); qos != "" {
		return qos, "oom_score_adj"
	}
	none, all := true, true
	for _, c := range running {
		if !c.ResourcesKnown {
			return evict.Burstable, "unknown, assumed Burstable"
		}
		limited := c.CPUQuota != nil && c.MemoryLimit != nil
		all = all && limited
		none = none && c.MemoryLimit == nil && c.CPUQuota == nil && (c.CPUShares == nil || *c.CPUShares <= minCPUShares)
	}
	switch {
	case none:
		return evict.BestEffort, "no limits"
	case all:
		return evict.Guaranteed, "limits"
	}
	return evict.Burstable, "limits"
}

// minCPUShares are the CPU shares of a container without a CPU request.
const minCPUShares = 2

// qosByScore returns the class that the oom_score_adj of all containers agree on; "" if
// they show none: without a kubelet the score is usually 0.
func qosByScore(running []*Container) evict.QoS {
	bestEffort, guaranteed, burstable := 0, 0, 0
	for _, c := range running {
		if c.OOMScoreAdj == nil {
			return ""
		}
		switch adj := *c.OOMScoreAdj; {
		case adj == bestEffortScore:
			bestEffort++
		case adj == guaranteedScore || adj == guaranteedScoreOnce:
			guaranteed++
		case lowestScore <= adj && adj <= highestScore:
			burstable++
		default:
			return ""
		}
	}
	switch len(running) {
	case bestEffort:
		return evict.BestEffort
	case guaranteed:
		return evict.Guaranteed
	case bestEffort + guaranteed + burstable:
		return evict.Burstable
	}
	return ""
}

// qosOf returns the class in the name of a pod's cgroup, as either driver of the kubelet writes
// it (pkg/kubelet/cm/cgroup_manager_linux.go); "" if the name is not a kubelet's:
//
//	/kubepods/burstable/pod8f2a…                  kubepods-burstable-pod8f2a….slice
//	/kubepods/pod8f2a…                            kubepods-pod8f2a….slice
func qosOf(parent string) evict.QoS {
	parts := strings.Split(strings.Trim(parent, "/"), "/")
	if name, slice := strings.CutSuffix(path.Base(parent), ".slice"); slice {
		parts = strings.Split(name, "-")
	}
	n := len(parts)
	if n < 2 || !strings.HasPrefix(parts[n-1], "pod") {
		return ""
	}
	switch above := parts[n-2]; {
	case above == "kubepods":
		return evict.Guaranteed
	case n < 3 || parts[n-3] != "kubepods":
		return ""
	case above == "burstable":
		return evict.Burstable
	case above == "besteffort":
		return evict.BestEffort
	}
	return ""
}

// grace returns the longest grace period in the containers' annotations, in seconds; nil if
// there is none.
func grace(running []*Container) *int64 {
	var longest *int64
	for _, c := range running {
		n, err := strconv.ParseInt(c.Annotations[annotationGrace], 10, 64)
		if err == nil && n >= 0 && (longest == nil || n > *longest) {
			longest = &n
		}
	}
	return longest
}

// handle returns the identities that an eviction of the pod needs.
func (d *deduction) handle(p *pod) Handle {
	l := d.listed
	h := Handle{SandboxID: l.Sandbox.ID, Owned: !p.spec.Kubelet, Facts: d.spec != nil, SandboxPID: l.sandbox.pid, SandboxStart: l.sandbox.start, OCIRuntime: l.Sandbox.OCIRuntime}
	for i := range l.Containers {
		if c := &l.Containers[i]; c.State == cri.StateCreated {
			h.OtherContainers = append(h.OtherContainers, c.ID)
		}
	}
	for _, pc := range p.containers {
		c := evict.RunningContainer{ID: pc.id, Name: pc.name, Unproven: pc.unproven, InitPID: pc.location.pid, InitStart: pc.location.start, LogPath: l.container(pc.id).LogPath, Init: pc.init, Index: pc.index}
		if pc.unproven == "" {
			c.Cgroup, c.CgroupID = pc.location.path, pc.location.cgroup.ID()
		}
		c.OOMScoreAdj, c.OOMScoreFrom = d.score(p, pc)
		h.Containers = append(h.Containers, c)
	}
	return h
}

// score returns the oom_score_adj that a container should have, and its origin: by the
// kubelet's formula if the pod's requests are declared, else the value that the runtime was
// given.
func (d *deduction) score(p *pod, pc *podContainer) (*int, string) {
	if p.declared && d.capacityErr == nil {
		of := p.spec.Containers
		if pc.init {
			of = p.spec.InitContainers
		}
		return new(p.spec.OOMScoreAdj(&of[pc.index], d.capacity)), p.explanation.RequestOrigin
	}
	if given := d.listed.container(pc.id).OOMScoreAdj; given != nil {
		return new(*given), "the runtime"
	}
	return nil, ""
}

// container returns the listed container with an ID.
func (l *listedPod) container(id string) *Container {
	return &l.Containers[slices.IndexFunc(l.Containers, func(c Container) bool { return c.ID == id })]
}
