package pods

import (
	"fmt"
	"os"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/kernel/process"
)

// selfPID is evictd's own pid. It is the pid on the node if evictd is in the pid namespace of
// the procfs that it reads; in any other evictd does not act.
var selfPID = os.Getpid()

// Guard returns the processes that must not be killed, as of the last list.
func (inv *Inventory) Guard() *evict.Guard { return inv.current.Load().guard }

// guard collects the processes that must not be killed: those that are known without the
// pods, and the shims and first processes of the containers.
func (inv *Inventory) guard(listed []*listedPod, locations map[string]*location) *evict.Guard {
	g := &evict.Guard{Protected: map[int]string{}, Inits: map[int]string{}, StartTimes: map[int]uint64{}}
	started := func(pid int, at uint64) {
		if at != 0 {
			g.StartTimes[pid] = at
		}
	}
	for _, loc := range locations {
		if loc.parent > 1 {
			g.Protected[loc.parent] = "the shim of container " + loc.id
			started(loc.parent, loc.parentStart)
		}
		if loc.pid != 0 {
			g.Inits[loc.pid] = loc.id
			started(loc.pid, loc.start)
		}
	}
	for _, l := range listed {
		if l.sandbox.pid != 0 {
			g.Inits[l.sandbox.pid] = l.sandbox.id
			started(l.sandbox.pid, l.sandbox.start)
		}
	}
	for _, k := range inv.guardedKubelets() {
		g.Protected[k.PID] = k.String()
		started(k.PID, k.Start)
	}
	if r := inv.runtime; r != nil && r.list.PID > 1 {
		g.Protected[r.list.PID] = fmt.Sprintf("the container runtime (%s)", r.Name())
		started(r.list.PID, inv.startOf(r.list.PID))
	}
	g.Protected[selfPID] = "evictd"
	g.Protected[1] = "pid 1"
	return g
}

// startOf returns the start time of a process, 0 if it can't be read.
func (inv *Inventory) startOf(pid int) uint64 {
	stat, err := process.ReadStat(inv.procfs, pid)
	if err != nil {
		return 0
	}
	return stat.StartTime
}
