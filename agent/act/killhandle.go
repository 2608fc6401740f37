package act

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
)

// KillHandle is a handle of a pod that is ready to be killed. The files of its cgroups and
// its largest processes are open, so a [FastKiller] need not allocate memory.
// A handle serves for one kill; to kill the pod again, prepare another.
//
// The caller of [Prepare] closes the handle. Its descriptors stay open until the
// last reference is dropped, so that a descriptor number is not reused for another
// cgroup or process during a kill.
type KillHandle struct {
	job        Job
	containers []*containerFDs
	direct     bool         // every container has a proven cgroup
	refs       atomic.Int64 // number of references, plus closedBit
	killed     atomic.Bool
	killDone   atomic.Bool  // the kill has returned and no longer writes to containers
	guard      *evict.Guard // of the kill
	procfs     kernel.FS
	procDir    int // descriptor of procfs
}

// containerFDs are the open descriptors of one container.
type containerFDs struct {
	evict.RunningContainer
	hierarchy *cgroup.Hierarchy
	group     *cgroup.Cgroup
	dirFD     int // the cgroup's directory
	killFD    int // cgroup.kill; -1 if the kernel has none
	usageFD   int // memory.current or memory.usage_in_bytes
	tasksFD   int // pids.current; -1 if not needed
	preopened []pidfd
	// initFD is the container's init process; -1 if it is unknown or has exited.
	initFD int
	// lists are the cgroup.procs files of the container's cgroup and of those below it
	// that list a preopened process.
	lists []procList
	// zeroIsTransient means that a 0 in cgroup.procs is a process that is being forked or
	// reaped, not one of another pid namespace.
	zeroIsTransient bool
	// The fields below are written by the kill.
	openedAtKill []pidfd
	signalled    int
	err          error
	// partlyChecked means that not all processes were read, so a guarded one may be among
	// the others.
	partlyChecked bool
	// initSeen means that the init process was alive when the kill began.
	initSeen atomic.Bool
	// finisherSignalled is the number of processes signalled by the Reaper.
	finisherSignalled atomic.Int64
	// guardedErr names a guarded process that was not signalled; nil if there is none.
	guardedErr error
}

// startVictim returns the container as a victim, with the handle's descriptors.
func (m *containerFDs) startVictim(h *KillHandle) *victim {
	return &victim{
		container: m.RunningContainer, guard: h.guard, hierarchy: m.hierarchy, group: m.group, sharedGroup: true, signalled: map[int]bool{},
		hasGuarded: m.guardedErr != nil, initSeen: &m.initSeen, preopened: m.preopened, slowToList: m.slowToList(),
	}
}

// killedVictim returns the container as a victim that was killed and has to end.
func (m *containerFDs) killedVictim(h *KillHandle) *victim {
	v := m.startVictim(h)
	v.preSignalled, v.exiting = m.signalled, slices.Clone(m.openedAtKill)
	if m.partlyChecked {
		v.finisherSignalled = &m.finisherSignalled
	}
	for _, p := range m.preopened {
		if p.signalled {
			v.exiting = append(v.exiting, p)
		}
	}
	return v
}

// pidfd is an open process. rel is its cgroup, as a path below the container's.
type pidfd struct {
	pid, fd   int
	signalled bool
	rel       string
}

// closedBit is set in refs after Close.
const closedBit = 1 << 62

// Prepare opens the handle of a job's pod. It ignores the job's order. It opens the
// largest processes of each container. A container whose cgroup is not proven, or is
// gone, is left to the runtime. Prepare returns cgroup.ErrGone if no container is left.
func Prepare(h *cgroup.Hierarchy, proc kernel.FS, job Job) (*KillHandle, error) {
	handle := &KillHandle{job: job, direct: true, procfs: proc}
	handle.refs.Store(1)
	var err error
	if handle.procDir, err = unix.Open(string(proc), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return nil, fmt.Errorf("open kill handle: open %s: %w", proc, err)
	}
	for _, c := range job.Containers {
		if c.Cgroup == "" {
			handle.direct = false
			continue
		}
		m, err := openContainer(h, proc, c)
		if errors.Is(err, cgroup.ErrGone) {
			continue
		}
		if err != nil {
			handle.Close()
			return nil, fmt.Errorf("open kill handle: container %s: %w", c.Name, err)
		}
		handle.containers = append(handle.containers, m)
	}
	if len(handle.containers) == 0 {
		handle.Close()
		return nil, fmt.Errorf("open kill handle: %w", cgroup.ErrGone)
	}
	return handle, nil
}

func openContainer(h *cgroup.Hierarchy, proc kernel.FS, c evict.RunningContainer) (_ *containerFDs, err error) {
	v, err := open(h, c, nil)
	if err != nil {
		return nil, err
	}
	m := &containerFDs{RunningContainer: c, hierarchy: h, group: v.group, initFD: -1, zeroIsTransient: h.InInitPIDNamespace(), dirFD: -1, killFD: -1, usageFD: -1, tasksFD: -1, openedAtKill: make([]pidfd, 0, maxReleased)}
	defer func() {
		if err != nil {
			m.close()
		}
	}()
	if m.dirFD, err = unix.Open(h.Memory.Path(c.Cgroup), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		if err == unix.ENOENT {
			err = cgroup.ErrGone
		}
		return nil, fmt.Errorf("open cgroup %s: %w", c.Cgroup, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(m.dirFD, &st); err != nil {
		return nil, fmt.Errorf("stat cgroup %s: %w", c.Cgroup, err)
	}
	if st.Ino != c.CgroupID {
		return nil, fmt.Errorf("cgroup %s was replaced by another: %w", c.Cgroup, cgroup.ErrGone)
	}
	for _, name := range []string{"memory.current", "memory.usage_in_bytes"} {
		if m.usageFD, err = unix.Openat(m.dirFD, name, unix.O_RDONLY|unix.O_CLOEXEC, 0); err == nil {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("open memory usage of cgroup %s: %w", c.Cgroup, err)
	}
	// Without cgroup.kill the processes are signalled one by one.
	if fd, err := unix.Openat(m.dirFD, "cgroup.kill", unix.O_WRONLY|unix.O_CLOEXEC, 0); err == nil {
		m.killFD = fd
	}
	m.tasksFD = openTasks(h, c.Cgroup)
	if m.preopened, err = openLargest(proc, m.group); err != nil {
		return nil, err
	}
	if err := m.openInit(proc); err != nil {
		return nil, err
	}
	return m, m.openLists()
}

// Outdated reports whether the largest processes of the pod are no longer the
// preopened ones.
func (h *KillHandle) Outdated(proc kernel.FS) bool {
	if h.killed.Load() {
		return false // the processes are exiting, and Follow waits for them
	}
	if !h.Ref() {
		return true
	}
	defer h.Unref()
	for _, m := range h.containers {
		pids, err := largest(proc, m.group)
		if err != nil {
			continue // gone: the inventory removes it
		}
		if !m.sameProcesses(pids) {
			return true
		}
	}
	return false
}

// sameProcesses reports whether pids are the preopened processes. It copies no
// element, because a kill may be setting signalled.
func (m *containerFDs) sameProcesses(pids []located) bool {
	if len(pids) != len(m.preopened) {
		return false
	}
	for i := range pids {
		if m.preopened[i].pid != pids[i].pid || m.preopened[i].rel != pids[i].rel {
			return false
		}
	}
	return true
}

// killInProgress reports whether a kill has begun and not returned. Its thread may
// hang in the kernel and later write to containers, so others must not read them.
func (h *KillHandle) killInProgress() bool { return h.killed.Load() && !h.killDone.Load() }

// Job returns the job that the handle was prepared for.
func (h *KillHandle) Job() Job { return h.job }

// Direct reports whether every container has a proven cgroup, so that the pod can be
// killed without the runtime.
func (h *KillHandle) Direct() bool { return h.direct }

// Usage returns the memory charged to the containers, in bytes, page cache included.
// It makes one short read per container and does not allocate. A container that is
// gone counts as 0. ok is false if one can't be read.
func (h *KillHandle) Usage() (sum int64, ok bool) {
	if !h.Ref() {
		return 0, false
	}
	defer h.Unref()
	for _, m := range h.containers {
		var buf [32]byte
		n, err := unix.Pread(m.usageFD, buf[:], 0)
		if err == unix.ENODEV {
			continue
		}
		if err != nil {
			return 0, false
		}
		used, ok := parseNumber(buf[:n])
		if !ok {
			return 0, false
		}
		sum += used
	}
	return sum, true
}

// parseNumber parses a file of one number and a line feed.
func parseNumber(b []byte) (n int64, ok bool) {
	for i, c := range b {
		switch {
		case c == '\n' && i > 0 && i == len(b)-1:
			return n, true
		case c < '0' || c > '9' || n > 1<<58:
			return 0, false
		}
		n = 10*n + int64(c-'0')
	}
	return 0, false
}

// Memory returns the working set of the containers and the anonymous part of it, in
// bytes. It reads memory.stat, which can block while the kernel flushes statistics,
// and does not allocate. A container that is gone counts as 0. ok is false if one
// can't be read.
func (h *KillHandle) Memory() (workingSet, anonymous int64, ok bool) {
	if !h.Ref() {
		return 0, 0, false
	}
	defer h.Unref()
	for _, m := range h.containers {
		var memory cgroup.Memory
		switch err := m.group.ReadMemory(&memory); {
		case errors.Is(err, cgroup.ErrGone):
		case err != nil:
			return 0, 0, false
		default:
			workingSet += int64(memory.WorkingSet)
			anonymous += int64(memory.Anon)
		}
	}
	return workingSet, anonymous, true
}

// EachContainer calls f with the name and the cgroup inode of each open container.
func (h *KillHandle) EachContainer(f func(name string, cgroupID uint64)) {
	for _, m := range h.containers {
		f(m.Name, m.CgroupID)
	}
}

// Ref takes a reference: the descriptors stay open until [KillHandle.Unref], even if Close is
// called. It returns false if the handle is closed.
func (h *KillHandle) Ref() bool {
	for {
		n := h.refs.Load()
		if n&closedBit != 0 {
			return false
		}
		if h.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// refInUse takes a reference like [KillHandle.Ref], but also on a closed handle that still has a
// reference: a handle can be replaced, and closed, between the kill and Follow.
func (h *KillHandle) refInUse() bool {
	for {
		n := h.refs.Load()
		if n&^closedBit == 0 {
			return false
		}
		if h.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// Unref drops a reference. The last one closes the descriptors if Close was called.
func (h *KillHandle) Unref() {
	if h.refs.Add(-1) == closedBit {
		h.closeFDs()
	}
}

// Close drops the reference of the caller of Prepare. Further calls do nothing.
func (h *KillHandle) Close() {
	for {
		n := h.refs.Load()
		if n&closedBit != 0 {
			return
		}
		if !h.refs.CompareAndSwap(n, (n-1)|closedBit) {
			continue
		}
		if n == 1 {
			h.closeFDs()
		}
		return
	}
}

func (h *KillHandle) closeFDs() {
	for _, m := range h.containers {
		m.close()
	}
	unix.Close(h.procDir)
}

func (m *containerFDs) close() {
	m.group.Close()
	fds := []int{m.dirFD, m.killFD, m.usageFD, m.tasksFD, m.initFD}
	for _, l := range m.lists {
		fds = append(fds, l.firstRead, l.secondRead)
	}
	for _, fd := range fds {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
	closeAll(m.preopened)
	closeAll(m.openedAtKill)
}

func closeAll(list []pidfd) {
	for _, p := range list {
		unix.Close(p.fd)
	}
}
