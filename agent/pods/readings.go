package pods

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/bpf"
	"github.com/evictd/evictd/kernel/cgroup"
)

// Tree tells what the cgroups of the pods use, all by one walk. It belongs to
// whoever calls [Inventory.Measure].
type Tree interface {
	// Walk reads all anew, and reports false where that can't be had.
	Walk() bool
	// Find returns what the last walk found of a cgroup, nil where it found none.
	Find(cgroup uint64) *bpf.Row
	// Shape is a number for the set of cgroups that the last walk found.
	Shape() uint64
}

const (
	// readAgain is after how long a cgroup is read again of which a walk tells that
	// it has not moved: a walk can't tell tmpfs from anonymous memory, nor tasks.
	readAgain = time.Minute
	// leastMove and moveShare are the least by which the usage of a cgroup moves
	// noticeably, in bytes, and the share of it that is added.
	leastMove, moveShare = 256 << 10, 256
)

// reading is what the files of a cgroup said, and what a walk did right before.
type reading struct {
	row    bpf.Row
	at     time.Time
	memory cgroup.Memory
	tasks  uint64
	turn   uint64 // in which it was used last
}

// holds reports whether the reading is still true, as far as a walk tells.
func (r *reading) holds(now *bpf.Row, at time.Time) bool {
	if at.Sub(r.at) >= readAgain {
		return false
	}
	most := leastMove + max(r.row.Usage, now.Usage)/moveShare
	near := func(a, b uint64) bool { return max(a, b)-min(a, b) <= most }
	return near(r.row.Usage, now.Usage) && near(r.row.InactiveFile, now.InactiveFile) &&
		near(r.row.ActiveFile, now.ActiveFile) && near(r.row.Anon, now.Anon)
}

// by returns the memory of a reading that holds, with the working set brought up to
// date by a walk: the little that each of many has moved by adds up.
func (r *reading) by(now *bpf.Row) cgroup.Memory {
	m := r.memory
	m.WorkingSet = uint64(max(0, signed(m.WorkingSet)+signed(now.WorkingSet())-signed(r.row.WorkingSet())))
	return m
}

// readings are what was read of cgroups. They belong to whoever measures.
type readings struct {
	tree   Tree // nil where there is none
	walked bool // just now
	now    time.Time
	oldest time.Time // of the readings that were used since it was set
	turn   uint64
	known  map[uint64]*reading // by cgroup
}

// begin begins a measurement.
func (r *readings) begin(now time.Time) {
	r.now = now
	r.turn++
	r.walked = r.tree != nil && r.tree.Walk()
}

// forget drops what was not used in this measurement.
func (r *readings) forget() {
	for id, known := range r.known {
		if known.turn != r.turn {
			delete(r.known, id)
		}
	}
}

// kept returns what is known of a cgroup, if it has not moved noticeably since;
// nil where its files have to be read. row is what the walk found of it, nil where
// that is only a part.
func (r *readings) kept(g *cgroup.Cgroup) (known *reading, row *bpf.Row) {
	if !r.walked {
		return nil, nil
	}
	if row = r.tree.Find(g.ID()); row == nil || row.Partial {
		return nil, nil
	}
	if known = r.known[g.ID()]; known == nil || !known.holds(row, r.now) {
		return nil, row
	}
	known.turn = r.turn
	return known, row
}

// read reads a cgroup; none is one that has gone.
func (r *readings) read(g *cgroup.Cgroup) (memory cgroup.Memory, tasks uint64, err error) {
	if g == nil {
		return memory, 0, cgroup.ErrGone
	}
	known, row := r.kept(g)
	if known != nil {
		if known.at.Before(r.oldest) {
			r.oldest = known.at
		}
		return known.by(row), known.tasks, nil
	}
	if err := g.ReadMemory(&memory); err != nil {
		return cgroup.Memory{}, 0, err
	}
	if tasks, err = g.Tasks(); err != nil {
		return cgroup.Memory{}, 0, err
	}
	if row != nil {
		r.known[g.ID()] = &reading{row: *row, at: r.now, memory: memory, tasks: tasks, turn: r.turn}
	}
	return memory, tasks, nil
}

// workingSet returns that of a cgroup whose reading is kept, in bytes.
func (r *readings) workingSet(g *cgroup.Cgroup) int64 {
	known, row := r.kept(g)
	if known == nil {
		return 0
	}
	return signed(known.by(row).WorkingSet)
}

// still reports whether none of the cgroups has moved noticeably.
func (r *readings) still(groups []*cgroup.Cgroup) bool {
	for _, g := range groups {
		if known, _ := r.kept(g); known == nil {
			return false
		}
	}
	return true
}

// orphanages are the cgroups in which runtimes put what was given no place: a
// walk of the pods' cgroup does not come by there.
var orphanages = [...]string{"/", "/k8s.io", "/crio", "/system.slice"}

// shape is a number for the set of all cgroups that may be containers'.
func (i *Inventory) shape() uint64 {
	shape := i.readings.tree.Shape()
	for _, at := range orphanages {
		var st unix.Stat_t
		if unix.Stat(i.hierarchy.Memory.Path(at), &st) == nil {
			// A directory of kernfs has a link for each below it.
			shape = shape*31 + uint64(st.Nlink)
		}
	}
	return shape
}
