package act

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
)

// longestFreeze is how long a cgroup is held while it is being frozen and its
// processes are signalled: as long none of them dies.
const longestFreeze = 100 * time.Millisecond

// killFrozen signals processes of which there are new ones at each look: what is
// frozen does not fork, and what has been signalled does not fork any more once it
// is thawed (kernel/fork.c: copy_process). It reports whether all were: not where there
// is no freezer, where it would stop others too, or where somebody can't be frozen.
func (v *victim) killFrozen(proc kernel.FS) (all bool, err error) {
	if own, err := v.freezesItsOwn(); err != nil || !own {
		return false, nil
	}
	if v.group.Freeze() != nil {
		return false, nil
	}
	// Who has been signalled dies as soon as it is thawed. Should evictd end before, who
	// stops the container thaws it: the next evictd, or the runtime.
	defer func() {
		thawed := v.group.Thaw()
		if thawed != nil && !errors.Is(thawed, cgroup.ErrGone) && !errors.Is(thawed, kernel.ErrUnavailable) {
			err = errors.Join(err, fmt.Errorf("thaw %s: %w", v.container.Cgroup, thawed))
		}
	}()
	for deadline := time.Now().Add(longestFreeze); ; time.Sleep(time.Millisecond) {
		frozen, err := v.group.AllFrozen()
		if err != nil {
			return false, nil // the rounds of drain go on
		}
		// Of those that are frozen one may have the pid of another that was signalled.
		if _, err := v.round(proc, frozen); err != nil {
			return false, err
		}
		if v.sparing {
			return false, nil // a process that is left alone must not be stopped either
		}
		if frozen || time.Now().After(deadline) {
			return frozen, nil
		}
	}
}

// freezesItsOwn reports whether freezing the container would stop nobody but those
// who are in its memory cgroup: the freezer's cgroup is known by its path alone.
func (v *victim) freezesItsOwn() (bool, error) {
	before, err := v.group.FreezerProcs(nil)
	if err != nil {
		return false, err
	}
	if v.procs, err = v.group.Procs(v.procs[:0]); err != nil {
		return false, err
	}
	after, err := v.group.FreezerProcs(nil)
	if err != nil {
		return false, err
	}
	for _, pid := range before {
		_, own := slices.BinarySearch(v.procs, pid)
		if _, still := slices.BinarySearch(after, pid); still && !own {
			return false, nil
		}
	}
	return true, nil
}
