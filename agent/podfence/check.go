package podfence

import (
	"errors"
	"fmt"

	"github.com/evictd/evictd/kernel/cgroup"
)

// Report is what a check found.
type Report struct {
	// Set are the fences that are set.
	Set []*Fence
	// Changed are the limits that others wrote since the last check. They are 0 again.
	Changed []Change
	// Gone are the fences that were removed with the pod's cgroup.
	Gone []*Fence
}

// Change is a limit of a set fence that others wrote.
type Change struct {
	UID  string
	File cgroup.LimitFile
	// Limit is what was written. Lift restores it.
	Limit cgroup.Limit
}

// Check reads the limits of all set fences and sets those to 0 that others wrote. It also
// sets limits that Set could not write, or did not come to write before a crash, and lifts
// what could not be lifted. It writes marks again that are no longer in the file, and the
// file if it was removed or truncated. The error joins what is wrong; the other fences are
// checked all the same.
func (t *Table) Check() (Report, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.fences == nil {
		return Report{}, nil
	}
	var r Report
	errs := []error{t.repair()}
	for _, f := range t.fences {
		switch f.state.Load() {
		case set:
		case liftFailed:
			_, err := f.lift()
			errs = append(errs, err)
			continue
		default:
			f.closeUnused()
			continue
		}
		switch err := f.check(&r); {
		case errors.Is(err, cgroup.ErrGone):
			r.Gone = append(r.Gone, f)
			errs = append(errs, f.end())
			continue
		case err != nil:
			errs = append(errs, fmt.Errorf("check fence of pod %s: %w", f.mark.uid, err))
		}
		r.Set = append(r.Set, f)
	}
	return r, errors.Join(errs...)
}

// check checks one fence. It fails with ErrGone if the cgroup was removed.
func (f *Fence) check(r *Report) error {
	err := f.retry(func() error { return f.checkLimits(r) })
	if errors.Is(err, cgroup.ErrGone) {
		return err
	}
	return errors.Join(f.checkMark(), err)
}

func (f *Fence) checkLimits(r *Report) error {
	var errs []error
	for file := range cgroup.LimitFiles {
		if f.limits.Has(file) && f.sets(file) {
			errs = append(errs, f.checkLimit(file, r))
		}
	}
	return errors.Join(errs...)
}

// checkMark writes the mark again if the file has another.
func (f *Fence) checkMark() error {
	var got record
	if err := f.table.file.Load().read(f.slot, &got); err == nil && got == f.record {
		return nil
	}
	if err := f.writeMark(); err != nil {
		return err
	}
	return errors.New("the mark was overwritten; it is restored")
}

// checkLimit sets a limit to 0 if it is not, and marks it as the one to restore first.
func (f *Fence) checkLimit(file cgroup.LimitFile, r *Report) error {
	limit, err := f.limits.Read(file)
	if err != nil || limit == 0 {
		return err
	}
	if f.written[file] {
		r.Changed = append(r.Changed, Change{UID: f.mark.uid, File: file, Limit: limit})
	}
	if !f.mark.has[file] || f.mark.old[file] != limit {
		first := !f.mark.has[file]
		f.mark.has[file], f.mark.old[file] = true, limit
		if err := f.writeMark(); err != nil && first {
			f.mark.has[file] = false
			return err
		}
		// Otherwise the mark has an earlier limit, and checkMark writes it again.
	}
	if err := f.limits.Write(file, 0); err != nil {
		return err
	}
	f.written[file] = true
	return nil
}

// repair makes the file of marks again if it was removed, and gives it its size. The marks
// themselves are checked with their fences.
func (t *Table) repair() error {
	file := t.file.Load()
	same, problem := file.intact()
	if problem == nil {
		return nil
	}
	err := error(nil)
	if same {
		err = file.extend(encodeHeader(t.o.BootID))
	} else {
		err = t.replaceFile(file)
	}
	if err != nil {
		return fmt.Errorf("fence marks %s: %w; they could not be written again: %w", t.o.File, problem, err)
	}
	return fmt.Errorf("fence marks %s: %w; they are written again", t.o.File, problem)
}

// replaceFile makes another file of marks, without marks.
func (t *Table) replaceFile(old *markFile) error {
	file, _, _, err := openFile(t.o.File)
	if err != nil {
		return err
	}
	content := make([]byte, fileSize)
	first := encodeHeader(t.o.BootID)
	copy(content, first[:])
	if err := file.rewrite(content); err != nil {
		file.Close()
		return err
	}
	t.file.Store(file)
	return old.Close()
}
