package pods

import (
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/evictd/evictd/agent/evict"
)

// annotationGrace is where the kubelet tells a container its pod's
// terminationGracePeriodSeconds (pkg/kubelet/kuberuntime/labels.go).
const annotationGrace = "io.kubernetes.pod.terminationGracePeriod"

// kubeSystem is the namespace of what a cluster itself runs.
const kubeSystem = "kube-system"

// deduction makes what the decision needs to know of a pod out of what its
// sandbox and its containers tell.
type deduction struct {
	rules       *rules
	kubelet     evict.Kubelet
	capacity    int64 // the node's memory, bytes
	capacityErr error
	listing     *listing
	spec        *evict.Pod // the specification; nil is not known
}

// fill completes a pod whose members are known.
func (d *deduction) fill(p *pod) {
	l := d.listing
	box := &l.Sandbox
	kubelets := d.kubelet.Owns(box.Annotations)
	if d.spec != nil {
		p.spec = *d.spec
		p.spec.Containers, p.spec.InitContainers = slices.Clone(d.spec.Containers), slices.Clone(d.spec.InitContainers)
		p.spec.HasStats, p.spec.Usage = false, evict.PodUsage{}
	} else {
		p.spec.Labels = box.Labels
		p.spec.Static = kubelets && box.Annotations[evict.ConfigSource] != "api"
		if kubelets && l.Namespace == kubeSystem {
			p.spec.Spared = "a kubelet's pod in " + kubeSystem
		}
	}
	p.spec.UID, p.spec.Namespace, p.spec.Name = l.UID, l.Namespace, l.Name
	p.spec.Kubelet = kubelets
	p.about = About{Handler: box.RuntimeHandler, KeptSince: l.kept}

	var running []*Container
	for _, m := range p.members {
		c := l.container(m.id)
		running = append(running, c)
		p.seat(m)
		if !c.Created.IsZero() {
			p.spec.LastStart = max(p.spec.LastStart, c.Created.UnixNano())
		}
		if m.place.holds != "" {
			p.spec.Spared = holds + m.place.holds
		}
	}
	if p.spec.TerminationGraceSeconds == nil {
		p.spec.TerminationGraceSeconds = grace(running)
	}
	if d.spec == nil {
		d.resources(p, running)
	} else {
		p.about.QoSOrigin, p.about.RequestOrigin = "the pod's specification", "the pod's specification"
		p.declared = true
	}
	d.annotations(p)
}

// seat finds a member's place among the spec's containers, and makes one where
// the spec has none of that name.
func (p *pod) seat(m *member) {
	named := func(c evict.Container) bool { return c.Name == m.name }
	if m.slot = slices.IndexFunc(p.spec.Containers, named); m.slot >= 0 && !p.seated(m) {
		return
	}
	if m.slot = slices.IndexFunc(p.spec.InitContainers, named); m.slot >= 0 {
		if m.init = true; !p.seated(m) {
			return
		}
	}
	m.init, m.slot = false, len(p.spec.Containers)
	p.spec.Containers = append(p.spec.Containers, evict.Container{Name: m.name})
}

// seated reports whether an earlier member has the slot of m: names need not be
// unique where no kubelet gives them.
func (p *pod) seated(m *member) bool {
	for _, other := range p.members {
		if other == m {
			return false
		}
		if other.slot == m.slot && other.init == m.init {
			return true
		}
	}
	return false
}

// resources concludes the QoS class and what each container may use and asked
// for.
func (d *deduction) resources(p *pod, running []*Container) {
	p.spec.QoS, p.about.QoSOrigin = d.qos(p, running)
	var origins []string
	for n, c := range running {
		slot := &p.spec.Containers[p.members[n].slot]
		if c.MemoryLimit != nil {
			slot.Resources.Limits.Memory = bytes(*c.MemoryLimit)
		}
		request := d.request(c, p.spec.QoS)
		slot.Resources.Requests.Memory, slot.MemoryRequestText = request.amount, request.text
		origin := request.origin
		if len(running) > 1 {
			origin = c.Name + ": " + origin
		}
		origins = append(origins, origin)
	}
	p.about.RequestOrigin = strings.Join(origins, "; ")
}

// qos returns the pod's class and where that is from: the name of its cgroup,
// in which a kubelet says it, else what the containers may use.
func (d *deduction) qos(p *pod, running []*Container) (evict.QoS, string) {
	for _, parent := range []string{d.listing.Sandbox.CgroupParent, p.parent()} {
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
			return evict.Burstable, "unknown, taken for Burstable"
		}
		limited := c.CPUQuota != nil && c.MemoryLimit != nil
		all = all && limited
		none = none && c.MemoryLimit == nil && c.CPUQuota == nil && (c.CPUShares == nil || *c.CPUShares <= leastShares)
	}
	switch {
	case none:
		return evict.BestEffort, "no limits"
	case all:
		return evict.Guaranteed, "limits"
	}
	return evict.Burstable, "limits"
}

// leastShares are the CPU shares of a container that requests no CPU.
const leastShares = 2

// qosByScore returns the class that all containers' scores agree on, "" where
// they tell none: what no kubelet scored is usually 0.
func qosByScore(running []*Container) evict.QoS {
	best, guaranteed, between := 0, 0, 0
	for _, c := range running {
		if c.OOMScoreAdj == nil {
			return ""
		}
		switch adj := *c.OOMScoreAdj; {
		case adj == bestEffortScore:
			best++
		case adj == guaranteedScore || adj == guaranteedScoreOnce:
			guaranteed++
		case lowestScore <= adj && adj <= highestScore:
			between++
		default:
			return ""
		}
	}
	switch len(running) {
	case best:
		return evict.BestEffort
	case guaranteed:
		return evict.Guaranteed
	case best + guaranteed + between:
		return evict.Burstable
	}
	return ""
}

// qosOf reads the class off the name of a pod's cgroup, in the spelling of
// either driver (pkg/kubelet/cm/cgroup_manager_linux.go); "" where it is no
// kubelet's:
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

// grace returns the longest grace period that the containers' annotations tell,
// in seconds; nil where none does.
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

// handle names the parts of a pod to whoever acts on it.
func (d *deduction) handle(p *pod) Handle {
	l := d.listing
	h := Handle{SandboxID: l.Sandbox.ID, Owned: !p.spec.Kubelet}
	for _, m := range p.members {
		c := evict.ContainerHandle{ID: m.id, Name: m.name, Unproven: m.unproven, InitPID: m.place.pid, InitStart: m.place.start, LogPath: l.container(m.id).LogPath, Init: m.init, Slot: m.slot}
		if m.unproven == "" {
			c.Cgroup, c.CgroupID = m.place.path, m.place.group.ID()
		}
		c.OOMScoreAdj, c.OOMScoreFrom = d.score(p, m)
		h.Containers = append(h.Containers, c)
	}
	return h
}

// score returns what the oom_score_adj of a container should be: what follows from
// the pod's requests, by the kubelet's formula, where somebody names those; else
// what the runtime was told when it was made.
func (d *deduction) score(p *pod, m *member) (*int, string) {
	if p.declared && d.capacityErr == nil {
		of := p.spec.Containers
		if m.init {
			of = p.spec.InitContainers
		}
		return new(p.spec.OOMScoreAdj(&of[m.slot], d.capacity)), p.about.RequestOrigin
	}
	if told := d.listing.container(m.id).OOMScoreAdj; told != nil {
		return new(*told), "the runtime"
	}
	return nil, ""
}

// container returns a container that is listed.
func (l *listing) container(id string) *Container {
	return &l.Containers[slices.IndexFunc(l.Containers, func(c Container) bool { return c.ID == id })]
}
