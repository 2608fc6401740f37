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

// place is where a container or a sandbox lives in the tree that carries
// memory, as far as it could be found out. It does not know of the others.
type place struct {
	id   string
	pid  int    // of its first process; 0 is not known
	path string // "" is not known
	// group is the cgroup of the path; nil where it can't be opened, and for a
	// sandbox.
	group *cgroup.Cgroup
	// mine tells that the cgroup holds the container's first process or, where
	// that is not known, is named after the container, so that what is read there
	// is the container's if nobody else is in it.
	mine bool
	// unproven says why the cgroup can't be taken for the container's; "" where
	// all that can be said without looking at the others speaks for it.
	unproven string
	// parent is the parent of the first process, a shim or a monitor, and start
	// when the first process began, in clock ticks since boot; 0 is not known.
	parent             int
	start, parentStart uint64
	// holds is the guarded process that the cgroup was found to hold, where that
	// belongs there. One that was moved into it is spared when the container is killed.
	holds string
	// gone tells that the cgroup was there once and is not any more.
	gone bool
}

// placeContainer finds out where a container lives. before is what was found
// the last time, nil for the first; never has the processes that are not killed.
func (i *Inventory) placeContainer(c *Container, before *place, never *evict.Guard) *place {
	p := &place{id: c.ID, pid: c.PID}
	if c.Err != nil {
		p.unproven = fmt.Sprintf("its status is not known: %v", c.Err)
	}
	switch told, _, err := cri.CgroupPath(c.CgroupsPath); {
	case err == nil:
		p.path = told
		if !namedAfter(told, c) {
			p.unproven = fmt.Sprintf("cgroup %s is not named after the container", told)
		}
	case c.CgroupsPath != "" && p.unproven == "":
		p.unproven = err.Error()
	case p.unproven == "":
		p.unproven = "the runtime names no cgroup"
	}
	if p.path == "" {
		p.path = i.pathOf(c)
	}
	if p.path == "" {
		return p
	}
	var err error
	if p.group, err = i.groups.get(p.path); err != nil {
		p.gone = before != nil && (before.gone || before.group != nil) && errors.Is(err, cgroup.ErrGone)
		p.unproven = err.Error()
		return p
	}
	if before != nil && before.unproven == "" && before.group == p.group && before.pid == p.pid && p.unproven == "" {
		return before
	}
	p.mine = namedAfter(p.path, c)
	i.prove(p, never)
	return p
}

// namedAfter reports whether a cgroup has the name that every runtime gives to
// a container's own: the ID, by itself or in a scope's name.
func namedAfter(cgroupPath string, c *Container) bool {
	return strings.Contains(path.Base(cgroupPath), c.ID)
}

// pathOf returns where a container's first process is, for a runtime that
// names no cgroup: the cgroup on the way there that is named after the
// container.
func (i *Inventory) pathOf(c *Container) string {
	if c.PID == 0 {
		return ""
	}
	m, err := cgroup.Of(i.procfs, c.PID)
	if err != nil {
		return ""
	}
	at, err := m.Memory(i.hierarchy)
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

// prove looks whether the container's first process is in the cgroup, and what
// else must not be. It reads the list of the tree that would be killed, which
// does not depend on the namespace that evictd is in, as /proc/PID/cgroup does.
func (i *Inventory) prove(p *place, never *evict.Guard) {
	pids, err := p.group.Procs(nil)
	if err != nil {
		if p.unproven == "" {
			p.unproven = err.Error()
		}
		return
	}
	why := i.proveInit(p, pids)
	for _, pid := range pids {
		if what := never.Never[pid]; what != "" && !never.Reused(pid, i.startOf) && (why != "" || pid == 1 || i.descends(pid, p.pid)) {
			p.holds = what
		}
	}
	if p.unproven == "" {
		p.unproven = why
	}
	if p.holds != "" && p.unproven == "" {
		p.unproven = fmt.Sprintf("cgroup %s holds %s", p.path, p.holds)
	}
}

// mostAncestors bounds how far up the parents of a process are followed.
const mostAncestors = 64

// descends reports whether a process is a container's first one or was started below
// it: then it belongs to the container, like evictd in its own pod. One that was
// moved into the container's cgroup from elsewhere has other ancestors, and a process
// can't be given others of its choice. What can't be read descends.
func (i *Inventory) descends(pid, init int) bool {
	for range mostAncestors {
		if pid == init {
			return true
		}
		if pid <= 1 {
			return false
		}
		stat, err := process.ReadStat(i.procfs, pid)
		if err != nil {
			return true
		}
		pid = stat.PPID
	}
	return true
}

// proveInit looks for the container's first process among those of the cgroup
// and notes its start and its parent. It returns what speaks against it.
func (i *Inventory) proveInit(p *place, pids []int) string {
	if p.pid == 0 {
		return "the runtime tells no process of it"
	}
	if _, in := slices.BinarySearch(pids, p.pid); !in {
		// A virtual machine's process, or a sandbox's that runs the container
		// too, lives elsewhere, and so does the memory.
		p.mine = false
		return fmt.Sprintf("its first process, %d, is not in cgroup %s", p.pid, p.path)
	}
	p.mine = true
	stat, err := process.ReadStat(i.procfs, p.pid)
	if err != nil {
		return err.Error()
	}
	p.parent, p.start, p.parentStart = stat.PPID, stat.StartTime, i.startOf(stat.PPID)
	if _, in := slices.BinarySearch(pids, p.parent); in && !i.isShim(p.parent) {
		return fmt.Sprintf("cgroup %s holds the parent of its first process, %d", p.path, p.parent)
	}
	return ""
}

// isShim reports whether the parent of a container's first process has the place of a
// shim among the processes: directly below pid 1, to which it is handed, or below a
// runtime. A process of the container itself, whose child the runtime names by
// mistake, is below the container's shim.
func (i *Inventory) isShim(pid int) bool {
	stat, err := process.ReadStat(i.procfs, pid)
	return err == nil && (stat.PPID == 1 || i.runtime != nil && i.runtime.list.PID > 1 && i.runtime.list.PID == stat.PPID)
}

// placeSandbox finds out where a sandbox's own process lives.
func (i *Inventory) placeSandbox(s *Sandbox) *place {
	p := &place{id: s.ID, pid: s.PID}
	if p.pid != 0 {
		p.start = i.startOf(p.pid)
	}
	if told, _, err := cri.CgroupPath(s.CgroupsPath); err == nil {
		p.path = told
	}
	return p
}

// crowd counts who lives at or below each path.
type crowd map[string][]*place

func (c crowd) add(p *place) {
	for at := p.path; at != "" && at != "/"; at = path.Dir(at) {
		c[at] = append(c[at], p)
	}
}

// beside returns another that lives at or below p's path, nil where none does.
func (c crowd) beside(p *place) *place {
	for _, other := range c[p.path] {
		if other != p {
			return other
		}
	}
	return nil
}
