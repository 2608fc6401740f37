package evict

// RunningContainer identifies a running container of a pod to the code that reads or
// kills it. The decision does not use it.
type RunningContainer struct {
	ID   string
	Name string
	// Cgroup is the container's path in the cgroup hierarchy of the memory controller,
	// and CgroupID is its inode. Both are empty, and Unproven says why, unless the
	// cgroup is proven to belong to this container only.
	Cgroup   string
	CgroupID uint64
	Unproven string
	// OOMScoreAdj is the oom_score_adj that the container's processes should have, nil
	// if unknown. OOMScoreFrom is where the value comes from.
	OOMScoreAdj  *int
	OOMScoreFrom string
	// InitPID is the container's first process and InitStart its start time in clock
	// ticks since boot; 0 if unknown.
	InitPID   int
	InitStart uint64
	// LogPath is the path of the container's log on the host; "" if unknown.
	LogPath string
	// Init is set for an init container.
	Init bool
	// Index is the index among the pod's init containers, or among its other containers.
	Index int
}

// Guard lists the processes that must never be killed. They are identified by what they
// are, not by name. A Guard is immutable once it is in use.
type Guard struct {
	// Protected maps the pid of each essential process to a description: pid 1, evictd, the
	// container runtime, shims, container monitors, kubelets.
	Protected map[int]string
	// Inits maps the pid of the first process of each container and sandbox to the ID
	// of the container or sandbox.
	Inits map[int]string
	// StartTimes maps a pid to the process's start time in clock ticks since boot. A
	// process with another start time has reused the pid and is not guarded. A pid
	// without an entry is guarded whatever its start time.
	StartTimes map[int]uint64
}

// Reused reports whether a pid of the guard has been reused by another process. startOf
// returns the start time of a process, 0 if it can't be read. It is called only if the
// guard has a start time for the pid.
func (g *Guard) Reused(pid int, startOf func(pid int) uint64) bool {
	guarded := g.StartTimes[pid]
	if guarded == 0 {
		return false
	}
	current := startOf(pid)
	return current != 0 && current != guarded
}
