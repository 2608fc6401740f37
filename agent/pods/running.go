package pods

// Running is what the runtime lists of a pod.
type Running struct {
	// Known is set once the runtime's list was complete.
	Known bool
	// Sandboxes are the IDs of the pod's sandboxes that are ready or have a container that has
	// not exited. There is none once the kubelet has stopped the pod.
	Sandboxes []string
	// Containers is the number of the pod's containers that run. LastStart is when the newest
	// of them was created, in nanoseconds since the epoch; 0 if that is unknown.
	Containers int
	LastStart  int64
}

// listedSandbox is a sandbox of the list, with the UID of its pod.
type listedSandbox struct{ uid, id string }

// Running returns what the last list has of the pod with a UID. It performs no I/O.
func (inv *Inventory) Running(uid string) Running {
	snap := inv.current.Load()
	r := Running{Known: !snap.listed.IsZero() || inv.runtime == nil}
	for _, s := range snap.sandboxes {
		if s.uid == uid {
			r.Sandboxes = append(r.Sandboxes, s.id)
		}
	}
	for _, p := range snap.pods {
		if p.spec.UID == uid {
			r.Containers, r.LastStart = len(p.containers), p.spec.LastStart
		}
	}
	return r
}
