package podfence

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/evictd/evictd/kernel/cgroup"
)

// ErrFull means that as many fences are set as can be marked.
var ErrFull = fmt.Errorf("%d fences are set, which is the maximum", maxFences)

// Options configure a Table.
type Options struct {
	// File is the path of the file of marks, in a directory below /run.
	File      string
	BootID    string
	Hierarchy *cgroup.Hierarchy
}

// Table has the fences that are prepared or set, and their marks. Its methods may be called
// concurrently.
type Table struct {
	o    Options
	seed uint32
	file atomic.Pointer[markFile] // replaced by Check
	used [maxFences]atomic.Bool   // the records that are in use
	sets atomic.Int32             // the fences that are set

	mu     sync.Mutex
	fences map[uint64]*Fence // by cgroup ID
}

// Found is what Open found in the file.
type Found struct {
	// Fences are those that an earlier evictd of this boot set, or was about to set, in
	// cgroups that still exist. They count as set.
	Fences []Left
	// Problem joins the reasons for which a part of the file was not used; nil if all was.
	Problem error
}

// Left is a fence of an earlier evictd, with the ID of the order that it was set for and the note
// about that; both are empty if the order had ended.
type Left struct {
	*Fence
	Order, Note string
}

// Open opens the file of marks, or makes it, and returns the fences that are marked in it.
// Marks of another boot and of removed cgroups are discarded. It fails with [ErrLocked]
// while another Table has the file open, and if marks can't be written.
func Open(o Options) (*Table, Found, error) {
	if o.BootID == "" {
		return nil, Found{}, errors.New("open fence marks: no boot id")
	}
	if err := os.MkdirAll(filepath.Dir(o.File), 0o755); err != nil {
		return nil, Found{}, fmt.Errorf("open fence marks: %w", err)
	}
	file, content, problem, err := openFile(o.File)
	if err != nil {
		return nil, Found{}, err
	}
	t := &Table{o: o, seed: bootSeed(o.BootID), fences: map[uint64]*Fence{}}
	t.file.Store(file)
	var found Found
	marks, err := parseMarks(content, o.BootID)
	problems := []error{problem, err}
	first := encodeHeader(o.BootID)
	kept := make([]byte, fileSize)
	copy(kept, first[:])
	for _, m := range marks {
		f, err := t.adopt(m)
		if errors.Is(err, cgroup.ErrGone) {
			continue
		}
		if f != nil {
			found.Fences = append(found.Fences, Left{f, m.order, m.note})
		} else {
			problems = append(problems, fmt.Errorf("mark of pod %s: %w; its containers may not be able to start until evictd is restarted without this error", m.uid, err))
		}
		// The mark of a fence that can't be opened stays for the next start.
		t.used[m.slot].Store(true)
		var r record
		r.encode(&m.mark, t.seed)
		copy(kept[(1+m.slot)*recordSize:], r[:])
	}
	if err := file.rewrite(kept); err != nil {
		t.Close()
		return nil, Found{}, fmt.Errorf("write fence marks: %w", err)
	}
	if err := errors.Join(problems...); err != nil {
		found.Problem = fmt.Errorf("read fence marks %s: %w", o.File, err)
	}
	return t, found, nil
}

// adopt returns the fence of a mark. It fails with ErrGone if its cgroup was removed.
func (t *Table) adopt(m slotMark) (*Fence, error) {
	limits, err := t.o.Hierarchy.OpenLimits(m.path)
	if err != nil {
		return nil, err
	}
	if limits.ID() != m.id {
		limits.Close()
		return nil, cgroup.ErrGone
	}
	if t.fences[m.id] != nil {
		limits.Close()
		return nil, fmt.Errorf("cgroup %s has two marks", m.path)
	}
	f := &Fence{table: t, limits: limits, mark: m.mark, slot: m.slot}
	f.record.encode(&f.mark, t.seed)
	f.state.Store(set)
	t.sets.Add(1)
	t.fences[m.id] = f
	return f, nil
}

// Len returns the number of fences that are set, also of those that could not be lifted. It
// does not block.
func (t *Table) Len() int { return int(t.sets.Load()) }

// Prepare opens the limits of the pod with a UID, whose running containers have the given
// cgroups. The pod's cgroup is their parent, if it has the name that the kubelet gives it
// ([cgroup.PodPath]). Prepare fails with [cgroup.ErrGone] if there is no such cgroup, and
// with kernel.ErrUnavailable on v1 without the pids controller. A second call for the
// same cgroup returns the same Fence, which is then closed as often.
func (t *Table) Prepare(uid string, containers []string) (*Fence, error) {
	f, err := t.prepare(uid, containers)
	if err != nil {
		return nil, fmt.Errorf("prepare fence of pod %s: %w", uid, err)
	}
	return f, nil
}

func (t *Table) prepare(uid string, containers []string) (*Fence, error) {
	path, err := cgroup.PodPath(uid, containers)
	if err != nil {
		return nil, err
	}
	if err := checkMark(uid, path); err != nil {
		return nil, err
	}
	limits, err := t.o.Hierarchy.OpenLimits(path)
	if err != nil {
		return nil, err
	}
	f := &Fence{table: t, limits: limits, mark: mark{uid: uid, path: path, id: limits.ID()}, slot: -1, refs: 1}
	for file := range cgroup.LimitFiles {
		if f.mark.has[file] = limits.Has(file); !f.mark.has[file] {
			continue
		}
		if f.mark.old[file], err = limits.Read(file); err != nil {
			limits.Close()
			return nil, err
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.fences == nil {
		limits.Close()
		return nil, os.ErrClosed
	}
	if known := t.fences[f.mark.id]; known != nil {
		limits.Close()
		known.refs++
		return known, nil
	}
	t.fences[f.mark.id] = f
	return f, nil
}

// LiftAll lifts all fences, for a clean stop. The error joins those of the fences that
// could not be lifted.
func (t *Table) LiftAll() (lifted int, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var errs []error
	for _, f := range t.fences {
		switch wasSet, err := f.lift(); {
		case err != nil:
			errs = append(errs, err)
		case wasSet:
			lifted++
		}
	}
	return lifted, errors.Join(errs...)
}

// DisownAll is [Fence.Disown] for all fences and any order.
func (t *Table) DisownAll() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var errs []error
	for _, f := range t.fences {
		if f.state.Load() == set {
			errs = append(errs, f.disown())
		}
	}
	return errors.Join(errs...)
}

// Released is a fence that an evictd of this boot left.
type Released struct {
	UID, Path string
	// Err is why it could not be lifted. Its mark stays.
	Err error
}

// Release lifts the fences that an evictd of this boot left, when none that sets fences runs.
// It makes no file. problem is [Found.Problem]: fences that are not known may remain.
func Release(o Options) (released []Released, problem, err error) {
	if _, err := os.Lstat(o.File); errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	t, found, err := Open(o)
	if err != nil {
		return nil, nil, err
	}
	defer t.Close()
	for _, f := range found.Fences {
		released = append(released, Released{UID: f.UID(), Path: f.Path(), Err: f.Lift()})
	}
	return released, found.Problem, nil
}

// Close closes all descriptors. Fences that are set stay so, with their marks, for the next
// evictd.
func (t *Table) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, f := range t.fences {
		for _, state := range []int32{idle, set, liftFailed} {
			f.state.CompareAndSwap(state, closed)
		}
		f.limits.Close()
	}
	t.fences = nil
	return t.file.Load().Close()
}

// claim returns a free record.
func (t *Table) claim() (slot int, ok bool) {
	for slot := range t.used {
		if t.used[slot].CompareAndSwap(false, true) {
			return slot, true
		}
	}
	return -1, false
}

// write writes a record, again if Check has replaced the file.
func (t *Table) write(slot int, r *record) error {
	for {
		file := t.file.Load()
		err := file.write(slot, r)
		if t.file.Load() != file {
			continue
		}
		if err != nil {
			return fmt.Errorf("write fence mark: %w", err)
		}
		return nil
	}
}
