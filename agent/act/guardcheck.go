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

// ProtectedError reports a guarded process that was not signalled when its cgroup was
// killed. The other processes were signalled one by one.
type ProtectedError struct {
	Cgroup  string
	PID     int
	Process string
}

func (e *ProtectedError) Error() string {
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
// guard. It finds whether the cgroup may be killed and which processes are protected.
// It allocates only if a process is guarded.
//
// A guarded process does not make a cgroup immune: a privileged container can move any
// process into its cgroup. If the container's init process is still alive, all other
// processes are signalled. The cgroup is refused if it is not, and if the cgroup
// contains pid 1 or the init process of another container: then the cgroup is not the
// container's own.
type guardCheck struct {
	guard     *evict.Guard
	container *evict.RunningContainer
	proc      procfs

	// initSeen means that the container's init process was alive before it was signalled.
	initSeen  bool
	hasInit   bool // the pid of the init process is listed
	refused   bool // the cgroup is refused even if initSeen
	wrong     *WrongVictimError
	protected []int
}

// maxProtected bounds the guarded processes that one kill leaves alive. A cgroup with
// more is refused.
const maxProtected = 64

// reset starts a new check and keeps the storage.
func (v *guardCheck) reset(g *evict.Guard, container *evict.RunningContainer, proc procfs) {
	*v = guardCheck{guard: g, container: container, proc: proc, protected: v.protected[:0]}
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
	if slices.Contains(v.protected, pid) {
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
	if pid == 1 || init || len(v.protected) == maxProtected {
		v.refused = true
		return false
	}
	v.protected = append(v.protected, pid)
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

// protectedError returns a *ProtectedError if processes of the cgroup are protected.
func (v *guardCheck) protectedError() error {
	if len(v.protected) == 0 {
		return nil
	}
	return &ProtectedError{Cgroup: v.wrong.Cgroup, PID: v.wrong.PID, Process: v.wrong.Process}
}
