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

// Snapshot is what runs and what it uses. It is not changed any more.
type Snapshot struct {
	// Pods are those that run, with their usage, by namespace, name and UID.
	Pods []evict.Pod
	// Taken is when the usage was read, or brought up to date by a walk; Listed when
	// the list that it rests on was complete, zero for never, and Asked when that list
	// was asked for. Tried is [Inventory.Tried] as of that list, or of a later one that
	// was not complete.
	Taken, Listed, Asked, Tried time.Time
	// Read is, for each of Pods, when its files were read: what of its memory is
	// anonymous, and its tasks, no walk tells.
	Read []time.Time
	// Moved is how much more than Pods say they hold together, in bytes, where
	// [Inventory.Still] has told that it is nothing to speak of for each.
	Moved int64
	// Version is another for each measurement. Walked tells that a walk was had,
	// which makes it cheap to measure again.
	Version uint64
	Walked  bool
	// Handles name the parts of each pod, by UID.
	Handles map[string]Handle
	// Kubelet is what was known of a kubelet when the pods were listed.
	Kubelet evict.Kubelet
}

// Handle names the parts of a pod to whoever acts on it.
type Handle struct {
	SandboxID string
	// Owned tells that no kubelet made the pod, so that it is evictd's to stop
	// as a whole.
	Owned      bool
	Containers []evict.ContainerHandle
}

// Measure reads what every pod uses now. It asks no source and waits for nobody
// but the kernel, and is meant to be called from one goroutine at a time. A
// container whose cgroup has gone is left out, and a pod whose containers have
// all gone. Of what a walk finds not to have moved noticeably no file is read.
func (i *Inventory) Measure(now time.Time) Snapshot {
	w := i.world.Load()
	r := &i.readings
	r.begin(now)
	i.look(w)
	s := Snapshot{
		Taken: now, Listed: w.listed, Asked: w.asked, Tried: w.tried, Version: i.last.Version + 1, Walked: r.walked,
		Handles: w.handles, Kubelet: i.kubeletOf(w),
	}
	s.Pods, s.Read = make([]evict.Pod, 0, len(w.pods)), make([]time.Time, 0, len(w.pods))
	for _, p := range w.pods {
		r.oldest = now
		if pod, ok := p.measure(r); ok {
			s.Pods, s.Read = append(s.Pods, pod), append(s.Read, r.oldest)
		}
	}
	r.forget()
	i.measured, i.last = w, s
	return s
}

// Still is Measure where the list is that of the last measurement and a walk finds
// that nothing has moved noticeably since its files were read: the Pods are those
// of the last measurement, and it costs next to nothing. ok is false where that is
// not so or can't be told.
func (i *Inventory) Still(now time.Time) (s Snapshot, ok bool) {
	w := i.world.Load()
	r := &i.readings
	r.begin(now)
	i.look(w)
	if i.measured != w || !r.walked || !r.still(w.groups) {
		return Snapshot{}, false
	}
	s = i.last
	s.Taken, s.Walked = now, true
	for _, p := range w.pods {
		s.Moved += p.workingSet(r)
	}
	for n := range s.Pods {
		s.Moved -= s.Pods[n].Usage.Memory
	}
	return s, true
}

// Forget has the next measurement read the files of the pods, by UID, whatever a
// walk tells; of all where none is named.
func (i *Inventory) Forget(uids ...string) {
	if len(uids) == 0 {
		clear(i.readings.known)
		return
	}
	for _, p := range i.world.Load().pods {
		if slices.Contains(uids, p.spec.UID) {
			for _, g := range p.measuredBy() {
				delete(i.readings.known, g.ID())
			}
		}
	}
}

// look notes what the walk tells of the list: whether it has to be brought up to
// date.
func (i *Inventory) look(w *world) {
	r := &i.readings
	if !r.walked {
		if w := i.walk.Load(); w != nil && r.now.Sub(w.at) >= walkHolds && i.walk.Swap(nil) != nil {
			poke(i.changed) // nobody looks any more
		}
		return
	}
	before := i.walk.Load()
	seen := &walk{at: r.now, shape: i.shape(), covers: true}
	for _, g := range w.groups {
		seen.covers = seen.covers && r.tree.Find(g.ID()) != nil
	}
	if seen.changed = r.now; before != nil && before.shape == seen.shape {
		seen.changed = before.changed
	} else {
		poke(i.changed)
	}
	i.walk.Store(seen)
}

// measure returns the pod with what it uses; ok is false if it has gone. The
// pod's usage is that of its own cgroup, as the kubelet counts it, or the sum of
// what it consists of; a kill gives back what its containers hold.
func (p *pod) measure(r *readings) (_ evict.Pod, ok bool) {
	pod := p.spec
	pod.Containers, pod.InitContainers = slices.Clone(pod.Containers), slices.Clone(pod.InitContainers)
	var sum evict.PodUsage
	left, unmeasured, failed := 0, 0, 0
	for _, m := range p.members {
		if m.unmeasured != "" {
			unmeasured++
			continue
		}
		memory, tasks, err := r.read(m.place.group)
		m.note(err)
		switch {
		case isGone(err):
			continue
		case err != nil:
			failed++
			continue
		}
		left++
		slots := pod.Containers
		if m.init {
			slots = pod.InitContainers
		}
		slots[m.slot].Usage.Memory = signed(memory.WorkingSet)
		add(&sum, memory, tasks)
	}
	if left+unmeasured+failed == 0 {
		return evict.Pod{}, false
	}
	whole, tasks, err := r.read(p.group)
	switch {
	case failed > 0:
	case err == nil:
		pod.HasStats = true
		pod.Usage = evict.PodUsage{Memory: signed(whole.WorkingSet), Freeable: sum.Freeable, PIDs: signed(tasks)}
		if unmeasured > 0 { // what holds the memory ends with the pod
			pod.Usage.Freeable = signed(whole.Anon)
		}
	case unmeasured == 0:
		// What the sandbox's own process uses is next to nothing: where it can't
		// be read, the containers' usage is not wrong.
		if memory, tasks, err := r.read(p.sandbox); err == nil {
			freeable := sum.Freeable
			add(&sum, memory, tasks)
			sum.Freeable = freeable
		}
		pod.HasStats, pod.Usage = true, sum
	}
	return pod, true
}

// workingSet is what measure makes of the pod where all readings are kept, in
// bytes.
func (p *pod) workingSet(r *readings) (sum int64) {
	if p.group != nil {
		return r.workingSet(p.group)
	}
	for _, m := range p.members {
		if m.unmeasured != "" {
			return 0
		}
		sum += r.workingSet(m.place.group)
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

// isGone tells a cgroup that was removed, or was given up because a later list
// lacks it.
func isGone(err error) bool { return errors.Is(err, cgroup.ErrGone) || errors.Is(err, os.ErrClosed) }

// note keeps why the last reading failed.
func (m *member) note(err error) {
	switch {
	case err != nil:
		m.failed.Store(new(err.Error()))
	case m.failed.Load() != nil:
		m.failed.Store(nil)
	}
}

// signed returns n, or the largest number that fits.
func signed(n uint64) int64 { return int64(min(n, math.MaxInt64)) }

func saturating(a int64, b uint64) int64 {
	if sum := a + signed(b); sum >= a {
		return sum
	}
	return math.MaxInt64
}
