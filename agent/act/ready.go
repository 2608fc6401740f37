package act

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/process"
)

// procList is the list of processes of one cgroup, opened but never read: cgroup v1 makes
// the list at the first reading of an open file, and may keep it for a second after that
// (kernel/cgroup/cgroup-v1.c: cgroup_pidlist_start). So each descriptor serves for one
// reading, and a strike needs no new one. It is -1 where there is none.
type procList struct {
	rel           string // below the container's cgroup
	first, second int
}

// located is a process and the cgroup that lists it, by its path below the container's.
type located struct {
	pid  int
	rel  string
	size uint64
}

// openTasks opens the number of tasks of a v1 cgroup, by its path in the tree of that
// controller; -1 where there is none. v2 needs none: it makes a list as it is read.
func openTasks(h *cgroup.Hierarchy, at string) int {
	if h.Pids == "" {
		return -1
	}
	fd, err := unix.Open(h.Pids.Path(at, "pids.current"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	return fd
}

// mostTasks is with how many tasks a v1 cgroup is too large for its list to be made on
// the thread of a strike: that takes more than half a microsecond for each
// (kernel/cgroup/cgroup-v1.c: pidlist_array_load).
const mostTasks = 4 << 10

// large reports whether making the list of processes takes long.
func (m *member) large() bool {
	if m.tasks < 0 {
		return false
	}
	var buf [32]byte
	n, err := unix.Pread(m.tasks, buf[:], 0)
	if err != nil {
		return false
	}
	tasks, ok := number(buf[:n])
	return ok && tasks > mostTasks
}

// mostWalked bounds how many cgroups of a container are looked into for its largest
// processes.
const mostWalked = 256

// openLargest opens the largest processes of a cgroup, the largest first.
func openLargest(proc kernel.FS, group *cgroup.Cgroup) ([]pidfd, error) {
	processes, err := largest(proc, group)
	if err != nil {
		return nil, err
	}
	var opened []pidfd
	for _, p := range processes {
		fd, err := unix.PidfdOpen(p.pid, 0)
		if noProcess(err) {
			continue
		}
		if err != nil {
			closeAll(opened)
			return nil, fmt.Errorf("hold process %d: %w", p.pid, err)
		}
		opened = append(opened, pidfd{pid: p.pid, fd: fd, rel: p.rel})
	}
	return opened, nil
}

// noProcess reports whether pidfd_open(2) failed because a pid names no process any
// more, or a thread that is not the first of its process: pids are used again.
func noProcess(err error) bool { return err == unix.ESRCH || err == unix.EINVAL || err == unix.ENOENT }

// largest returns the largest processes of a cgroup. Of many processes, and many cgroups
// below it, only the first are looked at: where there are that many none stands out.
func largest(proc kernel.FS, group *cgroup.Cgroup) ([]located, error) {
	var found []located
	cgroups := 0
	err := group.WalkProcs(func(rel string, pids []int) (more bool, err error) {
		for _, pid := range pids[:min(len(pids), mostSized-len(found))] {
			size, _ := process.Resident(proc, pid) // gone meanwhile: 0
			found = append(found, located{pid, rel, size})
		}
		cgroups++
		return len(found) < mostSized && cgroups < mostWalked, nil
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(found, func(a, b located) int { return cmp.Or(cmp.Compare(b.size, a.size), cmp.Compare(a.pid, b.pid)) })
	return found[:min(len(found), reaped)], nil
}

// openInit opens the container's first process, if that is still the one that is meant.
func (m *member) openInit(proc kernel.FS) error {
	if m.InitPID == 0 || m.InitStart == 0 {
		return nil
	}
	fd, err := unix.PidfdOpen(m.InitPID, 0)
	if err == unix.ESRCH {
		return nil
	}
	if err != nil {
		return fmt.Errorf("hold process %d: %w", m.InitPID, err)
	}
	m.init = fd
	// What is held does not change any more, and its start is read after that.
	if (procfs{path: proc}).startOf(m.InitPID) != m.InitStart {
		unix.Close(fd)
		m.init = -1
		return nil
	}
	// It is mostly in the container's own cgroup, but systemd moves itself below that.
	if rel, ok := m.relative(proc, m.InitPID); ok {
		m.lists = append(m.lists, procList{rel, -1, -1})
	}
	return nil
}

// relative returns in which of the container's cgroups a process is, by the path below
// the container's; false where that can't be told.
func (m *member) relative(proc kernel.FS, pid int) (rel string, ok bool) {
	of, err := cgroup.Of(proc, pid)
	if err != nil {
		return "", false
	}
	at, err := of.Memory(m.hierarchy)
	if err != nil || !strings.HasPrefix(at, m.Cgroup+"/") {
		return "", false
	}
	return strings.TrimPrefix(at, m.Cgroup+"/"), true
}

// openLists opens the lists in which the processes are that are held.
func (m *member) openLists() error {
	m.lists = slices.Insert(m.lists, 0, procList{".", -1, -1})
	for i := range m.ready {
		if rel := m.ready[i].rel; !slices.ContainsFunc(m.lists, func(l procList) bool { return l.rel == rel }) {
			m.lists = append(m.lists, procList{rel, -1, -1})
		}
	}
	for i := range m.lists {
		l := &m.lists[i]
		fds := []*int{&l.first}
		if l.rel == "." {
			fds = append(fds, &l.second)
		}
		for _, fd := range fds {
			opened, err := unix.Openat(m.dir, path.Join(l.rel, "cgroup.procs"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err == unix.ENOENT || err == unix.ENODEV {
				continue // it is gone, and so are its processes
			}
			if err != nil {
				return fmt.Errorf("open the processes of cgroup %s: %w", path.Join(m.Cgroup, l.rel), err)
			}
			*fd = opened
		}
	}
	return nil
}
