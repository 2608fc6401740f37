package act

import (
	"fmt"
	"slices"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/process"
)

// WrongVictimError tells of a cgroup that must not be killed.
type WrongVictimError struct {
	Cgroup string
	PID    int
	Holds  string
	// Never tells that it holds a process that must outlive every kill, the
	// runtime's own included. Else it is another container's.
	Never bool
}

func (e *WrongVictimError) Error() string {
	return fmt.Sprintf("cgroup %s is not killed: it holds %s (pid %d)", e.Cgroup, e.Holds, e.PID)
}

// SparedError says that a process was left alone when its cgroup was killed. The
// others were signalled one by one.
type SparedError struct {
	Cgroup string
	PID    int
	Holds  string
}

func (e *SparedError) Error() string {
	return fmt.Sprintf("%s (pid %d) was moved into cgroup %s and is not signalled", e.Holds, e.PID, e.Cgroup)
}

// procfs is where the starts of processes are read: by an open directory, which takes
// no memory, or by a path.
type procfs struct {
	path kernel.FS
	dir  int
}

// startOf returns when a process began, 0 where that can't be read.
func (p procfs) startOf(pid int) uint64 {
	if p.path == "" {
		start, err := process.StartTimeAt(p.dir, pid)
		if err != nil {
			return 0
		}
		return start
	}
	stat, err := process.ReadStat(p.path, pid)
	if err != nil {
		return 0
	}
	return stat.StartTime
}

// verdict says of the processes of a container's cgroup whether it may be killed, and
// which of them are to be spared. It is collected process by process, and allocates
// only where one of them is guarded.
//
// A process that is guarded because evictd or the runtime needs it makes no cgroup
// immune into which it was moved: a privileged container could move one at any time.
// Where the container's own first process is still there, all others are signalled.
// The cgroup is refused where that is not so, and where it has pid 1 or the first
// process of another container: then it is not the container's own.
type verdict struct {
	guard *evict.Guard
	of    *evict.ContainerHandle
	proc  procfs

	// proven says that the container's first process was there before it was signalled.
	proven  bool
	hasInit bool // it is listed, by its pid
	refused bool // whatever else is there
	wrong   *WrongVictimError
	spared  []int
}

// mostSpared bounds how many guarded processes a kill leaves alone. A cgroup with more
// is refused.
const mostSpared = 64

// begin forgets the verdict before, and keeps its storage.
func (v *verdict) begin(g *evict.Guard, of *evict.ContainerHandle, proc procfs) {
	*v = verdict{guard: g, of: of, proc: proc, spared: v.spared[:0]}
}

// add takes a process of the cgroup in, and reports whether it may be signalled if the
// cgroup is not refused.
func (v *verdict) add(pid int) bool {
	if pid == v.of.InitPID {
		v.hasInit = true
	}
	what, never := v.guard.Never[pid]
	other, init := v.guard.Inits[pid]
	own := init && other == v.of.ID
	if !never && (!init || own) {
		return true
	}
	if slices.Contains(v.spared, pid) {
		return false // it is known already
	}
	if v.guard.Reused(pid, v.proc.startOf) {
		return true
	}
	if v.wrong == nil || never && !v.wrong.Never {
		if !never {
			what = "container " + other
		}
		v.wrong = &WrongVictimError{Cgroup: v.of.Cgroup, PID: pid, Holds: what, Never: never}
	}
	if pid == 1 || init || len(v.spared) == mostSpared {
		v.refused = true
		return false
	}
	v.spared = append(v.spared, pid)
	return false
}

// err returns a *WrongVictimError where the cgroup must not be killed.
func (v *verdict) err() error {
	switch {
	case v.wrong == nil:
		return nil
	case v.refused, !v.proven:
		return v.wrong
	}
	return nil
}

// initThere reports whether the container's first process is listed.
func (v *verdict) initThere() bool {
	return v.hasInit && v.of.InitStart != 0 && v.proc.startOf(v.of.InitPID) == v.of.InitStart
}

// note returns a *SparedError where the cgroup is killed but for some processes.
func (v *verdict) note() error {
	if len(v.spared) == 0 {
		return nil
	}
	return &SparedError{Cgroup: v.wrong.Cgroup, PID: v.wrong.PID, Holds: v.wrong.Holds}
}
