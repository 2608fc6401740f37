package act

import (
	"errors"
	"io/fs"
	"slices"
	"strings"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
)

// listProcs reads the processes to be signalled from all cgroups of the container. It
// returns a *WrongVictimError if the container must not be killed.
func (v *victim) listProcs(proc kernel.FS) (err error) {
	if v.procs, err = v.group.Procs(v.procs[:0]); err != nil {
		return err
	}
	v.check.reset(v.guard, &v.container, procfs{path: proc})
	v.procs = slices.DeleteFunc(v.procs, func(pid int) bool { return !v.check.add(pid) })
	return v.finishCheck()
}

// finishCheck evaluates the check. Another thread may have begun to kill the container.
// It sets initSeen before it signals, so initSeen is read last.
func (v *victim) finishCheck() error {
	v.check.initSeen = v.check.initAlive() || v.initSeen.Load()
	if err := v.check.err(); err != nil {
		return err
	}
	if v.check.initSeen {
		v.initSeen.Store(true)
	}
	v.hasGuarded = v.hasGuarded || len(v.check.guarded) > 0
	return nil
}

// checkProcs returns a *WrongVictimError if the container must not be killed. For a
// container with cgroups below its own, or with a large list, it looks up the cgroup of
// each guarded process: their number does not depend on the container.
func (v *victim) checkProcs(proc kernel.FS) error {
	if v.group.Leaf() && !v.slowToList || !v.verifyPaths(proc) {
		return v.listProcs(proc)
	}
	v.check.reset(v.guard, &v.container, procfs{path: proc})
	pids := []int{v.container.InitPID}
	for pid := range v.guard.Protected {
		pids = append(pids, pid)
	}
	for pid := range v.guard.Inits {
		pids = append(pids, pid)
	}
	slices.Sort(pids)
	for n, pid := range slices.Compact(pids) {
		if n%yieldEvery == 0 {
			yieldCPU()
		}
		if pid <= 0 {
			continue
		}
		inside, err := v.inContainer(proc, pid)
		if err != nil {
			return v.listProcs(proc)
		}
		if inside {
			v.check.add(pid)
		}
	}
	return v.finishCheck()
}

// verifyPaths reports whether /proc/PID/cgroup names the container's cgroup by the path
// used here, which is not so if evictd has a cgroup namespace of its own. It reads one
// process of the container.
func (v *victim) verifyPaths(proc kernel.FS) bool {
	if v.pathsMatch {
		return true
	}
	sample := 0
	err := v.group.WalkProcs(func(_ string, pids []int) (more bool, err error) {
		if len(pids) > 0 {
			sample = pids[0]
		}
		return sample == 0, nil
	})
	if err != nil || sample == 0 {
		return false
	}
	inside, err := v.inContainer(proc, sample)
	v.pathsMatch = err == nil && inside
	return v.pathsMatch
}

// inContainer reports whether /proc/PID/cgroup names the container's cgroup or one below
// it. It returns false for a process that has exited.
func (v *victim) inContainer(proc kernel.FS, pid int) (bool, error) {
	m, err := cgroup.ReadMembership(proc, pid)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	path, err := m.MemoryPath(v.hierarchy)
	if errors.Is(err, cgroup.ErrGone) {
		return false, nil
	}
	rest, found := strings.CutPrefix(path, v.container.Cgroup)
	return err == nil && found && (rest == "" || rest[0] == '/'), err
}
