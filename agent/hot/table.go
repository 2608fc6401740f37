package hot

import (
	"slices"
	"time"

	"github.com/evictd/evictd/agent/act"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/memory"
)

// Handle is a kill handle of a pod. Its methods do not allocate.
type Handle interface {
	// Usage returns the memory charged to the pod's containers, in bytes, page cache
	// included. It does not block. ok is false if it can't be read.
	Usage() (bytes int64, ok bool)
	// Memory returns the working set of the containers and the anonymous part of it, in
	// bytes. It can block in the kernel, so a Reader calls it.
	Memory() (workingSet, anonymous int64, ok bool)
	// Direct reports whether the pod can be killed without the runtime.
	Direct() bool
	// Ref takes a reference, which [Handle.Unref] drops. It returns false if the handle is closed.
	Ref() bool
	Unref()
	// Close drops the reference that the handle was opened with.
	Close()
}

// Killer kills pods by their handles, without allocating.
type Killer interface {
	Kill(p Handle, g *evict.Guard) act.KillResult
}

// WalkReader is implemented by a Reader that reads the usage of all pods' cgroups with each
// reading, in one walk.
type WalkReader interface {
	// Usage returns a cgroup's working set and the size of its anonymous LRU lists,
	// which include tmpfs, at the last reading, in bytes. ok is false if the walk did
	// not reach the cgroup. It does not allocate.
	Usage(cgroup uint64) (workingSet, anonymous int64, ok bool)
}

// Table is what the thread decides by until it gets the next one.
type Table struct {
	// Decision belongs to the thread once the table is published.
	Decision *evict.Table
	// Pods are the pods of the step, by the indices of Decision, and Rows their usage.
	Pods []evict.Pod
	Rows []Row
	// Node is the reading of the node that belongs to the usage.
	Node memory.Node
	// Prepare opens the handle of a pod that has none. It may allocate and block.
	Prepare func(index int) (Handle, error)
	Guard   *evict.Guard
	DryRun  bool
	// Generation is that of the observation that Decision is made from.
	Generation uint64

	kills int // number of killed rows
	// shmemGrown is the growth of the node's shared memory, tmpfs included, from Node to
	// the last reading, in bytes. A walk counts shared memory as anonymous, but a kill
	// does not free it.
	shmemGrown int64
}

// Clone returns a copy for another thread.
func (t *Table) Clone() *Table {
	c := *t
	c.Decision, c.Rows = t.Decision.Clone(), slices.Clone(t.Rows)
	return &c
}

// Row has what is needed to refresh the usage of one pod: the containers' cgroups, by
// inode, and what they used when the usage of the decision was read. Usage includes page
// cache; all numbers are bytes.
type Row struct {
	Handle     Handle // nil if no handle is open
	Cgroups    []uint64
	Usage      int64
	WorkingSet int64
	// Memory and Freeable are the usage of the decision.
	Memory, Freeable int64
	// Complete means that all fields above are set, Walkable that all but [Row.Handle] and Usage
	// are: a walk is then enough to refresh the row.
	Complete, Walkable bool

	// fromWalk means that a walk has refreshed the usage, and final that reading
	// memory.stat adds nothing to it.
	fromWalk, final bool
	// killed is set for a killed pod. notFreed is the part of its Usage that a kill does
	// not free at once, mostly page cache.
	killed   bool
	notFreed int64
}

// NewRow returns the row of a pod, with what it uses now. handle is nil for a pod that is
// exempt or has no open handle.
func NewRow(handle Handle, pod *evict.Pod, cgroups []uint64, workingSet int64) Row {
	r := Row{Handle: handle, Cgroups: cgroups, WorkingSet: workingSet, Memory: pod.Usage.Memory, Freeable: pod.Usage.Freeable}
	r.Walkable = pod.HasStats && len(cgroups) > 0
	if handle != nil && pod.HasStats {
		r.Usage, r.Complete = handle.Usage()
	}
	return r
}

// maxHiddenCache is the inactive file cache up to which a pod's usage is taken for its
// working set without reading memory.stat: the error that is accepted.
const maxHiddenCache = 32 << 20

// markKilled marks the row of a killed pod. Until the loop publishes a table, the row's
// handle shows how much memory is left.
func (t *Table) markKilled(c *choice) {
	r := &t.Rows[c.ranked.Index()]
	r.notFreed = 0
	if r.Complete {
		r.notFreed = max(0, r.Usage-r.Freeable)
	}
	r.Handle, r.Memory, r.Freeable = c.handle, c.ranked.Usage, c.ranked.Expected
	r.Complete, r.Walkable, r.killed = false, false, true
	t.kills++
}

// updateKilled refreshes the usage of killed pods. It is called before the node is read.
// Memory freed between the two reads is then counted twice; the other order would miss it
// and kill a second pod.
func (t *Table) updateKilled() {
	if t.kills == 0 || t.DryRun {
		return
	}
	for i := range t.Rows {
		r := &t.Rows[i]
		if !r.killed {
			continue
		}
		if used, ok := r.Handle.Usage(); ok {
			left := min(max(0, used-r.notFreed), r.Freeable)
			t.Decision.SetUsage(i, r.Memory-(r.Freeable-left), left)
		}
	}
}

const (
	// maxRankingAge is the age up to which usage is used without a refresh.
	maxRankingAge = 50 * time.Millisecond
	// readTimeoutAfterWalk bounds the reads of memory.stat for one alarm, all together,
	// because each can block. It is shorter than [memory.ReadTimeout], which bounds them
	// without a walk: after one they only separate tmpfs from other anonymous memory.
	readTimeoutAfterWalk = time.Millisecond
)

// choose returns the verdict on the last observation. It refreshes the usage first if it is
// too old, or if kubepods, in bytes, has grown by more than the pods account for: a pod
// that grows fast may have grown since. fresh reports whether it did. Victims that were
// chosen by an estimate are read exactly, until all victims were.
func (d *decider) choose(kubepods int64, now time.Time) (v evict.Verdict, fresh bool) {
	t := d.table
	fresh = now.Sub(t.Decision.UsageTime) > maxRankingAge || t.Decision.HasUnlistedPod(kubepods)
	if fresh {
		d.refreshCandidates(now)
	}
	v = t.Decision.Decide(&d.observed, now)
	for again := fresh; again; {
		again = false
		for i := range toRead(&v) {
			again = d.readMemory(v.Ranking[i].Index()) || again
		}
		if again {
			v = t.Decision.Decide(&d.observed, now)
		}
	}
	return v, fresh
}

// toRead returns how many pods of the ranking are read exactly: the victims, or, if by the
// estimates all pods together do not cover the deficit, as many as can be victims at once.
func toRead(v *evict.Verdict) int {
	if v.Reason == evict.Futile {
		return min(len(v.Ranking), maxKills)
	}
	return v.N
}

// refreshCandidates refreshes the usage of all pods, from the last walk if it has them. For
// other pods it reads the charged memory. Inactive file cache is part of that but counts as
// available, and only memory.stat shows how much it is. If there was little of it, or if
// memory.stat can't be read in time, it is taken to be unchanged.
func (d *decider) refreshCandidates(now time.Time) {
	t := d.table
	began := time.Now()
	d.readDeadline = began.Add(d.readTimeout)
	for i := range t.Rows {
		r := &t.Rows[i]
		r.final, r.fromWalk = false, false
		if !r.Walkable {
			continue
		}
		if workingSet, anonymous, ok := r.walkUsage(d.walk); ok {
			t.applyWalk(i, r, workingSet, anonymous)
			d.readDeadline = began.Add(d.readTimeoutAfterWalk)
		}
	}
	for i := range t.Rows {
		r := &t.Rows[i]
		if !r.Complete || r.fromWalk {
			continue
		}
		if r.Usage-r.WorkingSet > maxHiddenCache && d.readMemory(i) {
			continue
		}
		if used, ok := r.Handle.Usage(); ok {
			t.addGrowth(i, r, used-r.Usage)
		}
	}
	t.Decision.UsageTime = now
}

// walkUsage sums the usage of the pod's containers in the last walk.
func (r *Row) walkUsage(walk WalkReader) (workingSet, anonymous int64, ok bool) {
	if walk == nil {
		return 0, 0, false
	}
	for _, cgroup := range r.Cgroups {
		w, a, ok := walk.Usage(cgroup)
		if !ok {
			return 0, 0, false
		}
		workingSet, anonymous = workingSet+w, anonymous+a
	}
	return workingSet, anonymous, true
}

// applyWalk sets the usage of the i-th pod from a walk. Its growth counts as anonymous
// memory, less the growth of shared memory, up to the size of its anonymous lists. If these
// are larger, the rest is tmpfs, or was page cache; if the pod is chosen, readMemory finds
// out.
func (t *Table) applyWalk(i int, r *Row, workingSet, anonymous int64) {
	r.fromWalk = true
	grown := workingSet - r.WorkingSet
	if r.Handle == nil || !r.Handle.Direct() {
		r.final = true // memory.stat can't be read, or does not cover all containers
		t.addGrowth(i, r, grown)
		return
	}
	freeable := min(r.Freeable+max(0, grown-t.shmemGrown), anonymous)
	r.final = anonymous-freeable <= maxHiddenCache
	t.Decision.SetUsage(i, max(0, r.Memory+grown), freeable)
}

// addGrowth adds the growth of the i-th pod since the usage of the decision was read. It
// counts as anonymous memory, less the growth of shared memory.
func (t *Table) addGrowth(i int, r *Row, grown int64) {
	t.Decision.SetUsage(i, max(0, r.Memory+grown), t.freeable(r, grown))
}

// freeable returns how much memory a kill frees at once from a pod that has grown.
func (t *Table) freeable(r *Row, grown int64) int64 {
	if grown > 0 {
		grown = max(0, grown-t.shmemGrown)
	}
	return max(0, r.Freeable+grown)
}

// readMemory reads memory.stat of the i-th pod, and reports whether that refreshed its usage.
func (d *decider) readMemory(i int) bool {
	t := d.table
	r := &t.Rows[i]
	left := time.Until(d.readDeadline)
	if r.final || !r.Complete || left <= 0 {
		return false
	}
	r.final = true
	workingSet, anonymous, ok := d.reader.ReadPod(r.Handle, left)
	if !ok {
		return false
	}
	grown := workingSet - r.WorkingSet
	freeable := anonymous
	if !r.Handle.Direct() {
		// memory.stat does not cover all containers, so add the growth to what was known.
		freeable = t.freeable(r, grown)
	}
	t.Decision.SetUsage(i, max(0, r.Memory+grown), freeable)
	return true
}
