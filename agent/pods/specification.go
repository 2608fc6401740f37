package pods

import (
	"slices"

	"github.com/evictd/evictd/agent/evict"
)

// specify sets the pod's specification: the one of the source of specifications, or else what
// the kubelet passed to the runtime. The pod's containers are set before.
func (d *deduction) specify(p *pod) {
	p.spec = d.running(p)
	if d.specs != nil {
		d.spec = d.specs.Specification(&p.spec)
		p.spec.Unreportable = d.unreportable(&p.spec)
	}
	if d.spec == nil {
		return
	}
	running := p.spec
	p.spec = *d.spec
	p.spec.Containers, p.spec.InitContainers = slices.Clone(d.spec.Containers), slices.Clone(d.spec.InitContainers)
	p.spec.HasStats, p.spec.Usage = false, evict.PodUsage{}
	p.spec.UID, p.spec.Namespace, p.spec.Name, p.spec.Kubelet = running.UID, running.Namespace, running.Name, running.Kubelet
	// A specification does not lift an exemption.
	p.spec.Static = p.spec.Static || running.Static
	p.spec.ProtectedReason, p.spec.Unreportable = running.ProtectedReason, running.Unreportable
	if running.Kubelet && running.QoS == "" && d.nodeCritical(p, p.spec.QoSClass()) {
		// Only the specification has the class: with cgroupsPerQOS: false no cgroup shows it.
		running.Priority, p.critical = new(int32(criticalPriority)), true
	}
	if running.Priority != nil && (p.spec.Priority == nil || *p.spec.Priority < *running.Priority) {
		p.spec.Priority = running.Priority
	}
	p.spec.RuntimeLabels = running.Labels
	if p.spec.Labels == nil {
		p.spec.Labels, p.spec.RuntimeLabels = running.Labels, nil
	}
}

// unreportable returns why the eviction of the pod can't be reported to the API server; "" if it
// can, or need not be because no kubelet made the pod.
func (d *deduction) unreportable(running *evict.Pod) string {
	switch {
	case !running.Kubelet:
		return ""
	case d.spec == nil:
		return "no facts of the API server, so that its eviction can't be reported"
	case d.forbidden != nil && d.forbidden(running.UID):
		return "the API server refused the report of an earlier eviction"
	}
	return ""
}

// running returns the pod as the kubelet described it to the runtime.
func (d *deduction) running(p *pod) evict.Pod {
	sandbox := &d.listed.Sandbox
	spec := evict.Pod{
		UID: d.listed.UID, Namespace: d.listed.Namespace, Name: d.listed.Name, Labels: sandbox.Labels,
		Kubelet: d.kubelet.Owns(sandbox.Annotations),
	}
	if !spec.Kubelet {
		return spec
	}
	spec.Static = sandbox.Annotations[evict.ConfigSourceAnnotation] != "api"
	spec.ProtectedReason = evict.ProtectedNamespace(spec.Namespace)
	for _, parent := range []string{sandbox.CgroupParent, p.parent()} {
		if spec.QoS = qosOf(parent); spec.QoS != "" {
			break
		}
	}
	if d.nodeCritical(p, spec.QoS) {
		spec.Priority, p.critical = new(int32(criticalPriority)), true
	}
	return spec
}

// nodeCritical reports whether the kubelet gave a container the oom_score_adj of a
// Guaranteed pod although the pod has another class. It does so only for the priority
// class system-node-critical (pkg/kubelet/qos/policy.go).
func (d *deduction) nodeCritical(p *pod, qos evict.QoS) bool {
	if qos == "" || qos == evict.Guaranteed {
		return false
	}
	return slices.ContainsFunc(p.containers, func(pc *podContainer) bool {
		score := d.listed.container(pc.id).OOMScoreAdj
		return score != nil && (*score == guaranteedScore || *score == guaranteedScoreOnce)
	})
}
