package pods

import (
	"fmt"
	"os"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/kernel/process"
)

// selfPID is evictd's own pid, which is the node's where evictd is in the pid
// namespace of the procfs that it reads: elsewhere it does not act.
var selfPID = os.Getpid()

// Guard returns the processes that must live, as of the last list.
func (i *Inventory) Guard() *evict.Guard { return i.world.Load().guard }

// guard collects what must live: what is known without the pods, and what their
// places tell.
func (i *Inventory) guard(listings []*listing, places map[string]*place) *evict.Guard {
	g := &evict.Guard{Never: map[int]string{}, Inits: map[int]string{}, Started: map[int]uint64{}}
	started := func(pid int, at uint64) {
		if at != 0 {
			g.Started[pid] = at
		}
	}
	for _, p := range places {
		if p.parent > 1 {
			g.Never[p.parent] = "the shim of container " + p.id
			started(p.parent, p.parentStart)
		}
		if p.pid != 0 {
			g.Inits[p.pid] = p.id
			started(p.pid, p.start)
		}
	}
	for _, l := range listings {
		if l.home.pid != 0 {
			g.Inits[l.home.pid] = l.home.id
			started(l.home.pid, l.home.start)
		}
	}
	for _, k := range i.guardedKubelets() {
		g.Never[k.PID] = k.String()
		started(k.PID, k.Start)
	}
	if r := i.runtime; r != nil && r.list.PID > 1 {
		g.Never[r.list.PID] = fmt.Sprintf("the container runtime (%s)", r.Name())
		started(r.list.PID, i.startOf(r.list.PID))
	}
	g.Never[selfPID] = "evictd"
	g.Never[1] = "pid 1"
	return g
}

// startOf returns when a process began, 0 where that can't be read.
func (i *Inventory) startOf(pid int) uint64 {
	stat, err := process.ReadStat(i.procfs, pid)
	if err != nil {
		return 0
	}
	return stat.StartTime
}
