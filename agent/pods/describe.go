package pods

import (
	"time"

	"github.com/evictd/evictd/agent/evict"
)

// About says what stands behind what is said of a pod, for people.
type About struct {
	// Handler is the runtime handler, empty for the runtime's default.
	Handler string
	QoS     evict.QoS
	// QoSOrigin and RequestOrigin say where the class and the memory request are
	// from.
	QoSOrigin     string
	RequestOrigin string
	// Ignored lists the annotations that are not believed, each with the reason.
	Ignored []string
	// KeptSince is since when the pod is only taken to be there, because a list
	// lacks some of it; zero while it is listed.
	KeptSince  time.Time
	Containers []ContainerAbout
}

// ContainerAbout says what stands behind what is said of a container.
type ContainerAbout struct {
	ID, Name string
	// Cgroup is where the container is taken to live, proven or not; empty is
	// not known.
	Cgroup string
	// Unproven says why that is not proven to be the container's alone, so that
	// it is stopped through the runtime only; Unmeasured why its usage is not
	// known. Each is empty where it is.
	Unproven, Unmeasured string
}

// Describe returns what stands behind what is said of a pod; the zero value
// where no pod of that UID runs.
func (i *Inventory) Describe(uid string) About {
	for _, p := range i.world.Load().pods {
		if p.spec.UID == uid {
			return p.describe()
		}
	}
	return About{}
}

func (p *pod) describe() About {
	about := p.about
	about.QoS = p.spec.QoSClass()
	for _, m := range p.members {
		c := ContainerAbout{ID: m.id, Name: m.name, Cgroup: m.place.path, Unproven: m.unproven, Unmeasured: m.unmeasured}
		if failed := m.failed.Load(); failed != nil {
			c.Unmeasured = *failed
		}
		about.Containers = append(about.Containers, c)
	}
	return about
}
