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
	// mostHolds bounds how many pods are held, and so how many descriptors: some
	// twenty for each container. preparedPerTurn is how many are taken hold of in
	// one turn of the loop, the first of the ranking first.
	mostHolds, preparedPerTurn = 256, 64
	// lookedAfter is how many of the ranking have their largest processes looked
	// for again, every lookAgain.
	lookedAfter, lookAgain = 16, time.Second
	// prepareAgain is when a pod that could not be held is tried again.
	prepareAgain = 10 * time.Second
)

// holds are the pods that are held ready to be killed. They belong to the loop.
type holds struct {
	open   func(act.Job) (*act.Hold, error)
	proc   kernel.FS
	most   int // pods
	byUID  map[string]*held
	failed map[string]*failure // by UID
	looked time.Time
	first  []string // of the ranking, by UID
}

func newHolds(open func(act.Job) (*act.Hold, error), proc kernel.FS) *holds {
	return &holds{open: open, proc: proc, most: mostHolds, byUID: map[string]*held{}, failed: map[string]*failure{}}
}

// failure is a pod that could not be held, and what it was then.
type failure struct {
	at time.Time
	of []evict.ContainerHandle
}

// held is a pod's Hold and what it was prepared for.
type held struct {
	hold *act.Hold
	of   []evict.ContainerHandle
}

// outdated reports whether the pod has other containers by now.
func (h *held) outdated(now []evict.ContainerHandle) bool {
	return !sameContainers(h.of, now)
}

func sameContainers(a, b []evict.ContainerHandle) bool {
	return slices.EqualFunc(a, b, func(a, b evict.ContainerHandle) bool { return a.ID == b.ID && a.CgroupID == b.CgroupID })
}

// follow takes hold of the pods that are new, and lets go of those that have
// left or changed. The ranking tells who comes first: for whoever does, room is
// made.
//
// Complexity: the order of its passes matters: what is dropped first makes room for what is prepared.
//
//gocyclo:ignore
func (h *holds) follow(s *pods.Snapshot, ranked []evict.Ranked, guard *evict.Guard, now time.Time) {
	for uid, held := range h.byUID {
		if handle, listed := s.Handles[uid]; !listed || held.outdated(handle.Containers) {
			h.drop(uid)
		}
	}
	for uid, f := range h.failed {
		if handle, listed := s.Handles[uid]; !listed || !sameContainers(f.of, handle.Containers) || now.Sub(f.at) >= prepareAgain {
			delete(h.failed, uid)
		}
	}
	again := now.Sub(h.looked) >= lookAgain
	if again {
		h.looked = now
	}
	h.first = h.first[:0]
	for i := range min(lookedAfter, len(ranked)) {
		h.first = append(h.first, ranked[i].UID)
	}
	left := preparedPerTurn
	for i, r := range ranked {
		held, failed := h.byUID[r.UID], h.failed[r.UID]
		switch {
		case held != nil && !(again && i < lookedAfter && held.hold.Outdated(h.proc)) || held == nil && failed != nil:
			continue
		case left == 0 || held == nil && len(h.byUID) >= h.most && !h.makeRoom(ranked, i):
			return
		}
		left--
		// What can't be held is tried again later, and else prepared when it must go.
		if _, err := h.prepare(r.UID, s, guard); err != nil {
			h.failed[r.UID] = &failure{at: now, of: s.Handles[r.UID].Containers}
		}
	}
}

// outdated looks, every lookQuietly, whether one of the pods that come first has
// other processes than those that are held. For it to be held anew, a table has to
// follow.
func (h *holds) outdated(now time.Time) bool {
	if now.Sub(h.looked) < lookQuietly {
		return false
	}
	h.looked = now
	if !slices.ContainsFunc(h.first, func(uid string) bool {
		held := h.byUID[uid]
		return held != nil && held.hold.Outdated(h.proc)
	}) {
		return false
	}
	h.looked = time.Time{} // the step that follows looks at all of them
	return true
}

// makeRoom lets go of a pod that is not ranked, or else of the last in the
// ranking, for the i-th of it; false says that all others come first. In the
// second half nobody has to make room, so that little goes back and forth.
func (h *holds) makeRoom(ranked []evict.Ranked, i int) bool {
	if i >= h.most/2 {
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
		h.drop(uid)
		return true
	}
	if last <= i {
		return false
	}
	h.drop(ranked[last].UID)
	return true
}

// prepare takes hold of a pod, in the place of the Hold that it had.
func (h *holds) prepare(uid string, s *pods.Snapshot, guard *evict.Guard) (*act.Hold, error) {
	hold, err := h.open(Job(evict.Order{UID: uid}, s, guard))
	if err != nil {
		return nil, err
	}
	h.drop(uid)
	h.byUID[uid] = &held{hold: hold, of: s.Handles[uid].Containers}
	return hold, nil
}

// take returns a pod's Hold, nil where it has none, and leaves it to whoever
// asked.
func (h *holds) take(uid string) *act.Hold {
	held := h.byUID[uid]
	if held == nil {
		return nil
	}
	delete(h.byUID, uid)
	return held.hold
}

// forget leaves a Hold to whoever has struck it.
func (h *holds) forget(uid string, hold hot.Pod) {
	if held := h.byUID[uid]; held != nil && hot.Pod(held.hold) == hold {
		delete(h.byUID, uid)
	}
}

func (h *holds) drop(uid string) {
	if held := h.byUID[uid]; held != nil {
		held.hold.Close()
		delete(h.byUID, uid)
	}
}

func (h *holds) close() error {
	for uid := range h.byUID {
		h.drop(uid)
	}
	return nil
}

// table makes what the hot path decides with until the next turn. It is as old as
// the oldest files that it may choose by, so that it is brought up to date first.
func (h *holds) table(in *evict.Inputs, v *View, ranked []evict.Ranked, guard *evict.Guard, generation uint64) *hot.Table {
	snapshot := &v.Snapshot
	taken := snapshot.Taken
	for i := range min(max(1, in.Policy.MaxVictims), len(ranked)) {
		if read := snapshot.Read[ranked[i].Index()]; read.Before(taken) {
			taken = read
		}
	}
	t := &hot.Table{
		Decision: evict.NewTable(in, &v.State, taken), Pods: snapshot.Pods, Rows: make([]hot.Row, len(snapshot.Pods)),
		Guard: guard, DryRun: v.Mode.DryRun, Generation: generation,
		Prepare: func(index int) (hot.Pod, error) {
			hold, err := h.open(Job(evict.Order{UID: snapshot.Pods[index].UID}, snapshot, guard))
			if err != nil {
				return nil, err
			}
			return hold, nil
		},
	}
	for i := range snapshot.Pods {
		pod := &snapshot.Pods[i]
		t.Rows[i] = newRow(pod, h.byUID[pod.UID], snapshot.Handles[pod.UID].Containers)
	}
	return t
}

// newRow returns the row of a pod, of the containers that are held, or, of one that is
// not held, as an exempt pod never is, of all that are proven. It sums what was read of
// them and names their cgroups.
func newRow(pod *evict.Pod, held *held, containers []evict.ContainerHandle) hot.Row {
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
	if held != nil {
		held.hold.Each(add)
		return hot.NewRow(held.hold, pod, cgroups, sum)
	}
	for i := range containers {
		if c := &containers[i]; c.CgroupID != 0 {
			add(c.Name, c.CgroupID)
		}
	}
	return hot.NewRow(nil, pod, cgroups, sum)
}
