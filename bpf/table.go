package bpf

import (
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Row has the memory of one cgroup, with everything below it.
type Row struct {
	Cgroup uint64 // inode number of its directory
	// Parent is the index of the parent's row, which is lower than this row's. The first
	// row is its own parent.
	Parent int
	Usage  uint64
	// InactiveFile and ActiveFile are page cache as in memory.stat, but at the time of
	// the walk; memory.stat may be seconds old.
	InactiveFile, ActiveFile uint64
	// Anon is the size of the LRU lists of anonymous memory, which include tmpfs but not
	// locked pages. Unevictable has the locked pages.
	Anon, Unevictable uint64
	// Partial means that some cgroups below have no row. The figures of those that the walk
	// did not visit are, except for Usage, those of the last survey.
	Partial bool
}

// WorkingSet returns the usage without inactive file pages.
func (r *Row) WorkingSet() uint64 { return workingSet(r.Usage, r.InactiveFile) }

// Table describes the rows of one walk.
type Table struct {
	Time      time.Duration // when the walk began
	Truncated bool          // the walk took too long; rows are missing
}

// SetWalk sets the age at which the sampler repeats the walk of the pods' cgroups. With 0
// it walks once a second, on demand and where a threshold of the pods depends on it. The
// time between ticks remains within its bounds, and walks take at most a quarter of the
// time.
func (s *Sampler) SetWalk(period time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed.Load() {
		return fmt.Errorf("set walk: %w", os.ErrClosed)
	}
	if period < 0 {
		return fmt.Errorf("set walk: period %s is out of range", period)
	}
	s.want.WalkPeriod = uint64(period)
	s.publish()
	return s.Kick()
}

// Walk requests a walk of the pods' cgroups and returns when there is a table of a walk
// that began after the call. It returns an error that wraps [os.ErrDeadlineExceeded] if
// there is none within limit, for example because no pods' cgroup is set. It does not
// allocate, even if it fails.
func (s *Sampler) Walk(limit time.Duration) error {
	if s.closed.Load() {
		return errWalkClosed
	}
	table := s.table.first()
	begun := atomic.LoadUint64(&table.Begun)
	atomic.AddUint64(&s.orders.first().Walk, 1)
	if err := s.Kick(); err != nil {
		return err
	}
	// The softirq normally has run on this CPU by now. If the kernel left it to
	// ksoftirqd, the sleep lets that thread run.
	for start := time.Now(); atomic.LoadUint64(&table.Done) <= begun; {
		if time.Since(start) > limit {
			return errWalkLate
		}
		pause := unix.Timespec{Nsec: 20_000}
		_ = unix.Nanosleep(&pause, nil)
	}
	return nil
}

// Rows returns the table of the latest walk. It reuses the memory of rows, takes no
// system call and allocates only if the capacity of rows is too small. It returns
// [ErrNoTable] before the first walk.
func (s *Sampler) Rows(rows []Row) ([]Row, Table, error) {
	if s.closed.Load() {
		return rows[:0], Table{}, errRowsClosed
	}
	shared := s.table.first()
	for range 1 << 10 {
		done := atomic.LoadUint64(&shared.Done)
		if done == 0 {
			return rows[:0], Table{}, ErrNoTable
		}
		half := done % 2
		size := uint64(len(s.rows.entries)) / 2
		count := min(atomic.LoadUint64(&shared.Count[half]), size)
		table := Table{
			Time:      time.Duration(atomic.LoadUint64(&shared.Time[half])),
			Truncated: atomic.LoadUint64(&shared.Truncated[half]) != 0,
		}
		rows = rows[:0]
		for i := range s.rows.entries[half*size:][:count] {
			var raw samplerRow
			loadWords(&raw, &s.rows.entries[half*size+uint64(i)])
			rows = append(rows, Row{
				Cgroup: raw.Id, Parent: int(raw.Parent), Usage: raw.Usage,
				InactiveFile: raw.InactiveFile, ActiveFile: raw.ActiveFile, Anon: raw.Anon, Unevictable: raw.Unevictable,
				Partial: raw.Partial != 0,
			})
		}
		// The walk after the next one overwrites these rows.
		if atomic.LoadUint64(&shared.Begun) > done+1 {
			continue
		}
		return addToParents(rows), table, nil
	}
	return rows[:0], Table{}, errRowsOverrun
}

// addToParents adds the lists of each cgroup to those of all its ancestors. It goes from
// the last row to the first, since a parent's row has a lower index.
func addToParents(rows []Row) []Row {
	for i := len(rows) - 1; i > 0; i-- {
		row := &rows[i]
		if row.Parent < 0 || row.Parent >= i {
			continue
		}
		parent := &rows[row.Parent]
		parent.InactiveFile += row.InactiveFile
		parent.ActiveFile += row.ActiveFile
		parent.Anon += row.Anon
		parent.Unevictable += row.Unevictable
		parent.Partial = parent.Partial || row.Partial
	}
	return rows
}
