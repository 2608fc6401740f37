package evict

// ContainerHandle names a running container of a pod to whatever reads or ends it. The
// decision does not look at it.
type ContainerHandle struct {
	ID   string
	Name string
	// Cgroup is a path in the tree that carries memory and CgroupID its inode,
	// where that is proven to be the container's alone; else both are empty and
	// Unproven says why.
	Cgroup   string
	CgroupID uint64
	Unproven string
	// OOMScoreAdj is what the oom_score_adj of its processes should be, nil where
	// that is not known, and OOMScoreFrom where the value comes from.
	OOMScoreAdj  *int
	OOMScoreFrom string
	// InitPID is the container's first process and InitStart when that began, in
	// clock ticks since boot; 0 is not known.
	InitPID   int
	InitStart uint64
	// LogPath is where the container's log is on the host; "" is not known.
	LogPath string
	// Init tells that the container is among the pod's init containers, and Slot
	// its index there or among the others.
	Init bool
	Slot int
}

// Guard lists the processes that no kill may reach, by what they are and not by how
// they are called. A Guard is not changed once it is in use.
type Guard struct {
	// Never lists, by pid, the processes that are never killed, and what they are:
	// pid 1, evictd, the container runtime, the shims and monitors of containers,
	// kubelets.
	Never map[int]string
	// Inits lists, by pid, the first process of each container and sandbox, and
	// the ID of that container or sandbox.
	Inits map[int]string
	// Started lists, by pid, when such a process began, in clock ticks since boot. A
	// pid that names a process of another start is not guarded. Without an entry the
	// pid alone counts.
	Started map[int]uint64
}

// Reused reports whether a pid of the guard names another process by now. startOf
// returns when a process began, 0 where that can't be read; it is called only where
// the guard knows the start.
func (g *Guard) Reused(pid int, startOf func(pid int) uint64) bool {
	at := g.Started[pid]
	if at == 0 {
		return false
	}
	now := startOf(pid)
	return now != 0 && now != at
}
