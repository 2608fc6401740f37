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

// maxPreopened is the number of processes, the largest ones, that a [KillHandle] has open
// for each container: those whose memory is released.
const maxPreopened = maxReleased

// procList is the cgroup.procs file of one cgroup, opened but not yet read. cgroup v1
// makes the list at the first read of an open file, and may keep it for a second after
// that (kernel/cgroup/cgroup-v1.c: cgroup_pidlist_start). Each descriptor therefore serves
// for one read of the list, and a kill opens none.
type procList struct {
	rel string // below the container's cgroup
	// firstRead and secondRead are descriptors for one read each; -1 if the cgroup is gone.
	// Only the container's own cgroup is read a second time, to recheck opened pids.
	firstRead, secondRead int
}

// located is a process, its cgroup as a path below the container's, and its size.
type located struct {
	pid  int
	rel  string
	size uint64
}

// openTasks opens pids.current of a v1 cgroup, or returns -1. It is not needed on v2,
// which generates cgroup.procs while it is read.
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

// maxListedTasks is the number of tasks above which the list of a v1 cgroup is not made on
// the thread of the fast kill: it takes more than half a microsecond per task
// (kernel/cgroup/cgroup-v1.c: pidlist_array_load).
const maxListedTasks = 4 << 10

// slowToList reports whether a v1 kernel takes long to make the list of processes.
func (m *containerFDs) slowToList() bool {
	if m.tasksFD < 0 {
		return false
	}
	var buf [32]byte
	n, err := unix.Pread(m.tasksFD, buf[:], 0)
	if err != nil {
		return false
	}
	tasks, ok := parseNumber(buf[:n])
	return ok && tasks > maxListedTasks
}

// maxWalkedCgroups bounds the cgroups of a container that are searched for its largest
// processes.
const maxWalkedCgroups = 256

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
			return nil, fmt.Errorf("open process %d: %w", p.pid, err)
		}
		opened = append(opened, pidfd{pid: p.pid, fd: fd, rel: p.rel})
	}
	return opened, nil
}

// noProcess reports whether pidfd_open(2) failed because the pid names no process. EINVAL
// and ENOENT mean that it was reused for a thread that is not the leader of its group.
func noProcess(err error) bool { return err == unix.ESRCH || err == unix.EINVAL || err == unix.ENOENT }

// largest returns the largest processes of a cgroup. It looks at a bounded number of
// processes and cgroups: among more than that, no process stands out.
func largest(proc kernel.FS, group *cgroup.Cgroup) ([]located, error) {
	var found []located
	cgroups := 0
	err := group.WalkProcs(func(rel string, pids []int) (more bool, err error) {
		for _, pid := range pids[:min(len(pids), maxSized-len(found))] {
			size, _ := process.Resident(proc, pid) // 0 if it has exited
			found = append(found, located{pid, rel, size})
		}
		cgroups++
		return len(found) < maxSized && cgroups < maxWalkedCgroups, nil
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(found, func(a, b located) int { return cmp.Or(cmp.Compare(b.size, a.size), cmp.Compare(a.pid, b.pid)) })
	return found[:min(len(found), maxPreopened)], nil
}

// openInit opens the container's init process, if it is still the recorded one.
func (m *containerFDs) openInit(proc kernel.FS) error {
	if m.InitPID == 0 || m.InitStart == 0 {
		return nil
	}
	fd, err := unix.PidfdOpen(m.InitPID, 0)
	if noProcess(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open process %d: %w", m.InitPID, err)
	}
	m.initFD = fd
	// The start time is read after the pidfd was opened, so it belongs to that process.
	if (procfs{path: proc}).startOf(m.InitPID) != m.InitStart {
		unix.Close(fd)
		m.initFD = -1
		return nil
	}
	// The init process is usually in the container's own cgroup, but systemd moves itself
	// into one below.
	if rel, ok := m.relPath(proc, m.InitPID); ok {
		m.lists = append(m.lists, procList{rel, -1, -1})
	}
	return nil
}

// relPath returns the cgroup of a process as a path below the container's. It returns false
// if the process is not below it, or if that can't be read.
func (m *containerFDs) relPath(proc kernel.FS, pid int) (rel string, ok bool) {
	of, err := cgroup.ReadMembership(proc, pid)
	if err != nil {
		return "", false
	}
	at, err := of.MemoryPath(m.hierarchy)
	if err != nil || !strings.HasPrefix(at, m.Cgroup+"/") {
		return "", false
	}
	return strings.TrimPrefix(at, m.Cgroup+"/"), true
}

// openLists opens the lists of all cgroups with a preopened process.
func (m *containerFDs) openLists() error {
	m.lists = slices.Insert(m.lists, 0, procList{".", -1, -1})
	for i := range m.preopened {
		if rel := m.preopened[i].rel; !slices.ContainsFunc(m.lists, func(l procList) bool { return l.rel == rel }) {
			m.lists = append(m.lists, procList{rel, -1, -1})
		}
	}
	for i := range m.lists {
		l := &m.lists[i]
		fds := []*int{&l.firstRead}
		if l.rel == "." {
			fds = append(fds, &l.secondRead)
		}
		for _, fd := range fds {
			opened, err := unix.Openat(m.dirFD, path.Join(l.rel, "cgroup.procs"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err == unix.ENOENT || err == unix.ENODEV {
				continue // the cgroup is gone, and so are its processes
			}
			if err != nil {
				return fmt.Errorf("open cgroup.procs of %s: %w", path.Join(m.Cgroup, l.rel), err)
			}
			*fd = opened
		}
	}
	return nil
}
