package loop

import (
	"slices"
	"time"

	"github.com/evictd/evictd/agent/act"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/hot"
	"github.com/evictd/evictd/agent/pods"
	"github.com/evictd/evictd/kernel"
)

const (
	// maxHandles bounds the open handles, and so the descriptors: about twenty for each
	// container. maxOpenedPerStep bounds the time that one step spends on opening them,
	// in the order of the ranking.
	maxHandles, maxOpenedPerStep = 256, 64
	// recheckedPods is how many pods at the top of the ranking are checked for new
	// processes. A handle has pidfds of the pod's largest processes; idleInterval bounds
	// how old that choice is.
	recheckedPods = 16
	// reopenInterval is the back-off after a handle could not be opened.
	reopenInterval = 10 * time.Second
)

// handleCache has the open kill handles of the pods. It belongs to the loop's goroutine.
type handleCache struct {
	open      func(act.Job) (*act.KillHandle, error)
	proc      kernel.FS
	maxPods   int
	byUID     map[string]*cachedHandle
	failed    map[string]*openFailure // by UID
	checked   time.Time               // when the processes of topRanked were last checked
	topRanked []string                // the UIDs of the first recheckedPods of the ranking
}

func newHandleCache(open func(act.Job) (*act.KillHandle, error), proc kernel.FS) *handleCache {
	return &handleCache{open: open, proc: proc, maxPods: maxHandles, byUID: map[string]*cachedHandle{}, failed: map[string]*openFailure{}}
}

// openFailure is when a pod's handle could not be opened, and its containers then.
type openFailure struct {
	at         time.Time
	containers []evict.RunningContainer
}

// cachedHandle is a pod's handle and the containers that it was opened for.
type cachedHandle struct {
	handle     *act.KillHandle
	containers []evict.RunningContainer
}

// containersChanged reports whether the handle was opened for other containers.
func (h *cachedHandle) containersChanged(now []evict.RunningContainer) bool {
	return !sameContainers(h.containers, now)
}

func sameContainers(a, b []evict.RunningContainer) bool {
	return slices.EqualFunc(a, b, func(a, b evict.RunningContainer) bool { return a.ID == b.ID && a.CgroupID == b.CgroupID })
}

// update closes the handles of pods that have gone or changed, and opens handles for
// ranked pods that have none, in the order of the ranking. When the cache is full it
// closes the handles of pods that are ranked lower.
//
// Complexity: the order of its passes matters: what is closed first makes room for what is opened.
//
//gocyclo:ignore
func (h *handleCache) update(s *pods.Snapshot, ranked []evict.Ranked, guard *evict.Guard, now time.Time) {
	for uid, cached := range h.byUID {
		if handle, listed := s.Handles[uid]; !listed || cached.containersChanged(handle.Containers) {
			h.closeHandle(uid)
		}
	}
	for uid, f := range h.failed {
		if handle, listed := s.Handles[uid]; !listed || !sameContainers(f.containers, handle.Containers) || now.Sub(f.at) >= reopenInterval {
			delete(h.failed, uid)
		}
	}
	recheck := now.Sub(h.checked) >= idleInterval
	if recheck {
		h.checked = now
	}
	h.topRanked = h.topRanked[:0]
	for i := range min(recheckedPods, len(ranked)) {
		h.topRanked = append(h.topRanked, ranked[i].UID)
	}
	left := maxOpenedPerStep
	for i, r := range ranked {
		cached, failed := h.byUID[r.UID], h.failed[r.UID]
		switch {
		case cached != nil && !(recheck && i < recheckedPods && cached.handle.Outdated(h.proc)) || cached == nil && failed != nil:
			continue
		case left == 0 || cached == nil && len(h.byUID) >= h.maxPods && !h.makeRoom(ranked, i):
			return
		}
		left--
		// After a failure the handle is opened again later, at the latest for the kill.
		if _, err := h.openHandle(r.UID, s, guard); err != nil {
			h.failed[r.UID] = &openFailure{at: now, containers: s.Handles[r.UID].Containers}
		}
	}
}

// processesChanged reports, once per idleHandleCheckInterval, whether a top-ranked pod
// has other large processes than its handle. Then a step has to open it again and
// publish the table.
func (h *handleCache) processesChanged(now time.Time) bool {
	if now.Sub(h.checked) < idleHandleCheckInterval {
		return false
	}
	h.checked = now
	if !slices.ContainsFunc(h.topRanked, func(uid string) bool {
		cached := h.byUID[uid]
		return cached != nil && cached.handle.Outdated(h.proc)
	}) {
		return false
	}
	h.checked = time.Time{} // the next step checks all of them
	return true
}

// makeRoom closes the handle of a pod that is not ranked, or else of the lowest-ranked
// one, to make room for the i-th of the ranking. It returns false if all open handles
// rank higher. Pods in the second half of the cache's size displace none, so that small
// changes of the ranking don't close and open handles all the time.
func (h *handleCache) makeRoom(ranked []evict.Ranked, i int) bool {
	if i >= h.maxPods/2 {
		return false
	}
	unranked := make(map[string]bool, len(h.byUID))
	for uid := range h.byUID {
		unranked[uid] = true
	}
	last := -1
	for j, r := range ranked {
		delete(unranked, r.UID)
		if h.byUID[r.UID] != nil {
			last = j
		}
	}
	for uid := range unranked {
		h.closeHandle(uid)
		return true
	}
	if last <= i {
		return false
	}
	h.closeHandle(ranked[last].UID)
	return true
}

// openHandle opens a pod's handle and replaces the one in the cache.
func (h *handleCache) openHandle(uid string, s *pods.Snapshot, guard *evict.Guard) (*act.KillHandle, error) {
	handle, err := h.open(Job(evict.Order{UID: uid}, s, guard))
	if err != nil {
		return nil, err
	}
	h.closeHandle(uid)
	h.byUID[uid] = &cachedHandle{handle: handle, containers: s.Handles[uid].Containers}
	return handle, nil
}

// take removes a pod's handle from the cache and returns it, nil if there is none. The
// caller closes it.
func (h *handleCache) take(uid string) *act.KillHandle {
	cached := h.byUID[uid]
	if cached == nil {
		return nil
	}
	delete(h.byUID, uid)
	return cached.handle
}

// remove removes a handle from the cache without closing it: the executor closes one that
// was killed through.
func (h *handleCache) remove(uid string, handle hot.Handle) {
	if cached := h.byUID[uid]; cached != nil && hot.Handle(cached.handle) == handle {
		delete(h.byUID, uid)
	}
}

// closeHandle closes a pod's handle.
func (h *handleCache) closeHandle(uid string) {
	if cached := h.byUID[uid]; cached != nil {
		cached.handle.Close()
		delete(h.byUID, uid)
	}
}

func (h *handleCache) close() error {
	for uid := range h.byUID {
		h.closeHandle(uid)
	}
	return nil
}

// table returns the table that the hot path decides by until the next step. Its age is
// that of the oldest reading among the pods that it may choose first, since the hot path
// refreshes a table that is too old.
func (h *handleCache) table(in *evict.Inputs, v *View, ranked []evict.Ranked, guard *evict.Guard, generation uint64) *hot.Table {
	snapshot := &v.Snapshot
	usageTime := snapshot.Taken
	for i := range min(max(1, in.Policy.MaxVictims), len(ranked)) {
		if read := snapshot.ReadAt[ranked[i].Index()]; read.Before(usageTime) {
			usageTime = read
		}
	}
	t := &hot.Table{
		Decision: evict.NewTable(in, &v.State, usageTime), Pods: snapshot.Pods, Rows: make([]hot.Row, len(snapshot.Pods)),
		Guard: guard, DryRun: v.Mode.DryRun, Generation: generation,
		Prepare: func(index int) (hot.Handle, error) {
			handle, err := h.open(Job(evict.Order{UID: snapshot.Pods[index].UID}, snapshot, guard))
			if err != nil {
				return nil, err
			}
			return handle, nil
		},
	}
	for i := range snapshot.Pods {
		pod := &snapshot.Pods[i]
		t.Rows[i] = newRow(pod, h.byUID[pod.UID], snapshot.Handles[pod.UID].Containers)
	}
	return t
}

// newRow returns the row of a pod, with the cgroups of its containers and the sum of
// their memory. The containers are those of the handle; without one (pods that are exempt
// never have one) all whose cgroup is proven.
func newRow(pod *evict.Pod, cached *cachedHandle, containers []evict.RunningContainer) hot.Row {
	var cgroups []uint64
	var sum int64
	add := func(name string, cgroup uint64) {
		cgroups = append(cgroups, cgroup)
		for _, list := range [][]evict.Container{pod.Containers, pod.InitContainers} {
			for i := range list {
				if list[i].Name == name {
					sum += list[i].Usage.Memory
				}
			}
		}
	}
	if cached != nil {
		cached.handle.EachContainer(add)
		return hot.NewRow(cached.handle, pod, cgroups, sum)
	}
	for i := range containers {
		if c := &containers[i]; c.CgroupID != 0 {
			add(c.Name, c.CgroupID)
		}
	}
	return hot.NewRow(nil, pod, cgroups, sum)
}
