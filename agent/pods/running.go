package pods

import "slices"

// Running is what the runtime lists of a pod.
type Running struct {
	// Known is set once the runtime's list was complete.
	Known bool
	// Listed is set while the runtime lists a ready sandbox of the pod, or a container that has
	// not exited.
	Listed bool
	// LastStart is when the newest of the pod's running containers was created, in nanoseconds
	// since the epoch. It is 0 if none runs or that is unknown; Containers is then their number.
	LastStart  int64
	Containers int
}

// Running returns what the last list has of the pod with a UID. It performs no I/O.
func (inv *Inventory) Running(uid string) Running {
	snap := inv.current.Load()
	r := Running{Known: !snap.listed.IsZero() || inv.runtime == nil, Listed: slices.Contains(snap.uids, uid)}
	for _, p := range snap.pods {
		if p.spec.UID == uid {
			r.LastStart, r.Containers = p.spec.LastStart, len(p.containers)
		}
	}
	return r
}
