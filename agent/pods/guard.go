package pods

import (
	"fmt"
	"os"

	"github.com/evictd/evictd/kernel/process"
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
	// Started holds, by pid, when such a process began, in clock ticks since boot: with
	// that a pid that has come to name another process is known. Without an entry the
	// pid alone counts.
	Started map[int]uint64
}

// selfPID is evictd's own pid, which is the node's where evictd is in the pid
// namespace of the procfs that it reads: elsewhere it does not act.
var selfPID = os.Getpid()

// Guard returns the processes that must live, as of the last list.
func (i *Inventory) Guard() Guard { return i.world.Load().guard }

// guard collects what must live: what is known without the pods, and what their
// places tell.
func (i *Inventory) guard(listings []*listing, places map[string]*place) Guard {
	g := Guard{Never: map[int]string{}, Inits: map[int]string{}, Started: map[int]uint64{}}
	for _, p := range places {
		if p.parent > 1 {
			g.Never[p.parent] = "the shim of container " + p.id
			g.started(p.parent, p.parentStart)
		}
		if p.pid != 0 {
			g.Inits[p.pid] = p.id
			g.started(p.pid, p.start)
		}
	}
	for _, l := range listings {
		if l.home.pid != 0 {
			g.Inits[l.home.pid] = l.home.id
			g.started(l.home.pid, l.home.start)
		}
	}
	for _, k := range i.guardedKubelets() {
		g.Never[k.PID] = k.String()
		g.started(k.PID, i.startOf(k.PID))
	}
	for _, s := range i.sources {
		if s.list.PID > 1 {
			g.Never[s.list.PID] = fmt.Sprintf("the container runtime (%s)", s.Name())
			g.started(s.list.PID, i.startOf(s.list.PID))
		}
	}
	g.Never[selfPID] = "evictd"
	g.Never[1] = "pid 1"
	return g
}

// started notes when a process began, where that is known.
func (g *Guard) started(pid int, at uint64) {
	if at != 0 {
		g.Started[pid] = at
	}
}

// startOf returns when a process began, 0 where that can't be read.
func (i *Inventory) startOf(pid int) uint64 {
	stat, err := process.ReadStat(i.procfs, pid)
	if err != nil {
		return 0
	}
	return stat.StartTime
}

// guards returns what a pid is to the guard that is never killed; "" where it is
// none of that, also because the pid names another process by now.
func (g *Guard) guards(pid int, startOf func(pid int) uint64) string {
	what := g.Never[pid]
	if at := g.Started[pid]; what != "" && at != 0 {
		if now := startOf(pid); now != 0 && now != at {
			return ""
		}
	}
	return what
}
