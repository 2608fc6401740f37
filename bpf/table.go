package bpf

import (
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Row is what one cgroup uses, with all that is below it.
type Row struct {
	Cgroup uint64 // inode number of its directory
	// Parent is the index of the row of the cgroup above, which stands before this
	// one; the first row's is its own.
	Parent int
	Usage  uint64
	// InactiveFile and ActiveFile are page cache as memory.stat counts it, but as
	// of this moment.
	InactiveFile, ActiveFile uint64
	// Anon is what stands on the LRU lists of anonymous memory: with tmpfs, without
	// what is locked. Unevictable is the latter.
	Anon, Unevictable uint64
	// Partial says that there are cgroups below that the walk did not visit: the
	// figures but Usage are, of those, as of the last survey.
	Partial bool
}

// WorkingSet is the usage without inactive file pages.
func (r *Row) WorkingSet() uint64 { return workingSet(r.Usage, r.InactiveFile) }

// Table describes the rows of one walk.
type Table struct {
	Time      time.Duration // when the walk began
	Truncated bool          // the walk took too long; what is there is not all
}

// SetWalk makes the sampler read all cgroups of the pods anew whenever the last
// reading is as old as period: 0 is never, except on demand and where a crossing may
// come of it. Ticks are no closer than the sampler's floor and no further apart than
// its ceiling, and walks take at most a quarter of the time.
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

// Walk has all cgroups of the pods read now, and returns when there is a table
// whose reading began after this call did. It allocates nothing, nor when it fails.
// Where none comes within limit, and so where there is no cgroup of the pods, it is
// an [os.ErrDeadlineExceeded].
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
	// By now the softirq has run on this CPU, as a rule. Where it was left to
	// ksoftirqd, that has to get the CPU.
	for start := time.Now(); atomic.LoadUint64(&table.Done) <= begun; {
		if time.Since(start) > limit {
			return errWalkLate
		}
		pause := unix.Timespec{Nsec: 20_000}
		_ = unix.Nanosleep(&pause, nil)
	}
	return nil
}

// Rows reads the table of the latest walk into rows, from its beginning, and
// returns it with what the walk found. It takes no system call, and allocates only
// when rows has not the capacity. Before the first walk it is [ErrNoTable].
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
		// The walk after the next writes over these rows.
		if atomic.LoadUint64(&shared.Begun) > done+1 {
			continue
		}
		return sumUp(rows), table, nil
	}
	return rows[:0], Table{}, errRowsOutrun
}

// sumUp adds what each cgroup has on its own lists to all above it. Whoever is above
// stands before.
func sumUp(rows []Row) []Row {
	for i := len(rows) - 1; i > 0; i-- {
		row := &rows[i]
		if row.Parent < 0 || row.Parent >= i {
			continue
		}
		above := &rows[row.Parent]
		above.InactiveFile += row.InactiveFile
		above.ActiveFile += row.ActiveFile
		above.Anon += row.Anon
		above.Unevictable += row.Unevictable
		above.Partial = above.Partial || row.Partial
	}
	return rows
}
