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
	// Taken is when the usage was read; Listed when the list that it rests on
	// was complete, zero for never.
	Taken, Listed time.Time
	// Handles name the parts of each pod, by UID.
	Handles map[string]Handle
	// KubeletPods tells that there is a sandbox, dead or alive, that a kubelet
	// made.
	KubeletPods bool
	// KubeletAbsent is what was declared, by [Inventory.Configure], when it was
	// told whose the pods are.
	KubeletAbsent bool
}

// Handle names the parts of a pod to whoever acts on it.
type Handle struct {
	SandboxID string
	// Owned tells that no kubelet made the pod, so that it is evictd's to stop
	// as a whole.
	Owned      bool
	Containers []ContainerHandle
}

// ContainerHandle is a running container of a pod.
type ContainerHandle struct {
	ID   string
	Name string
	// Cgroup is a path in the tree that carries memory and CgroupID its inode,
	// where that is proven to be the container's alone; else both are empty and
	// Unproven says why.
	Cgroup   string
	CgroupID uint64
	Unproven string
	// InitPID is the container's first process and InitStart when that began, in
	// clock ticks since boot; 0 is not known.
	InitPID   int
	InitStart uint64
}

// Measure reads what every pod uses now. It asks no source and waits for nobody
// but the kernel, and is meant to be called from one goroutine at a time. A
// container whose cgroup has gone is left out, and a pod whose containers have
// all gone.
func (i *Inventory) Measure(now time.Time) Snapshot {
	w := i.world.Load()
	s := Snapshot{Taken: now, Listed: w.listed, Handles: w.handles, KubeletPods: w.kubeletPods, KubeletAbsent: w.kubeletAbsent}
	s.Pods = make([]evict.Pod, 0, len(w.pods))
	for _, p := range w.pods {
		if pod, ok := p.measure(); ok {
			s.Pods = append(s.Pods, pod)
		}
	}
	return s
}

// measure returns the pod with what it uses; ok is false if it has gone. The
// pod's usage is that of its own cgroup, as the kubelet counts it, or the sum of
// what it consists of; a kill gives back what its containers hold.
func (p *pod) measure() (_ evict.Pod, ok bool) {
	pod := p.spec
	pod.Containers, pod.InitContainers = slices.Clone(pod.Containers), slices.Clone(pod.InitContainers)
	var sum evict.PodUsage
	left, unmeasured, failed := 0, 0, 0
	for _, m := range p.members {
		if m.unmeasured != "" {
			unmeasured++
			continue
		}
		memory, tasks, err := read(m.place.group)
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
	whole, tasks, err := read(p.group)
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
		if memory, tasks, err := read(p.sandbox); err == nil {
			freeable := sum.Freeable
			add(&sum, memory, tasks)
			sum.Freeable = freeable
		}
		pod.HasStats, pod.Usage = true, sum
	}
	return pod, true
}

// add adds a cgroup's usage to a sum.
func add(sum *evict.PodUsage, memory cgroup.Memory, tasks uint64) {
	sum.Memory = saturating(sum.Memory, memory.WorkingSet)
	sum.Freeable = saturating(sum.Freeable, memory.Anon)
	sum.PIDs = saturating(sum.PIDs, tasks)
}

// read reads a cgroup; none is one that has gone.
func read(g *cgroup.Cgroup) (memory cgroup.Memory, tasks uint64, err error) {
	if g == nil {
		return memory, 0, cgroup.ErrGone
	}
	if err := g.ReadMemory(&memory); err != nil {
		return cgroup.Memory{}, 0, err
	}
	if tasks, err = g.Tasks(); err != nil {
		return cgroup.Memory{}, 0, err
	}
	return memory, tasks, nil
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
