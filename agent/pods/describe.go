package pods

import (
	"time"

	"github.com/evictd/evictd/agent/evict"
)

// Explanation explains the properties of a pod, for operators.
type Explanation struct {
	// Handler is the runtime handler; empty for the default.
	Handler string
	QoS     evict.QoS
	// QoSOrigin and RequestOrigin are the sources of the class and the memory request.
	QoSOrigin     string
	RequestOrigin string
	// Ignored lists the annotations that are not trusted, each with the reason.
	Ignored []string
	// KeptSince is since when the pod is kept although the list lacks a part of it; zero while
	// it is listed.
	KeptSince  time.Time
	Containers []ContainerExplanation
}

// ContainerExplanation explains the properties of a container.
type ContainerExplanation struct {
	ID, Name string
	// Cgroup is the container's cgroup, proven or not; empty if not known.
	Cgroup string
	// Unproven is why the cgroup is not proven to be the container's alone, so that the
	// container is only stopped through the runtime. Unmeasured is why its usage is not known.
	// Each is empty if it is.
	Unproven, Unmeasured string
}

// Describe explains a pod; the zero value if no pod with that UID runs.
func (inv *Inventory) Describe(uid string) Explanation {
	for _, p := range inv.current.Load().pods {
		if p.spec.UID == uid {
			return p.describe()
		}
	}
	return Explanation{}
}

func (p *pod) describe() Explanation {
	explanation := p.explanation
	explanation.QoS = p.spec.QoSClass()
	for _, pc := range p.containers {
		c := ContainerExplanation{ID: pc.id, Name: pc.name, Cgroup: pc.location.path, Unproven: pc.unproven, Unmeasured: pc.unmeasured}
		if failed := pc.failed.Load(); failed != nil {
			c.Unmeasured = *failed
		}
		explanation.Containers = append(explanation.Containers, c)
	}
	return explanation
}
