package hot

import (
	"slices"
	"time"

	"github.com/evictd/evictd/agent/act"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/memory"
)

// Pod is a pod held ready to be killed. Its methods allocate nothing.
type Pod interface {
	// Usage is what its containers use together, in bytes, page cache included:
	// a short read that waits for nobody. ok is false where it can't be read.
	Usage() (bytes int64, ok bool)
	// Memory is the working set of its containers and what of it is anonymous,
	// in bytes. It may have to wait for the kernel, so that a Reader asks for it.
	Memory() (workingSet, anonymous int64, ok bool)
	// Direct reports whether every container can be killed directly.
	Direct() bool
	// Grab keeps it from being given up, until Drop; false says that it has been.
	Grab() bool
	Drop()
	// Close gives it up.
	Close()
}

// Striker kills pods that are held, without allocating.
type Striker interface {
	Strike(p Pod, g *evict.Guard) act.Strike
}

// Walk is a Reader that, with every reading, learns what each of the pods'
// cgroups uses.
type Walk interface {
	// Usage is a cgroup's working set at the last reading, and what was on its lists
	// of anonymous memory, tmpfs included, in bytes; ok is false where that did not
	// tell. It allocates nothing.
	Usage(cgroup uint64) (workingSet, anonymous int64, ok bool)
}

// Table is what the thread decides and acts with until it gets the next one.
type Table struct {
	// Decision belongs to the thread from then on.
	Decision *evict.Table
	// Pods are those of the step, by the indices of the decision, and Rows what
	// is known of each.
	Pods []evict.Pod
	Rows []Row
	// Node is the reading of the node that the usage belongs to.
	Node memory.Node
	// Prepare holds a pod that has no Hold yet. It may allocate and wait.
	Prepare func(index int) (Pod, error)
	Guard   *evict.Guard
	DryRun  bool
	// Generation is that of the observation that the decision rests on.
	Generation uint64

	strikes int // of its rows
	// shmemGrown is how much more tmpfs and other shared memory there was on the node
	// at the last reading than at Node, in bytes. A walk counts it as anonymous, and a
	// kill does not give it back.
	shmemGrown int64
}

// Clone returns a copy for another thread.
func (t *Table) Clone() *Table {
	c := *t
	c.Decision, c.Rows = t.Decision.Clone(), slices.Clone(t.Rows)
	return &c
}

// Row is how a pod's usage is brought up to date: what its containers used, page
// cache included, and their part of the working set, when the usage of the
// decision was read, in bytes; and the containers' cgroups, by inode.
type Row struct {
	Hold       Pod // nil where it is not held
	Cgroups    []uint64
	Usage      int64
	WorkingSet int64
	// Memory and Freeable are the decision's.
	Memory, Freeable int64
	// Known tells that all of the above are known, and Walkable that all but the Hold
	// and its Usage are: then a walk alone brings the row up to date.
	Known, Walkable bool

	// walked and exact tell that the usage was brought up to date by a walk, and that
	// nothing more is to be learnt of it.
	walked, exact bool
	// Of a row that was struck: that it was, and what of its Usage a kill does not
	// give back at once, page cache above all.
	struck bool
	stays  int64
}

// NewRow completes a row with what its pod uses now. hold is nil for a pod that is not
// held, or exempt.
func NewRow(hold Pod, pod *evict.Pod, cgroups []uint64, workingSet int64) Row {
	r := Row{Hold: hold, Cgroups: cgroups, WorkingSet: workingSet, Memory: pod.Usage.Memory, Freeable: pod.Usage.Freeable}
	r.Walkable = pod.HasStats && len(cgroups) > 0
	if hold != nil && pod.HasStats {
		r.Usage, r.Known = hold.Usage()
	}
	return r
}

// mostHidden is how much inactive file cache may make a row's usage, without a
// look at the whole of it, wrong by.
const mostHidden = 32 << 20

// struck notes that a pod was, and what it held then. Until a table comes that the
// loop made, its own Hold tells what is left of that.
func (t *Table) struck(c *choice) {
	r := &t.Rows[c.ranked.Index()]
	r.stays = 0
	if r.Known {
		r.stays = max(0, r.Usage-r.Freeable)
	}
	r.Hold, r.Memory, r.Freeable = c.hold, c.ranked.Usage, c.ranked.Expected
	r.Known, r.Walkable, r.struck = false, false, true
	t.strikes++
}

// trail brings up to date what victims still hold. It comes before a reading of
// the node: what they give back between the two is then counted twice, and not
// left out, which would take a second victim for it.
func (t *Table) trail() {
	if t.strikes == 0 || t.DryRun {
		return
	}
	for i := range t.Rows {
		r := &t.Rows[i]
		if !r.struck {
			continue
		}
		if used, ok := r.Hold.Usage(); ok {
			held := min(max(0, used-r.stays), r.Freeable)
			t.Decision.Set(i, r.Memory-(r.Freeable-held), held)
		}
	}
}

// oldest is how old usage may be that a victim is chosen by.
const oldest = 50 * time.Millisecond

// How long the looks at pods may take that an alarm brings about, all together:
// where a walk told what they use, what is looked for is only how much of it is
// tmpfs.
const lookLimit, lookAfterWalk = 10 * time.Millisecond, time.Millisecond

// choose returns the verdict on what was observed, by usage that is not older than
// it may be, nor explains less than what all pods use by now, kubepods bytes: one
// that grows fast may have grown since. fresh tells that it was brought up to date.
// Whoever is chosen by what was estimated is looked at, and so on until those who
// are chosen were.
func (d *decider) choose(kubepods int64, now time.Time) (v evict.Verdict, fresh bool) {
	t := d.table
	fresh = now.Sub(t.Decision.Taken) > oldest || t.Decision.Strange(kubepods)
	if fresh {
		d.refresh(now)
	}
	v = t.Decision.Decide(&d.observed, now)
	for again := fresh; again; {
		again = false
		for i := range toLookAt(&v) {
			again = d.lookAt(v.Ranking[i].Index()) || again
		}
		if again {
			v = t.Decision.Decide(&d.observed, now)
		}
	}
	return v, fresh
}

// toLookAt returns how many of the first of the ranking are looked at: the victims, or,
// where all pods together do not cover the deficit by what was estimated, as many as
// can be victims at once.
func toLookAt(v *evict.Verdict) int {
	if v.Why == evict.Futile {
		return min(len(v.Ranking), mostKills)
	}
	return v.N
}

// refresh brings the usage of all pods up to date, by a walk where there was one.
// Else what a pod's cgroups use is read at once; the inactive file pages in it,
// which count as free, need a look at memory.stat. Where they were few, or where
// that takes too long, their number is taken for unchanged.
func (d *decider) refresh(now time.Time) {
	t := d.table
	d.looksEnd = time.Now().Add(d.lookLimit)
	for i := range t.Rows {
		r := &t.Rows[i]
		r.exact, r.walked = false, false
		if !r.Walkable {
			continue
		}
		if workingSet, anonymous, ok := r.ask(d.walk); ok {
			t.found(i, r, workingSet, anonymous)
			d.looksEnd = now.Add(d.lookAfterWalk)
		}
	}
	for i := range t.Rows {
		r := &t.Rows[i]
		if !r.Known || r.walked || r.Usage-r.WorkingSet > mostHidden && d.lookAt(i) {
			continue
		}
		if used, ok := r.Hold.Usage(); ok {
			t.grow(i, r, used-r.Usage)
		}
	}
	t.Decision.Taken = now
}

// ask sums what a walk found of the pod's containers.
func (r *Row) ask(walk Walk) (workingSet, anonymous int64, ok bool) {
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

// found takes in what a walk found of the i-th pod. What it has grown by is anonymous,
// as far as there is so much on the lists of that, and shared memory has not grown;
// where there is more, some of it is tmpfs, or was page cache. If the pod is chosen,
// the Reader is asked which.
func (t *Table) found(i int, r *Row, workingSet, anonymous int64) {
	r.walked = true
	grown := workingSet - r.WorkingSet
	if r.Hold == nil || !r.Hold.Direct() {
		r.exact = true // nothing else is known of what is not held
		t.grow(i, r, grown)
		return
	}
	freeable := min(r.Freeable+max(0, grown-t.shmemGrown), anonymous)
	r.exact = anonymous-freeable <= mostHidden
	t.Decision.Set(i, max(0, r.Memory+grown), freeable)
}

// grow takes what a pod has more than when the usage of the decision was read for
// anonymous memory, as far as shared memory has not grown.
func (t *Table) grow(i int, r *Row, grown int64) {
	t.Decision.Set(i, max(0, r.Memory+grown), t.freeable(r, grown))
}

// freeable returns how much of a pod that has grown a kill gives back at once.
func (t *Table) freeable(r *Row, grown int64) int64 {
	if grown > 0 {
		grown = max(0, grown-t.shmemGrown)
	}
	return max(0, r.Freeable+grown)
}

// lookAt has the whole usage of the i-th pod read, and reports whether that was new.
func (d *decider) lookAt(i int) bool {
	t := d.table
	r := &t.Rows[i]
	left := time.Until(d.looksEnd)
	if r.exact || !r.Known || left <= 0 {
		return false
	}
	r.exact = true
	workingSet, anonymous, ok := d.read.Look(r.Hold, left)
	if !ok {
		return false
	}
	grown := workingSet - r.WorkingSet
	freeable := anonymous
	if !r.Hold.Direct() {
		// Of what is not held, nothing is known but what it was.
		freeable = t.freeable(r, grown)
	}
	t.Decision.Set(i, max(0, r.Memory+grown), freeable)
	return true
}
