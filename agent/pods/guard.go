package pods

import (
	"fmt"
	"os"
)

// Guard holds the processes that no kill may reach, by what they are and not by
// how they are called. It is not changed any more.
type Guard struct {
	// Never holds, by pid, processes that are never killed, and what they are:
	// pid 1, evictd, the container runtime, the shims and monitors of containers,
	// kubelets.
	Never map[int]string
	// Inits holds, by pid, the first process of each container and sandbox, and
	// the ID of that container or sandbox.
	Inits map[int]string
}

// selfPID is evictd's own pid, which is the node's where evictd is in the pid
// namespace of the procfs that it reads: elsewhere it does not act.
var selfPID = os.Getpid()

// Guard returns the processes that must live, as of the last list.
func (i *Inventory) Guard() Guard { return i.world.Load().guard }

// guard collects what must live: what is known without the pods, and what their
// places tell.
func (i *Inventory) guard(listings []*listing, places map[string]*place) Guard {
	g := Guard{Never: map[int]string{}, Inits: map[int]string{}}
	for _, p := range places {
		if p.parent > 1 {
			g.Never[p.parent] = "the shim of container " + p.id
		}
		if p.pid != 0 {
			g.Inits[p.pid] = p.id
		}
	}
	for _, l := range listings {
		if l.home.pid != 0 {
			g.Inits[l.home.pid] = l.home.id
		}
	}
	for _, k := range i.kubelets {
		g.Never[k.PID] = k.String()
	}
	for _, s := range i.sources {
		if s.list.PID > 1 {
			g.Never[s.list.PID] = fmt.Sprintf("the container runtime (%s)", s.Name())
		}
	}
	g.Never[selfPID] = "evictd"
	g.Never[1] = "pid 1"
	return g
}
