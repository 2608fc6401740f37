package pods

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/bpf"
	"github.com/evictd/evictd/kernel/cgroup"
)

// Tree reads the usage of all cgroups below kubepods in one walk. Only the goroutine that
// calls [Inventory.Measure] uses it.
type Tree interface {
	// Walk reads all cgroups. It returns false if there are no data.
	Walk() bool
	// Find returns the row of a cgroup in the last walk; nil if there is none.
	Find(cgroup uint64) *bpf.Row
	// SetHash returns a hash of the set of cgroups in the last walk.
	SetHash() uint64
}

const (
	// readingMaxAge is after how long the files of a cgroup are read again although walks show
	// no change: a walk can't distinguish tmpfs from anonymous memory, and has no tasks.
	readingMaxAge = time.Minute
	// minChange is the least noticeable change of a cgroup's usage, in bytes, to which
	// 1/changeShare of the usage is added.
	minChange, changeShare = 256 << 10, 256
)

// reading is what was read from the files of a cgroup, and the row of the walk directly
// before.
type reading struct {
	row    bpf.Row
	at     time.Time
	memory cgroup.Memory
	tasks  uint64
	seq    uint64 // measurement that used it last
}

// unchanged reports whether a walk shows no noticeable change since the reading.
func (r *reading) unchanged(now *bpf.Row, at time.Time) bool {
	if at.Sub(r.at) >= readingMaxAge {
		return false
	}
	most := minChange + max(r.row.Usage, now.Usage)/changeShare
	near := func(a, b uint64) bool { return max(a, b)-min(a, b) <= most }
	return near(r.row.Usage, now.Usage) && near(r.row.InactiveFile, now.InactiveFile) &&
		near(r.row.ActiveFile, now.ActiveFile) && near(r.row.Anon, now.Anon)
}

// updatedBy returns the reading with its working set updated by a walk: small changes of
// many cgroups add up.
func (r *reading) updatedBy(now *bpf.Row) cgroup.Memory {
	m := r.memory
	m.WorkingSet = uint64(max(0, signed(m.WorkingSet)+signed(now.WorkingSet())-signed(r.row.WorkingSet())))
	return m
}

// readings are the cached readings by cgroup. Only the goroutine that measures uses them.
type readings struct {
	tree   Tree // may be nil
	walked bool // in this measurement
	now    time.Time
	oldest time.Time           // of the readings used since it was set
	seq    uint64              // of this measurement
	known  map[uint64]*reading // by cgroup
}

// begin starts a measurement.
func (r *readings) begin(now time.Time) {
	r.now = now
	r.seq++
	r.walked = r.tree != nil && r.tree.Walk()
}

// dropUnused removes the readings that this measurement did not use.
func (r *readings) dropUnused() {
	for id, known := range r.known {
		if known.seq != r.seq {
			delete(r.known, id)
		}
	}
}

// cached returns the reading of a cgroup if it has not changed noticeably; nil if its files
// have to be read. row is its row in the walk; nil if that is missing or partial.
func (r *readings) cached(g *cgroup.Cgroup) (known *reading, row *bpf.Row) {
	if !r.walked {
		return nil, nil
	}
	if row = r.tree.Find(g.ID()); row == nil || row.Partial {
		return nil, nil
	}
	if known = r.known[g.ID()]; known == nil || !known.unchanged(row, r.now) {
		return nil, row
	}
	known.seq = r.seq
	return known, row
}

// read returns the usage of a cgroup, cached or from its files; [cgroup.ErrGone] for nil.
func (r *readings) read(g *cgroup.Cgroup) (memory cgroup.Memory, tasks uint64, err error) {
	if g == nil {
		return memory, 0, cgroup.ErrGone
	}
	known, row := r.cached(g)
	if known != nil {
		if known.at.Before(r.oldest) {
			r.oldest = known.at
		}
		return known.updatedBy(row), known.tasks, nil
	}
	if err := g.ReadMemory(&memory); err != nil {
		return cgroup.Memory{}, 0, err
	}
	if tasks, err = g.Tasks(); err != nil {
		return cgroup.Memory{}, 0, err
	}
	if row != nil {
		r.known[g.ID()] = &reading{row: *row, at: r.now, memory: memory, tasks: tasks, seq: r.seq}
	}
	return memory, tasks, nil
}

// workingSet returns the working set of a cgroup from its cached reading, in bytes.
func (r *readings) workingSet(g *cgroup.Cgroup) int64 {
	known, row := r.cached(g)
	if known == nil {
		return 0
	}
	return signed(known.updatedBy(row).WorkingSet)
}

// allCached reports whether no cgroup has changed noticeably.
func (r *readings) allCached(groups []*cgroup.Cgroup) bool {
	for _, g := range groups {
		if known, _ := r.cached(g); known == nil {
			return false
		}
	}
	return true
}

// defaultParents are the cgroups in which runtimes create containers without a configured
// parent. A walk of kubepods does not reach them.
var defaultParents = [...]string{"/", "/k8s.io", "/crio", "/system.slice"}

// setHash returns a hash of the set of all cgroups that may be containers'.
func (inv *Inventory) setHash() uint64 {
	hash := inv.readings.tree.SetHash()
	for _, at := range defaultParents {
		var st unix.Stat_t
		if unix.Stat(inv.hierarchy.Memory.Path(at), &st) == nil {
			// A kernfs directory has a link for each of its subdirectories.
			hash = hash*31 + uint64(st.Nlink)
		}
	}
	return hash
}
