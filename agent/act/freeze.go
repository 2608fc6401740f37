package act

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
)

// freezeTimeout bounds the time for which a cgroup is frozen while its processes
// are signalled: on cgroup v1 none of them exits until the thaw.
const freezeTimeout = 100 * time.Millisecond

// killFrozen signals all processes of a container that forks faster than it can be
// read. Frozen tasks do not fork, and a signalled task does not fork after the thaw
// (kernel/fork.c: copy_process). It reports false if there is no freezer, if freezing
// would stop processes outside the container, if a guarded process is in it, or if not all
// tasks froze in time.
func (v *victim) killFrozen(proc kernel.FS) (all bool, err error) {
	if own, err := v.freezeIsLocal(); err != nil || !own {
		return false, nil
	}
	if v.group.Freeze() != nil {
		return false, nil
	}
	// On cgroup v1 signalled processes exit when they are thawed. If evictd ends before
	// the thaw, the next kill of the pod thaws the cgroup (drain), or the runtime when it
	// stops the container.
	defer func() {
		thawErr := v.group.Thaw()
		if thawErr != nil && !errors.Is(thawErr, cgroup.ErrGone) && !errors.Is(thawErr, kernel.ErrUnavailable) {
			err = errors.Join(err, fmt.Errorf("thaw %s: %w", v.container.Cgroup, thawErr))
		}
	}()
	for deadline := time.Now().Add(freezeTimeout); ; time.Sleep(time.Millisecond) {
		frozen, err := v.group.AllFrozen()
		if err != nil {
			return false, nil // drain continues without the freezer
		}
		// Once all are frozen, signal every pid again: one may have been reused.
		if _, err := v.signalRound(proc, frozen); err != nil {
			return false, err
		}
		if v.hasGuarded {
			return false, nil // a guarded process must not stay frozen
		}
		if frozen || time.Now().After(deadline) {
			return frozen, nil
		}
	}
}

// freezeIsLocal reports whether freezing the container stops only processes of its
// memory cgroup. On v1 the freezer's cgroup is found by path alone and may contain
// others.
func (v *victim) freezeIsLocal() (bool, error) {
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
