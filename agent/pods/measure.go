package pods

import (
	"errors"
	"math"
	"os"
	"slices"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/kernel/cgroup"
)

// Snapshot is what runs and what it uses. It is immutable.
type Snapshot struct {
	// Pods are the running pods with their usage, sorted by namespace, name and UID.
	Pods []evict.Pod
	// Taken is when the usage was read, or updated by a walk. Listed is when the list was
	// complete, zero for never, and ListRequested when that list was requested. LastAttempt
	// is [Inventory.LastAttempt] as of that list, or of a later incomplete one.
	Taken, Listed, ListRequested, LastAttempt time.Time
	// ReadAt is, for each of Pods, when its files were read: a walk has neither the anonymous
	// part of its memory nor its tasks.
	ReadAt []time.Time
	// UsageGrowth is how much more the pods use in total than Pods says, in bytes, after
	// [Inventory.MeasureUnchanged] has found no noticeable change of any of them.
	UsageGrowth int64
	// Version differs for each measurement. Walked reports that there was a walk, so that the
	// next measurement is cheap.
	Version uint64
	Walked  bool
	// Handles are the identities of each pod's parts, by UID.
	Handles map[string]Handle
	// Kubelet is what was known of a kubelet when the pods were listed.
	Kubelet evict.Kubelet
}

// Handle has the identities that an eviction of a pod needs.
type Handle struct {
	SandboxID string
	// Owned reports that no kubelet made the pod, so that evictd may stop its sandbox.
	Owned bool
	// Facts reports that the pod's specification comes from the API server (Specifications).
	Facts      bool
	Containers []evict.RunningContainer
	// SandboxPID is the first process of the sandbox as the runtime names it, and
	// SandboxStart its start time in clock ticks since boot; 0 if unknown.
	SandboxPID   int
	SandboxStart uint64
	// OCIRuntime is that of [cri.SandboxDetail].
	OCIRuntime string
	// OtherContainers are the IDs of the containers that are created and not started.
	OtherContainers []string
}

// Measure reads the usage of each pod. It calls no runtime and waits for nothing but the
// kernel. Only one goroutine may call it. A container whose cgroup is gone is left out, and
// so is a pod whose containers are all gone. If a walk shows no noticeable change of a
// cgroup, its files are not read.
func (inv *Inventory) Measure(now time.Time) Snapshot {
	snap := inv.current.Load()
	r := &inv.readings
	r.begin(now)
	inv.recordWalk(snap)
	s := Snapshot{
		Taken: now, Listed: snap.listed, ListRequested: snap.requested, LastAttempt: snap.attempted, Version: inv.lastMeasurement.Version + 1, Walked: r.walked,
		Handles: snap.handles, Kubelet: inv.kubeletOfSnapshot(snap),
	}
	s.Pods, s.ReadAt = make([]evict.Pod, 0, len(snap.pods)), make([]time.Time, 0, len(snap.pods))
	for _, p := range snap.pods {
		r.oldest = now
		if pod, ok := p.measure(r); ok {
			s.Pods, s.ReadAt = append(s.Pods, pod), append(s.ReadAt, r.oldest)
		}
	}
	r.dropUnused()
	inv.measuredOf, inv.lastMeasurement = snap, s
	return s
}

// MeasureUnchanged is Measure for the case that the list has not changed since the last
// measurement and a walk shows no noticeable change of any cgroup. It returns the Pods of
// the last measurement and reads no files. ok is false in any other case.
func (inv *Inventory) MeasureUnchanged(now time.Time) (s Snapshot, ok bool) {
	snap := inv.current.Load()
	r := &inv.readings
	r.begin(now)
	inv.recordWalk(snap)
	if inv.measuredOf != snap || !r.walked || !r.allCached(snap.measured) {
		return Snapshot{}, false
	}
	s = inv.lastMeasurement
	s.Taken, s.Walked = now, true
	for _, p := range snap.pods {
		s.UsageGrowth += p.workingSet(r)
	}
	for i := range s.Pods {
		s.UsageGrowth -= s.Pods[i].Usage.Memory
	}
	return s, true
}

// InvalidateReadings makes the next measurement read the files of the pods with these UIDs
// whatever a walk shows; of all pods if no UID is given.
func (inv *Inventory) InvalidateReadings(uids ...string) {
	if len(uids) == 0 {
		clear(inv.readings.known)
		return
	}
	for _, p := range inv.current.Load().pods {
		if slices.Contains(uids, p.spec.UID) {
			for _, g := range p.cgroups() {
				delete(inv.readings.known, g.ID())
			}
		}
	}
}

// recordWalk records what the walk shows about the list, and requests a new list if a
// cgroup was created or removed.
func (inv *Inventory) recordWalk(snap *listSnapshot) {
	r := &inv.readings
	if !r.walked {
		if walk := inv.lastWalk.Load(); walk != nil && r.now.Sub(walk.at) >= maxWalkAge && inv.lastWalk.Swap(nil) != nil {
			notify(inv.runtimeChanged) // there are no walks any more
		}
		return
	}
	before := inv.lastWalk.Load()
	seen := &walkResult{at: r.now, setHash: inv.setHash(), complete: true}
	for _, g := range snap.measured {
		seen.complete = seen.complete && r.tree.Find(g.ID()) != nil
	}
	if seen.changed = r.now; before != nil && before.setHash == seen.setHash {
		seen.changed = before.changed
	} else {
		notify(inv.runtimeChanged)
	}
	inv.lastWalk.Store(seen)
}

// measure returns the pod with its usage; ok is false if all its containers are gone. The
// usage is that of the pod's own cgroup, as the kubelet counts it, or the sum of its
// containers and sandbox. A kill frees the anonymous memory of the containers.
func (p *pod) measure(r *readings) (_ evict.Pod, ok bool) {
	pod := p.spec
	pod.Containers, pod.InitContainers = slices.Clone(pod.Containers), slices.Clone(pod.InitContainers)
	var sum evict.PodUsage
	left, unmeasured, failed := 0, 0, 0
	for _, c := range p.containers {
		if c.unmeasured != "" {
			unmeasured++
			continue
		}
		memory, tasks, err := r.read(c.location.cgroup)
		c.recordError(err)
		switch {
		case isGone(err):
			continue
		case err != nil:
			failed++
			continue
		}
		left++
		containers := pod.Containers
		if c.init {
			containers = pod.InitContainers
		}
		containers[c.index].Usage.Memory = signed(memory.WorkingSet)
		add(&sum, memory, tasks)
	}
	if left+unmeasured+failed == 0 {
		return evict.Pod{}, false
	}
	whole, tasks, err := r.read(p.cgroup)
	switch {
	case failed > 0:
	case err == nil:
		pod.HasStats = true
		pod.Usage = evict.PodUsage{Memory: signed(whole.WorkingSet), Freeable: sum.Freeable, PIDs: signed(tasks)}
		if unmeasured > 0 { // the unmeasured memory is freed with the pod
			pod.Usage.Freeable = signed(whole.Anon)
		}
	case unmeasured == 0:
		// The sandbox's own process uses very little: if it can't be read, the sum
		// of the containers is close enough.
		if memory, tasks, err := r.read(p.sandbox); err == nil {
			freeable := sum.Freeable
			add(&sum, memory, tasks)
			sum.Freeable = freeable
		}
		pod.HasStats, pod.Usage = true, sum
	}
	return pod, true
}

// workingSet returns the pod's working set as measure does, in bytes, from cached readings.
func (p *pod) workingSet(r *readings) (sum int64) {
	if p.cgroup != nil {
		return r.workingSet(p.cgroup)
	}
	for _, c := range p.containers {
		if c.unmeasured != "" {
			return 0
		}
		sum += r.workingSet(c.location.cgroup)
	}
	if p.sandbox != nil {
		sum += r.workingSet(p.sandbox)
	}
	return sum
}

// add adds a cgroup's usage to a sum.
func add(sum *evict.PodUsage, memory cgroup.Memory, tasks uint64) {
	sum.Memory = saturating(sum.Memory, memory.WorkingSet)
	sum.Freeable = saturating(sum.Freeable, memory.Anon)
	sum.PIDs = saturating(sum.PIDs, tasks)
}

// isGone reports whether a cgroup was removed, or closed because a later list does not have
// it.
func isGone(err error) bool { return errors.Is(err, cgroup.ErrGone) || errors.Is(err, os.ErrClosed) }

// recordError records the error of the last reading.
func (c *podContainer) recordError(err error) {
	switch {
	case err != nil:
		c.failed.Store(new(err.Error()))
	case c.failed.Load() != nil:
		c.failed.Store(nil)
	}
}

// signed returns n, at most math.MaxInt64.
func signed(n uint64) int64 { return int64(min(n, math.MaxInt64)) }

func saturating(a int64, b uint64) int64 {
	if sum := a + signed(b); sum >= a {
		return sum
	}
	return math.MaxInt64
}
