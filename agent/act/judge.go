package act

import (
	"errors"
	"io/fs"
	"slices"
	"strings"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
)

// list reads the processes that are to be signalled, of all cgroups of the container,
// and returns a *WrongVictimError where it must not be killed.
func (v *victim) list(proc kernel.FS) (err error) {
	if v.procs, err = v.group.Procs(v.procs[:0]); err != nil {
		return err
	}
	v.verdict.begin(v.guard, &v.container, procfs{path: proc})
	v.procs = slices.DeleteFunc(v.procs, func(pid int) bool { return !v.verdict.add(pid) })
	return v.judged()
}

// judged draws the conclusions of a verdict. Another thread may have begun to kill the
// container: it notes first that the first process is there, and so that is asked last.
func (v *victim) judged() error {
	v.verdict.proven = v.verdict.initThere() || v.proven.Load()
	if err := v.verdict.err(); err != nil {
		return err
	}
	if v.verdict.proven {
		v.proven.Store(true)
	}
	v.sparing = v.sparing || len(v.verdict.spared) > 0
	return nil
}

// judge returns a *WrongVictimError where the container must not be killed. A container
// may have thousands of processes, and of cgroups below its own, and so it is the guarded processes that
// are asked where they are: their number does not depend on the container.
func (v *victim) judge(proc kernel.FS) error {
	if v.group.Leaf() && !v.large || !v.maps(proc) {
		return v.list(proc)
	}
	v.verdict.begin(v.guard, &v.container, procfs{path: proc})
	pids := []int{v.container.InitPID}
	for pid := range v.guard.Never {
		pids = append(pids, pid)
	}
	for pid := range v.guard.Inits {
		pids = append(pids, pid)
	}
	slices.Sort(pids)
	for n, pid := range slices.Compact(pids) {
		if n%restEvery == 0 {
			rest()
		}
		if pid <= 0 {
			continue
		}
		inside, err := v.within(proc, pid)
		if err != nil {
			return v.list(proc)
		}
		if inside {
			v.verdict.add(pid)
		}
	}
	return v.judged()
}

// maps reports whether /proc/PID/cgroup names the container's cgroups by the same paths
// as the tree: not where evictd is in a cgroup namespace of its own. It looks at one
// process of the container.
func (v *victim) maps(proc kernel.FS) bool {
	if v.mapped {
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
	inside, err := v.within(proc, sample)
	v.mapped = err == nil && inside
	return v.mapped
}

// within reports whether a process says of itself that it is in the container's cgroup
// or below it. One that has ended is not.
func (v *victim) within(proc kernel.FS, pid int) (bool, error) {
	m, err := cgroup.Of(proc, pid)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	path, err := m.Memory(v.hierarchy)
	if errors.Is(err, cgroup.ErrGone) {
		return false, nil
	}
	rest, found := strings.CutPrefix(path, v.container.Cgroup)
	return err == nil && found && (rest == "" || rest[0] == '/'), err
}
