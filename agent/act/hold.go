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

// Hold is a pod held ready to be killed: what a kill needs is open already, so
// that a [Striker] asks the kernel for nothing that takes memory of ours. It is
// struck once at most; whoever wants the pod struck again prepares another.
//
// Whoever prepared it closes it, whenever that may be: the descriptors stay open
// until the last that uses them is done, so that none can come to name another
// cgroup or process.
type Hold struct {
	job     Job
	members []*member
	direct  bool // every container has a member
	users   atomic.Int64
	struck  atomic.Bool
	over    atomic.Bool  // the strike has ended: what it left behind changes no more
	guard   *evict.Guard // of the strike
	procfs  kernel.FS
	proc    int // its directory
}

// member is a container's cgroup, held open.
type member struct {
	evict.ContainerHandle
	hierarchy *cgroup.Hierarchy
	group     *cgroup.Cgroup
	dir       int // its directory
	kill      int // cgroup.kill, -1 where there is none
	usage     int // the file with its usage
	tasks     int // the file with its number of tasks, -1 where there is none
	ready     []pidfd
	// init is the container's first process, -1 where that is not known or has ended.
	init int
	// lists are the lists of processes of its own cgroup and of those below it in which
	// the processes are that are held.
	lists []procList
	// namesAll says that a 0 in the list of processes is no process of another pid
	// namespace.
	namesAll bool
	// What a strike left behind: who was signalled and is waited for.
	kept []pidfd
	sent int
	err  error
	// unjudged says that not all processes were looked at.
	unjudged bool
	// proven says that the container's first process was there when the killing began.
	proven atomic.Bool
	// finished is how many processes were signalled by the thread that finished the strike.
	finished atomic.Int64
	// note says which process is not signalled though the others are, nil for none.
	note error
}

// begun is the container that a strike has begun with. Its descriptors stay the Hold's.
func (m *member) begun(h *Hold) *victim {
	return &victim{
		container: m.ContainerHandle, guard: h.guard, hierarchy: m.hierarchy, group: m.group, borrowed: true, signalled: map[int]bool{},
		sparing: m.note != nil, proven: &m.proven, ready: m.ready, large: m.large(),
	}
}

// victim is the struck container, to be waited for.
func (m *member) victim(h *Hold) *victim {
	v := m.begun(h)
	v.struck, v.dying = m.sent, slices.Clone(m.kept)
	if m.unjudged {
		v.finished = &m.finished
	}
	for _, p := range m.ready {
		if p.hit {
			v.dying = append(v.dying, p)
		}
	}
	return v
}

// pidfd is a process by its descriptor; hit tells that it was signalled, and rel in
// which cgroup it was, by the path below the container's.
type pidfd struct {
	pid, fd int
	hit     bool
	rel     string
}

const holdClosed = 1 << 62

// Prepare holds the pod of a job, of which the order is not looked at, with the
// descriptors of the largest processes of each container. A container whose
// cgroup is not proven, or gone, is left to the runtime; that none is left is
// cgroup.ErrGone.
func Prepare(h *cgroup.Hierarchy, proc kernel.FS, job Job) (*Hold, error) {
	hold := &Hold{job: job, direct: true, procfs: proc}
	hold.users.Store(1)
	var err error
	if hold.proc, err = unix.Open(string(proc), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return nil, fmt.Errorf("hold pod: open %s: %w", proc, err)
	}
	for _, c := range job.Containers {
		if c.Cgroup == "" {
			hold.direct = false
			continue
		}
		m, err := openMember(h, proc, c)
		if errors.Is(err, cgroup.ErrGone) {
			continue
		}
		if err != nil {
			hold.Close()
			return nil, fmt.Errorf("hold container %s: %w", c.Name, err)
		}
		hold.members = append(hold.members, m)
	}
	if len(hold.members) == 0 {
		hold.Close()
		return nil, fmt.Errorf("hold pod: %w", cgroup.ErrGone)
	}
	return hold, nil
}

func openMember(h *cgroup.Hierarchy, proc kernel.FS, c evict.ContainerHandle) (_ *member, err error) {
	v, err := open(h, c, nil)
	if err != nil {
		return nil, err
	}
	m := &member{ContainerHandle: c, hierarchy: h, group: v.group, init: -1, namesAll: h.NamesAll(), dir: -1, kill: -1, usage: -1, tasks: -1, kept: make([]pidfd, 0, 2*reaped)}
	defer func() {
		if err != nil {
			m.close()
		}
	}()
	if m.dir, err = unix.Open(h.Memory.Path(c.Cgroup), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		if err == unix.ENOENT {
			err = cgroup.ErrGone
		}
		return nil, fmt.Errorf("open cgroup %s: %w", c.Cgroup, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(m.dir, &st); err != nil {
		return nil, fmt.Errorf("look at cgroup %s: %w", c.Cgroup, err)
	}
	if st.Ino != c.CgroupID {
		return nil, fmt.Errorf("cgroup %s is another one by now: %w", c.Cgroup, cgroup.ErrGone)
	}
	for _, name := range []string{"memory.current", "memory.usage_in_bytes"} {
		if m.usage, err = unix.Openat(m.dir, name, unix.O_RDONLY|unix.O_CLOEXEC, 0); err == nil {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("open usage of cgroup %s: %w", c.Cgroup, err)
	}
	// Where it is missing, processes are killed one by one.
	if fd, err := unix.Openat(m.dir, "cgroup.kill", unix.O_WRONLY|unix.O_CLOEXEC, 0); err == nil {
		m.kill = fd
	}
	m.tasks = openTasks(h, c.Cgroup)
	if m.ready, err = openLargest(proc, m.group); err != nil {
		return nil, err
	}
	if err := m.openInit(proc); err != nil {
		return nil, err
	}
	return m, m.openLists()
}

// Outdated reports whether the largest processes of the pod are others than
// those that are held.
func (h *Hold) Outdated(proc kernel.FS) bool {
	if h.struck.Load() {
		return false // what dies changes, and whoever struck it follows
	}
	if !h.acquire() {
		return true
	}
	defer h.release()
	for _, m := range h.members {
		pids, err := largest(proc, m.group)
		if err != nil {
			continue // gone, which the inventory tells
		}
		if !m.holds(pids) {
			return true
		}
	}
	return false
}

// holds reports whether these are the processes that are held. A strike may be
// marking them meanwhile, so that none is copied.
func (m *member) holds(pids []located) bool {
	if len(pids) != len(m.ready) {
		return false
	}
	for i := range pids {
		if m.ready[i].pid != pids[i].pid || m.ready[i].rel != pids[i].rel {
			return false
		}
	}
	return true
}

// beingStruck reports whether a strike has begun and not ended: its thread may still
// write what it leaves behind in the members. It may hang, and another thread may have
// taken over.
func (h *Hold) beingStruck() bool { return h.struck.Load() && !h.over.Load() }

// Job returns what the Hold was prepared for.
func (h *Hold) Job() Job { return h.job }

// Direct reports whether every container can be killed directly.
func (h *Hold) Direct() bool { return h.direct }

// Usage returns what the containers use together, in bytes, page cache included,
// with one short read for each and without allocating. A container that has gone
// uses nothing; ok is false if one can't be read.
func (h *Hold) Usage() (sum int64, ok bool) {
	if !h.acquire() {
		return 0, false
	}
	defer h.release()
	for _, m := range h.members {
		var buf [32]byte
		n, err := unix.Pread(m.usage, buf[:], 0)
		if err == unix.ENODEV {
			continue
		}
		if err != nil {
			return 0, false
		}
		used, ok := number(buf[:n])
		if !ok {
			return 0, false
		}
		sum += used
	}
	return sum, true
}

// number parses a file with one number and its line feed.
func number(b []byte) (n int64, ok bool) {
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

// Memory returns the working set of the containers together and how much of it
// is anonymous, in bytes. It reads memory.stat, which may have to wait for the
// kernel to sum up, and allocates nothing. A container that has gone holds
// nothing; ok is false if one can't be read.
func (h *Hold) Memory() (workingSet, anonymous int64, ok bool) {
	if !h.acquire() {
		return 0, 0, false
	}
	defer h.release()
	for _, m := range h.members {
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

// Each calls f with the name and the cgroup id of each container that is held.
func (h *Hold) Each(f func(name string, cgroupID uint64)) {
	for _, m := range h.members {
		f(m.Name, m.CgroupID)
	}
}

// Grab keeps the Hold from being given up until Drop, whoever closes it
// meanwhile; false says that it has been.
func (h *Hold) Grab() bool { return h.acquire() }

// Drop undoes a Grab.
func (h *Hold) Drop() { h.release() }

// acquire keeps the descriptors open until release; false says that they are
// closed.
func (h *Hold) acquire() bool {
	for {
		n := h.users.Load()
		if n&holdClosed != 0 {
			return false
		}
		if h.users.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// keep is acquire for a Hold that was closed, too, as long as somebody else has
// it open: whoever struck it hands it on although it has been replaced meanwhile.
func (h *Hold) keep() bool {
	for {
		n := h.users.Load()
		if n&^holdClosed == 0 {
			return false
		}
		if h.users.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (h *Hold) release() {
	if h.users.Add(-1) == holdClosed {
		h.free()
	}
}

// Close gives the Hold up. Further calls do nothing.
func (h *Hold) Close() {
	for {
		n := h.users.Load()
		if n&holdClosed != 0 {
			return
		}
		if !h.users.CompareAndSwap(n, (n-1)|holdClosed) {
			continue
		}
		if n == 1 {
			h.free()
		}
		return
	}
}

func (h *Hold) free() {
	for _, m := range h.members {
		m.close()
	}
	unix.Close(h.proc)
}

func (m *member) close() {
	m.group.Close()
	fds := []int{m.dir, m.kill, m.usage, m.tasks, m.init}
	for _, l := range m.lists {
		fds = append(fds, l.first, l.second)
	}
	for _, fd := range fds {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
	closeAll(m.ready)
	closeAll(m.kept)
}

func closeAll(list []pidfd) {
	for _, p := range list {
		unix.Close(p.fd)
	}
}
