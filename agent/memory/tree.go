package memory

import (
	"math/bits"
	"time"

	"github.com/evictd/evictd/bpf"
)

// Tree reads what all cgroups of the pods use, in one walk of the sampler in the
// kernel. It is not safe for concurrent use; the sampler may come and go
// meanwhile.
type Tree struct {
	quick  *Quick
	walked usages
}

// treeLimit is how long a walk may take that nobody waits for in a hurry.
const treeLimit = 5 * time.Millisecond

// Tree returns a reader of the sampler that the Quick is given.
func (q *Quick) Tree() *Tree { return &Tree{quick: q} }

// Walk reads all cgroups anew, and reports false where that can't be had: what
// Find and Shape tell is nothing then.
func (t *Tree) Walk() bool {
	t.walked.forget()
	t.quick.users.Add(1)
	defer t.quick.users.Add(-1)
	s := t.quick.sampler.Load()
	if s == nil || !s.Pods {
		return false
	}
	asked, ok := bpf.Uptime()
	return ok && s.Walk(treeLimit) == nil && t.walked.take(s.Sampler, asked)
}

// Find returns what the last walk found of a cgroup; nil where it found none.
func (t *Tree) Find(cgroup uint64) *bpf.Row { return t.walked.find(cgroup) }

// Shape is a number for the set of cgroups that the last walk found, in whatever
// order: it is another when one has come or gone.
func (t *Tree) Shape() uint64 {
	shape := uint64(len(t.walked.rows))
	for i := range t.walked.rows {
		mixed := t.walked.rows[i].Cgroup * spread
		mixed = (mixed ^ mixed>>32) * spread
		shape += mixed ^ mixed>>32
	}
	return shape
}

// usages are the rows of a walk, to be found by their cgroups.
type usages struct {
	rows []bpf.Row
	// slots are indices of rows and one more, at the place that the cgroup's number
	// says or the next that was free; 0 is free.
	slots []int32
}

// spread is 2^64 over the golden ratio: products with it have their bits mixed.
const spread = 0x9e3779b97f4a7c15

// makeRoom lets so many rows be taken without asking for memory.
func (u *usages) makeRoom(rows int) {
	u.rows = make([]bpf.Row, 0, rows)
	u.slots = make([]int32, 0, slotsFor(rows))
}

// slotsFor is a power of two, and leaves at least half of the slots free.
func slotsFor(rows int) int { return 2 << bits.Len(uint(rows)) }

// forget leaves nothing to be found.
func (u *usages) forget() { u.rows, u.slots = u.rows[:0], u.slots[:0] }

// take reads the rows of the latest walk, if that began after a time and came to its
// end.
func (u *usages) take(s *bpf.Sampler, since time.Duration) bool {
	rows, table, err := s.Rows(u.rows[:0])
	u.rows = rows
	if err != nil || table.Time < since || table.Truncated {
		u.forget()
		return false
	}
	u.index()
	return true
}

// index lets the rows be found.
func (u *usages) index() {
	n := slotsFor(len(u.rows))
	if cap(u.slots) < n {
		u.slots = make([]int32, n)
	}
	u.slots = u.slots[:n]
	clear(u.slots)
	for i := range u.rows {
		at := u.slot(u.rows[i].Cgroup)
		for u.slots[at] != 0 {
			at = (at + 1) % n
		}
		u.slots[at] = int32(i) + 1
	}
}

// slot is where a cgroup is looked for first.
func (u *usages) slot(cgroup uint64) int {
	return int(cgroup * spread >> (64 - bits.Len(uint(len(u.slots)-1))))
}

func (u *usages) find(cgroup uint64) *bpf.Row {
	if len(u.slots) == 0 {
		return nil
	}
	for at := u.slot(cgroup); u.slots[at] != 0; at = (at + 1) % len(u.slots) {
		if row := &u.rows[u.slots[at]-1]; row.Cgroup == cgroup {
			return row
		}
	}
	return nil
}
