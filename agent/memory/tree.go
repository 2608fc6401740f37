package memory

import (
	"math/bits"
	"time"

	"github.com/evictd/evictd/bpf"
)

// Tree reads the usage of all cgroups below kubepods in one walk of the BPF sampler. It is
// not safe for concurrent use, except that the sampler may be replaced at any time.
type Tree struct {
	reader *SamplerReader
	rows   rowIndex
}

// walkDeadline bounds a walk that no alarm waits for: ten times samplerDeadline.
const walkDeadline = 5 * time.Millisecond

// Tree returns a reader that uses the sampler of r.
func (r *SamplerReader) Tree() *Tree { return &Tree{reader: r} }

// Walk reads all cgroups. If it returns false, Find and SetHash have no data.
func (t *Tree) Walk() bool {
	t.rows.reset()
	t.reader.inUse.Add(1)
	defer t.reader.inUse.Add(-1)
	s := t.reader.sampler.Load()
	if s == nil || !s.Pods {
		return false
	}
	requested, ok := bpf.MonotonicTime()
	return ok && s.Walk(walkDeadline) == nil && t.rows.load(s.Sampler, requested)
}

// Find returns the row of a cgroup in the last walk; nil if there is none.
func (t *Tree) Find(cgroup uint64) *bpf.Row { return t.rows.find(cgroup) }

// SetHash returns a hash of the set of cgroups in the last walk, independent of their order.
// It changes when a cgroup is created or removed.
func (t *Tree) SetHash() uint64 {
	hash := uint64(len(t.rows.rows))
	for i := range t.rows.rows {
		mixed := t.rows.rows[i].Cgroup * hashMultiplier
		mixed = (mixed ^ mixed>>32) * hashMultiplier
		hash += mixed ^ mixed>>32
	}
	return hash
}

// rowIndex has the rows of a walk, indexed by cgroup.
type rowIndex struct {
	rows []bpf.Row
	// slots is a hash table with linear probing: the index of a row plus 1; 0 is free.
	slots []int32
}

// hashMultiplier is 2^64 over the golden ratio (Fibonacci hashing).
const hashMultiplier = 0x9e3779b97f4a7c15

// reserve allocates space for a number of rows.
func (x *rowIndex) reserve(rows int) {
	x.rows = make([]bpf.Row, 0, rows)
	x.slots = make([]int32, 0, slotCount(rows))
}

// slotCount returns a power of two that leaves at least half of the slots free.
func slotCount(rows int) int { return 2 << bits.Len(uint(rows)) }

// reset removes all rows.
func (x *rowIndex) reset() { x.rows, x.slots = x.rows[:0], x.slots[:0] }

// load reads the rows of the latest walk. It returns false and removes all rows if that
// walk began before since or was truncated.
func (x *rowIndex) load(s *bpf.Sampler, since time.Duration) bool {
	rows, table, err := s.Rows(x.rows[:0])
	x.rows = rows
	if err != nil || table.Time < since || table.Truncated {
		x.reset()
		return false
	}
	x.rebuild()
	return true
}

// rebuild fills the hash table.
func (x *rowIndex) rebuild() {
	n := slotCount(len(x.rows))
	if cap(x.slots) < n {
		x.slots = make([]int32, n)
	}
	x.slots = x.slots[:n]
	clear(x.slots)
	for i := range x.rows {
		at := x.firstSlot(x.rows[i].Cgroup)
		for x.slots[at] != 0 {
			at = (at + 1) % n
		}
		x.slots[at] = int32(i) + 1
	}
}

// firstSlot returns the slot at which the search for a cgroup begins.
func (x *rowIndex) firstSlot(cgroup uint64) int {
	return int(cgroup * hashMultiplier >> (64 - bits.Len(uint(len(x.slots)-1))))
}

func (x *rowIndex) find(cgroup uint64) *bpf.Row {
	if len(x.slots) == 0 {
		return nil
	}
	for at := x.firstSlot(cgroup); x.slots[at] != 0; at = (at + 1) % len(x.slots) {
		if row := &x.rows[x.slots[at]-1]; row.Cgroup == cgroup {
			return row
		}
	}
	return nil
}
