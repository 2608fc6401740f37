package pods

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/cri"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/process"
)

// location is where a container or a sandbox is in the memory cgroup tree, as far as that
// could be determined without the other containers.
type location struct {
	id   string
	pid  int    // of its first process; 0 if not known
	path string // "" if not known
	// cgroup is opened from path; nil if it can't be opened, and for a sandbox.
	cgroup *cgroup.Cgroup
	// measurable reports that the cgroup contains the container's first process or, if that
	// is not known, is named after the container. What is read there is then the container's
	// usage if no other container is in it.
	measurable bool
	// unproven is why the cgroup is not proven to be the container's; "" if it is, as far as
	// can be decided without the other containers.
	unproven string
	// parent is the parent of the first process, a shim or conmon, and start when the first
	// process began, in clock ticks since boot; 0 if not known.
	parent             int
	start, parentStart uint64
	// essential is the essential process in the cgroup that belongs to the container. One that
	// was moved into the cgroup is not killed with the container.
	essential string
	// ended reports that the first process has ended, which the runtime has not noticed yet.
	ended bool
	// gone reports that the cgroup existed and was removed.
	gone bool
}

// locateContainer determines where a container is. sandbox is where that of its pod is; before is
// the previous result, nil for none; guard has the processes that are not killed.
func (inv *Inventory) locateContainer(c *Container, sandbox, before *location, guard *evict.Guard) *location {
	loc := &location{id: c.ID, pid: c.PID}
	if c.Err != nil {
		loc.unproven = fmt.Sprintf("its status is not known: %v", c.Err)
	}
	switch cgroupPath, _, err := cri.CgroupPath(c.CgroupsPath); {
	case err == nil:
		loc.path = cgroupPath
		if !namedAfter(cgroupPath, c) {
			loc.unproven = fmt.Sprintf("cgroup %s is not named after the container", cgroupPath)
		}
	case c.CgroupsPath != "" && loc.unproven == "":
		loc.unproven = err.Error()
	case loc.unproven == "":
		loc.unproven = "the runtime names no cgroup"
	}
	if loc.path == "" {
		loc.path = inv.pathOf(c)
	}
	if loc.path == "" {
		return loc
	}
	var err error
	if loc.cgroup, err = inv.cgroups.get(loc.path); err != nil {
		existed := before != nil && (before.gone || before.cgroup != nil) || inv.endedUnnoticed(loc.pid, sandbox)
		loc.gone = existed && errors.Is(err, cgroup.ErrGone)
		loc.unproven = err.Error()
		return loc
	}
	if before != nil && before.unproven == "" && before.cgroup == loc.cgroup && before.pid == loc.pid && loc.unproven == "" {
		return before
	}
	loc.measurable = namedAfter(loc.path, c)
	inv.prove(loc, sandbox, guard)
	return loc
}

// namedAfter reports whether a cgroup has the name that runtimes give to a container's: the
// ID, alone or in the name of a scope.
func namedAfter(cgroupPath string, c *Container) bool {
	return strings.Contains(path.Base(cgroupPath), c.ID)
}

// pathOf returns the cgroup of a container whose runtime names none: the cgroup of its first
// process or the ancestor of that which is named after the container.
func (inv *Inventory) pathOf(c *Container) string {
	if c.PID == 0 {
		return ""
	}
	m, err := cgroup.ReadMembership(inv.procfs, c.PID)
	if err != nil {
		return ""
	}
	at, err := m.MemoryPath(inv.hierarchy)
	if err != nil {
		return ""
	}
	for at != "/" {
		if namedAfter(at, c) {
			return at
		}
		at = path.Dir(at)
	}
	return ""
}

// prove checks that the cgroup contains the container's first process, and no essential process
// of the container. It reads cgroup.procs of the tree that would be killed, which unlike
// /proc/PID/cgroup does not depend on evictd's cgroup namespace.
func (inv *Inventory) prove(loc, sandbox *location, guard *evict.Guard) {
	pids, err := loc.cgroup.Procs(nil)
	if err != nil {
		if loc.unproven == "" {
			loc.unproven = err.Error()
		}
		return
	}
	reason := inv.proveInit(loc, sandbox, pids)
	for _, pid := range pids {
		if what := guard.Protected[pid]; what != "" && !guard.Reused(pid, inv.startOf) && (reason != "" || loc.ended || pid == 1 || inv.startedBelow(pid, loc.pid)) {
			loc.essential = what
		}
	}
	if loc.unproven == "" {
		loc.unproven = reason
	}
	if loc.essential != "" && loc.unproven == "" {
		loc.unproven = fmt.Sprintf("cgroup %s contains %s", loc.path, loc.essential)
	}
}

// maxAncestors bounds how many ancestors of a process are read.
const maxAncestors = 64

// startedBelow reports whether a process is a container's first process or a descendant of
// it: it then belongs to the container, like evictd in its own pod. A process that was moved
// into the cgroup has other ancestors, and can't choose them. It returns true if an
// ancestor can't be read.
func (inv *Inventory) startedBelow(pid, init int) bool {
	for range maxAncestors {
		if pid == init {
			return true
		}
		if pid <= 1 {
			return false
		}
		stat, err := process.ReadStat(inv.procfs, pid)
		if err != nil {
			return true
		}
		pid = stat.PPID
	}
	return true
}

// proveInit looks for the container's first process among those of the cgroup, and sets its
// start and parent. It returns why the cgroup is not proven.
func (inv *Inventory) proveInit(loc, sandbox *location, pids []int) string {
	if loc.pid == 0 {
		return "the runtime reports no pid"
	}
	if _, in := slices.BinarySearch(pids, loc.pid); !in {
		if loc.ended = inv.endedUnnoticed(loc.pid, sandbox); loc.ended {
			return "" // it does not run in another cgroup
		}
		// The process of a virtual machine, or of a sandbox that runs the container,
		// is in another cgroup, and so is the memory.
		loc.measurable = false
		return fmt.Sprintf("its first process, %d, is not in cgroup %s", loc.pid, loc.path)
	}
	loc.measurable = true
	stat, err := process.ReadStat(inv.procfs, loc.pid)
	if err != nil {
		return err.Error()
	}
	loc.parent, loc.start, loc.parentStart = stat.PPID, stat.StartTime, inv.startOf(stat.PPID)
	if _, in := slices.BinarySearch(pids, loc.parent); in && !inv.isShim(loc.parent) {
		return fmt.Sprintf("cgroup %s contains the parent of its first process, %d", loc.path, loc.parent)
	}
	return ""
}

// endedUnnoticed reports whether the first process of a running container has ended, which the
// runtime has not noticed yet: there is none with its pid, or only its zombie.
func (inv *Inventory) endedUnnoticed(pid int, sandbox *location) bool {
	if pid == 0 {
		return false
	}
	stat, err := process.ReadStat(inv.procfs, pid)
	ended := errors.Is(err, process.ErrGone) || err == nil && stat.State == 'Z' && stat.Threads <= 1
	return ended && inv.inOwnCgroup(sandbox)
}

// inOwnCgroup reports whether a sandbox's first process is in the cgroup that the runtime names: the
// pod is then no virtual machine, and the runtime's pids are those of evictd's procfs.
func (inv *Inventory) inOwnCgroup(sandbox *location) bool {
	if sandbox.path == "" || sandbox.pid == 0 {
		return false
	}
	group, err := inv.cgroups.get(sandbox.path)
	if err != nil {
		return false
	}
	pids, err := group.Procs(nil)
	_, in := slices.BinarySearch(pids, sandbox.pid)
	return err == nil && in
}

// isShim reports whether the parent of a container's first process is a shim by its position:
// a child of pid 1, to which it was reparented, or of the runtime. If the runtime reports a
// child of the first process by mistake, the parent is a child of the shim.
func (inv *Inventory) isShim(pid int) bool {
	stat, err := process.ReadStat(inv.procfs, pid)
	return err == nil && (stat.PPID == 1 || inv.runtime != nil && inv.runtime.list.PID > 1 && inv.runtime.list.PID == stat.PPID)
}

// locateSandbox determines where a sandbox's own process is.
func (inv *Inventory) locateSandbox(s *Sandbox) *location {
	loc := &location{id: s.ID, pid: s.PID}
	if loc.pid != 0 {
		loc.start = inv.startOf(loc.pid)
	}
	if cgroupPath, _, err := cri.CgroupPath(s.CgroupsPath); err == nil {
		loc.path = cgroupPath
	}
	return loc
}

// cgroupIndex has the locations at or below each path.
type cgroupIndex map[string][]*location

func (c cgroupIndex) add(loc *location) {
	for at := loc.path; at != "" && at != "/"; at = path.Dir(at) {
		c[at] = append(c[at], loc)
	}
}

// other returns another location at or below the path of loc; nil if there is none.
func (c cgroupIndex) other(loc *location) *location {
	for _, other := range c[loc.path] {
		if other != loc {
			return other
		}
	}
	return nil
}
