package podfence

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
)

var (
	// ErrPartial means that a fence is set, but not all limits could be written. Check
	// writes the others.
	ErrPartial = errors.New("fence is set in part")
	// ErrBusy means that another thread is setting or lifting the fence.
	ErrBusy = errors.New("fence is being set or lifted")
)

// The states of a Fence. Set changes idle and liftFailed to setting, and that to set or
// idle. All other changes are made with the mutex of the Table locked.
const (
	idle       int32 = iota // not set, no mark
	setting                 // Set has the fields
	set                     // marked
	lifting                 // Lift has the fields
	liftFailed              // marked; not all limits were restored
	closed
)

// Fence is the prepared fence of one pod.
type Fence struct {
	table *Table
	refs  int // by Prepare; protected by the table's mutex
	state atomic.Int32

	// Used by Set in the state setting, and with the table's mutex in the others. uid, path
	// and id of mark never change.
	limits  *cgroup.Limits
	mark    mark
	record  record // of the mark
	slot    int    // of the record in the file; -1 for none
	written [cgroup.LimitFiles]bool
}

// UID returns the pod's UID.
func (f *Fence) UID() string { return f.mark.uid }

// Path returns the pod's cgroup, as a path below the root of its hierarchy.
func (f *Fence) Path() string { return f.mark.path }

// Set marks the fence with the ID of an order, of at most 64 bytes, and a note about it, of at
// most [MaxNote], and sets the limits of the pod's cgroup to 0. It fails with [cgroup.ErrGone] if the
// cgroup was removed, with [ErrFull], and if the mark can't be written: then there is no fence. It
// returns [ErrPartial] if one of the limits could not be written. If the fence is set, it takes the
// mutex of the Table, sets the limits that are not 0, as after SetForking, and changes the mark if the
// note is about another order.
func (f *Fence) Set(order, note string) error { return f.begin(order, note, false) }

// SetForking is Set, except that the pod's processes can fork: only cgroup.max.descendants is
// set, so that no container starts. A fence of Set stays one. SetForking fails with
// [kernel.ErrUnavailable] on v1.
func (f *Fence) SetForking(order, note string) error { return f.begin(order, note, true) }

func (f *Fence) begin(order, note string, forks bool) error {
	if len(order) > maxOrder || len(note) > MaxNote {
		return fmt.Errorf("fence pod %s: order ID of %d bytes and note of %d; at most %d and %d can be marked", f.mark.uid, len(order), len(note), maxOrder, MaxNote)
	}
	before := idle
	if !f.state.CompareAndSwap(idle, setting) {
		if before = liftFailed; !f.state.CompareAndSwap(liftFailed, setting) {
			return f.notIdle(order, note, forks)
		}
	}
	marked, err := f.set(order, note, forks)
	after := before
	if marked {
		after = set
		if before == idle {
			f.table.sets.Add(1)
		}
	} else if before == idle && f.slot >= 0 {
		// The error that prevented the fence is the one to report. A mark that stays in the file is
		// that of a cgroup that is gone, or the file can't be written.
		_ = f.table.write(f.slot, &record{})
		f.table.used[f.slot].Store(false)
		f.slot = -1
	}
	f.state.Store(after)
	if err != nil {
		return fmt.Errorf("fence pod %s: %w", f.mark.uid, err)
	}
	return nil
}

// notIdle returns why Set can't set the fence; nil if it is set.
func (f *Fence) notIdle(order, note string, forks bool) error {
	err := ErrBusy
	switch state := f.state.Load(); {
	case state == set:
		if err = f.change(order, note, forks); err == nil {
			return nil
		}
	case state == closed:
		err = os.ErrClosed
	}
	return fmt.Errorf("fence pod %s: %w", f.mark.uid, err)
}

// change marks a fence that is set with another order, and sets the limits that are not 0: those
// that SetForking did not set, unless the processes are to fork, that Set could not write, or that
// others wrote. Without it, a second Set would return nil for a fence that is set in part.
func (f *Fence) change(order, note string, forks bool) (err error) {
	f.table.mu.Lock()
	defer f.table.mu.Unlock()
	if f.state.Load() != set {
		return ErrBusy // it was lifted meanwhile
	}
	another := note != "" && order != f.mark.order
	complete := f.mark.forks && !forks
	if another || note != "" && complete {
		f.mark.order, f.mark.note = order, note
	}
	f.mark.forks = f.mark.forks && forks
	if another || complete {
		err = f.writeMark()
	}
	limits := f.retry(func() error { return f.checkLimits(&Report{}) })
	if !errors.Is(limits, cgroup.ErrGone) { // else Check ends the fence
		err = errors.Join(err, limits)
	}
	if err != nil {
		err = fmt.Errorf("%w: %v", ErrPartial, err) // not wrapped, as in set
	}
	return err
}

// sets reports whether the fence sets a limit file that its cgroup has.
func (f *Fence) sets(file cgroup.LimitFile) bool { return file != cgroup.PIDsMax || !f.mark.forks }

// set reads the limits again, marks the fence and writes the limits. marked is false if no
// limit was written.
func (f *Fence) set(order, note string, forks bool) (marked bool, err error) {
	if forks && !f.mark.has[cgroup.MaxDescendants] {
		return false, fmt.Errorf("%w: without pids.max there is no fence on cgroup v1", kernel.ErrUnavailable)
	}
	f.readOld()
	if f.slot < 0 {
		slot, ok := f.table.claim()
		if !ok {
			return false, ErrFull
		}
		f.slot = slot
	}
	f.mark.order, f.mark.note, f.mark.forks = order, note, forks
	if err := f.writeMark(); err != nil {
		return false, err
	}
	var failed error
	for file := range cgroup.LimitFiles {
		if !f.mark.has[file] || !f.sets(file) {
			continue
		}
		if err := f.limits.Write(file, 0); err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		f.written[file] = true
		marked = true
	}
	if marked && failed != nil {
		// Not wrapped: if a controller was disabled, its file is gone and the cgroup is not.
		failed = fmt.Errorf("%w: %v", ErrPartial, failed)
	}
	return marked, failed
}

// readOld reads the limits again, which may have changed since Prepare. One that can't be
// read keeps its value. If a fence could not be lifted, a limit that is still 0 is its own.
func (f *Fence) readOld() {
	for file := range cgroup.LimitFiles {
		if !f.mark.has[file] {
			continue
		}
		if limit, err := f.limits.Read(file); err == nil && (limit != 0 || f.slot < 0) {
			f.mark.old[file] = limit
		}
	}
}

func (f *Fence) writeMark() error {
	f.record.encode(&f.mark, f.table.seed)
	return f.table.write(f.slot, &f.record)
}

// Disown removes an order from the mark of a fence that is set and stays: the next evictd does not
// go on with that order. It does nothing for a fence that is not set, or has another order.
func (f *Fence) Disown(order string) error {
	f.table.mu.Lock()
	defer f.table.mu.Unlock()
	if f.state.Load() != set || f.mark.order != order {
		return nil
	}
	return f.disown()
}

// disown removes the order from the mark. The table's mutex is locked. If the mark can't be written,
// Check writes it.
func (f *Fence) disown() error {
	f.mark.order, f.mark.note = "", ""
	return f.writeMark()
}

// Lift restores the limits that the fence replaced, or those that others have written
// since, and clears the mark. A removed cgroup needs nothing, nor does a fence that is not
// set. If Lift fails, the mark stays, without the order, and [Table.Check] tries again.
func (f *Fence) Lift() error {
	f.table.mu.Lock()
	defer f.table.mu.Unlock()
	_, err := f.lift()
	return err
}

// LiftAgain lifts a fence that Lift could not lift, unless it was set again since.
func (f *Fence) LiftAgain() error {
	f.table.mu.Lock()
	defer f.table.mu.Unlock()
	if f.state.CompareAndSwap(liftFailed, lifting) {
		return f.lifted()
	}
	return f.notLifted()
}

// IsSet reports whether the fence is set. One that Lift could not lift is not.
func (f *Fence) IsSet() bool { return f.state.Load() == set }

// lift reports whether the fence was set. The table's mutex is locked.
func (f *Fence) lift() (wasSet bool, err error) {
	if !f.state.CompareAndSwap(set, lifting) && !f.state.CompareAndSwap(liftFailed, lifting) {
		return false, f.notLifted()
	}
	return true, f.lifted()
}

// notLifted returns why a fence can't be lifted now; nil if that is not needed.
func (f *Fence) notLifted() (err error) {
	switch state := f.state.Load(); {
	case state == setting:
		err = ErrBusy
	case state == closed && f.slot >= 0:
		err = os.ErrClosed
	default:
		return nil
	}
	return fmt.Errorf("lift fence of pod %s: %w", f.mark.uid, err)
}

// lifted lifts a fence in the state lifting.
func (f *Fence) lifted() error {
	err := f.retry(f.restore)
	if err != nil && !errors.Is(err, cgroup.ErrGone) {
		err = errors.Join(err, f.disown())
		f.state.Store(liftFailed)
		return fmt.Errorf("lift fence of pod %s: %w", f.mark.uid, err)
	}
	return f.end()
}

// end clears the mark of a fence that is lifted or whose cgroup is gone. If that fails, Check tries
// again: the next evictd would take the mark for a fence that is set.
func (f *Fence) end() error {
	if err := f.table.write(f.slot, &record{}); err != nil {
		f.state.Store(liftFailed)
		return fmt.Errorf("end fence of pod %s: %w", f.mark.uid, err)
	}
	f.table.used[f.slot].Store(false)
	f.table.sets.Add(-1)
	f.slot, f.written = -1, [cgroup.LimitFiles]bool{}
	f.state.Store(idle)
	f.closeUnused()
	return nil
}

// retry calls op, and once more with limits opened again if a file was removed. It fails with
// ErrGone only if the cgroup was removed.
func (f *Fence) retry(op func() error) error {
	err := op()
	if !errors.Is(err, cgroup.ErrGone) {
		return err
	}
	if err := f.reopen(); err != nil {
		return err
	}
	if err = op(); errors.Is(err, cgroup.ErrGone) {
		err = errors.New(err.Error())
	}
	return err
}

// reopen opens the limits again after a file of them was removed. It fails with ErrGone if
// the cgroup was, too. Otherwise its controller was disabled: enabled again, it has other
// files and limits (kernel/cgroup/cgroup.c: css_clear_dir).
func (f *Fence) reopen() error {
	limits, err := f.table.o.Hierarchy.OpenLimits(f.mark.path)
	if err != nil {
		return err
	}
	if limits.ID() != f.mark.id {
		limits.Close()
		return fmt.Errorf("%w: %s is another cgroup now", cgroup.ErrGone, f.mark.path)
	}
	f.limits.Close()
	f.limits = limits
	return nil
}

// restore writes the old limits where the limit is 0. Another value was written by others
// later, so it stays.
func (f *Fence) restore() error {
	var errs []error
	for file := range cgroup.LimitFiles {
		if !f.mark.has[file] || !f.sets(file) || !f.limits.Has(file) {
			continue
		}
		limit, err := f.limits.Read(file)
		if err == nil && limit == 0 && f.mark.old[file] != 0 {
			err = f.limits.Write(file, f.mark.old[file])
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Close releases the descriptors, once for each Prepare. A fence that is set keeps them
// until it is lifted or the cgroup is removed.
func (f *Fence) Close() {
	f.table.mu.Lock()
	defer f.table.mu.Unlock()
	f.refs--
	f.closeUnused()
}

// closeUnused closes a fence that is not set and that no caller of Prepare has open. The
// table's mutex is locked.
func (f *Fence) closeUnused() {
	if f.refs <= 0 && f.state.CompareAndSwap(idle, closed) {
		f.limits.Close()
		delete(f.table.fences, f.mark.id)
	}
}
