package act

import (
	"fmt"
	"slices"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/process"
)

// WrongVictimError reports a cgroup that must not be killed.
type WrongVictimError struct {
	Cgroup  string
	PID     int
	Process string
	// Essential means that the process must survive every kill, also one by the
	// runtime. Otherwise the process belongs to another container.
	Essential bool
}

func (e *WrongVictimError) Error() string {
	return fmt.Sprintf("cgroup %s not killed: it contains %s (pid %d)", e.Cgroup, e.Process, e.PID)
}

// GuardedError reports a guarded process that was not signalled when its cgroup was
// killed. The other processes were signalled one by one.
type GuardedError struct {
	Cgroup  string
	PID     int
	Process string
}

func (e *GuardedError) Error() string {
	return fmt.Sprintf("%s (pid %d) was moved into cgroup %s and was not signalled", e.Process, e.PID, e.Cgroup)
}

// procfs reads start times of processes, either by an open directory, without
// allocating, or by path.
type procfs struct {
	path kernel.FS
	dir  int
}

// startOf returns the start time of a process, or 0 if it can't be read.
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

// guardCheck checks the processes of a container's cgroup, one at a time, against the
// guard. It finds whether the cgroup may be killed and which processes are guarded. It
// allocates only if a process is guarded.
//
// A guarded process does not by itself make a cgroup immune: a privileged container can
// move any process into its cgroup. While the container's init process is alive, all
// processes but the guarded ones are signalled. A cgroup with a guarded process is refused
// if the container's init process is not alive, if the guarded process is pid 1 or the
// init process of this container or another, or if there are more than maxGuarded. An init
// process in it means that the cgroup is not this container's alone, or that the container
// is itself guarded.
type guardCheck struct {
	guard     *evict.Guard
	container *evict.RunningContainer
	proc      procfs

	// initSeen means that the container's init process was alive before it was signalled.
	// The caller sets it before err.
	initSeen bool
	hasInit  bool // the pid of the init process is listed
	refused  bool // the cgroup is refused even if initSeen
	wrong    *WrongVictimError
	guarded  []int // the guarded processes found, which are not signalled
}

// maxGuarded bounds the guarded processes that one kill leaves alive. A cgroup with
// more is refused.
const maxGuarded = 64

// reset starts a new check and keeps the storage.
func (v *guardCheck) reset(g *evict.Guard, container *evict.RunningContainer, proc procfs) {
	*v = guardCheck{guard: g, container: container, proc: proc, guarded: v.guarded[:0]}
}

// add checks one process and reports whether it may be signalled, provided that the
// cgroup is not refused.
func (v *guardCheck) add(pid int) bool {
	if pid == v.container.InitPID {
		v.hasInit = true
	}
	name, essential := v.guard.Protected[pid]
	other, init := v.guard.Inits[pid]
	own := init && other == v.container.ID
	if !essential && (!init || own) {
		return true
	}
	if slices.Contains(v.guarded, pid) {
		return false // added before
	}
	if v.guard.Reused(pid, v.proc.startOf) {
		return true
	}
	if v.wrong == nil || essential && !v.wrong.Essential {
		if !essential {
			name = "container " + other
		}
		v.wrong = &WrongVictimError{Cgroup: v.container.Cgroup, PID: pid, Process: name, Essential: essential}
	}
	if pid == 1 || init || len(v.guarded) == maxGuarded {
		v.refused = true
		return false
	}
	v.guarded = append(v.guarded, pid)
	return false
}

// err returns a *WrongVictimError if the cgroup must not be killed.
func (v *guardCheck) err() error {
	switch {
	case v.wrong == nil:
		return nil
	case v.refused, !v.initSeen:
		return v.wrong
	}
	return nil
}

// initAlive reports whether the container's init process is listed, by pid and start time.
func (v *guardCheck) initAlive() bool {
	return v.hasInit && v.container.InitStart != 0 && v.proc.startOf(v.container.InitPID) == v.container.InitStart
}

// guardedError returns a *GuardedError if processes of the cgroup are guarded.
func (v *guardCheck) guardedError() error {
	if len(v.guarded) == 0 {
		return nil
	}
	return &GuardedError{Cgroup: v.wrong.Cgroup, PID: v.wrong.PID, Process: v.wrong.Process}
}
