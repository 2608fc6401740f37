package act

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/kernel/cgroup"
)

// FastKiller kills pods through a [KillHandle], with SIGKILL and the largest processes first. It
// does not allocate and opens only pidfds of processes that the handle does not have. Its
// work on the calling thread is bounded in number and time for any container. A [Reaper]
// then writes cgroup.kill, or signals the remaining processes one by one. So the calling
// thread never takes a lock of the cgroup tree (kernel/cgroup/cgroup.c: cgroup_kill_write
// takes cgroup_mutex). It is not safe for concurrent use.
type FastKiller struct {
	signaller                signaller
	pids, relisted, unopened []int
	signalledPIDs            []int
	buf                      []byte
	batch                    []pidfd
	reserve                  fdReserve
	preopenedListed          [maxReleased]bool // which preopened processes their cgroup still lists
	check                    guardCheck
	began                    time.Time // of the kill
	timeout                  time.Duration
	signalErr                error // why a process can't be signalled, such as no CAP_KILL
}

// signaller sends the signals of a [FastKiller].
type signaller interface {
	// signal sends SIGKILL to a process.
	signal(fd int) error
	// finish has another thread finish the kill of a container. checked means that all
	// its processes were read and none is protected. It returns false if there is no
	// such thread.
	finish(h *KillHandle, m *containerFDs, checked bool) bool
	// reap has another thread release the memory of a process.
	reap(h *KillHandle, fd int)
}

const (
	// maxListed bounds the processes of a container that are read, and maxOpened those
	// that are opened and signalled in addition to the preopened ones.
	maxListed, maxOpened = 2 << 10, 64
	// fastKillTimeout is when no further processes are opened and signalled, because
	// other pods wait for the thread. The preopened ones are always signalled.
	fastKillTimeout = 2 * time.Millisecond
)

// NewFastKiller returns a [FastKiller] that kills and leaves the rest to r, which may be nil.
func NewFastKiller(r *Reaper) *FastKiller { return newFastKiller(liveSignaller{r}) }

// NewNoopKiller returns a [FastKiller] for dry runs: it opens, reads and checks the same, and sends
// no signal.
func NewNoopKiller() *FastKiller { return newFastKiller(noopSignaller{}) }

func newFastKiller(t signaller) *FastKiller {
	k := &FastKiller{
		signaller: t, pids: make([]int, 0, maxListed), relisted: make([]int, 0, maxListed), unopened: make([]int, 0, maxListed),
		signalledPIDs: make([]int, 0, maxOpened+maxReleased+1), buf: make([]byte, 16<<10), batch: make([]pidfd, 0, maxOpened),
		check: guardCheck{protected: make([]int, 0, maxProtected)}, timeout: fastKillTimeout,
	}
	k.reserve.fill()
	return k
}

// Close closes the reserved descriptors.
func (k *FastKiller) Close() error { return k.reserve.close() }

// KillResult is the result of killing one pod.
type KillResult struct {
	// FirstSignal is when the first process was signalled; zero for none.
	FirstSignal time.Time
	// Processes is the number of processes signalled.
	Processes int
	// Err names what was not killed and why; a *WrongVictimError if it must not be
	// killed.
	Err error
}

// Refused reports whether the pod was not killed because of an essential process, so that
// the pod must not be ended in another way either.
func (r *KillResult) Refused() bool {
	if r.Processes > 0 || r.Err == nil {
		return false
	}
	wrong := (*WrongVictimError)(nil)
	return errors.As(r.Err, &wrong) && wrong.Essential
}

var errAlreadyKilled = errors.New("kill handle was used before")

// Kill kills the pod. Containers that are gone are no error. A handle that was closed
// since can be used as long as the caller has a reference: the pod was chosen with this
// handle, and one that replaced it is not used.
func (k *FastKiller) Kill(h *KillHandle, g *evict.Guard) (out KillResult) {
	if !h.refInUse() {
		out.Err = cgroup.ErrGone
		return out
	}
	defer h.Unref()
	if h.killed.Swap(true) {
		out.Err = errAlreadyKilled
		return out
	}
	defer h.killDone.Store(true)
	h.guard = g
	k.began = time.Now()
	for _, m := range h.containers {
		before := out.Processes
		if m.err = k.killContainer(h, m, g, &out); m.err != nil && !errors.Is(m.err, cgroup.ErrGone) {
			out.Err = errors.Join(out.Err, m.err)
		} else if m.protectedErr != nil {
			out.Err = errors.Join(out.Err, m.protectedErr)
		}
		m.signalled = out.Processes - before
	}
	return out
}

func (k *FastKiller) killContainer(h *KillHandle, m *containerFDs, g *evict.Guard, out *KillResult) error {
	k.signalledPIDs, k.signalErr = k.signalledPIDs[:0], nil
	k.check.reset(g, &m.RunningContainer, procfs{dir: h.procDir})
	all, err := k.listProcs(m)
	if err != nil {
		return err
	}
	k.check.initSeen = k.check.hasInit && m.initFD >= 0 && !processExited(m.initFD)
	m.initSeen.Store(k.check.initSeen)
	wrong := k.check.err()
	if all && wrong != nil {
		return wrong
	}
	m.partlyChecked = !all
	if all {
		m.protectedErr = k.check.protectedError()
	}
	found := len(k.pids)
	switch {
	case all:
		k.signalPreopened(h, m, out)
		k.signalOthers(h, m, out)
	case k.check.wrong == nil && k.check.initSeen:
		// Not all processes were read, but the cgroup is certainly the container's: signal
		// the processes that are open already, and the init process.
		k.signalPreopened(h, m, out)
		k.signalInit(m, out)
	}
	checked := all && m.protectedErr == nil
	finishes := k.signaller.finish(h, m, checked)
	killsCgroup := finishes && checked && m.killFD >= 0 // by cgroup.kill
	if k.signalErr != nil && !killsCgroup {
		return fmt.Errorf("kill processes of %s: %w", m.Cgroup, k.signalErr)
	}
	if finishes && all {
		out.addSignalled(found - len(k.signalledPIDs))
	}
	return nil
}

// listProcs lists the processes of the container's cgroup. If there are cgroups below it,
// it also lists those with a preopened process. It reports whether it has read all
// processes of the container.
func (k *FastKiller) listProcs(m *containerFDs) (all bool, err error) {
	k.pids, k.preopenedListed = k.pids[:0], [maxReleased]bool{}
	var st unix.Stat_t
	if err := unix.Fstat(m.dirFD, &st); err != nil {
		return false, fmt.Errorf("stat cgroup %s: %w", m.Cgroup, err)
	}
	if m.hasLargeList() {
		return false, nil
	}
	lists := m.lists
	all = st.Nlink == 2 // no cgroups below: kernfs counts each as a link
	if all {
		lists = lists[:1]
	}
	gone := true
	for i := range lists {
		l := &lists[i]
		read := len(k.pids)
		whole := false
		k.pids, whole, err = k.readPIDs(m, l.first, &k.check, k.pids)
		if err == cgroup.ErrGone || l.first < 0 {
			continue
		}
		if err != nil {
			return false, err
		}
		gone = false
		all = all && whole
		for j := range m.preopened {
			p := &m.preopened[j]
			k.preopenedListed[j] = k.preopenedListed[j] || p.rel == l.rel && slices.Contains(k.pids[read:], p.pid)
		}
	}
	if gone {
		return false, cgroup.ErrGone
	}
	slices.Sort(k.pids)
	k.pids = slices.Compact(k.pids)
	return all, nil
}

func (r *KillResult) addSignalled(n int) {
	if n > 0 && r.FirstSignal.IsZero() {
		r.FirstSignal = time.Now()
	}
	r.Processes += n
}

// signalPreopened signals the preopened processes that their cgroup still lists.
func (k *FastKiller) signalPreopened(h *KillHandle, m *containerFDs, out *KillResult) {
	for i := range m.preopened {
		p := &m.preopened[i]
		if !k.preopenedListed[i] || !k.signal(p.fd) {
			continue // exited, or its pid was reused: signalOthers or the Reaper signals that one
		}
		out.addSignalled(1)
		p.signalled = true
		k.signalledPIDs = append(k.signalledPIDs, p.pid)
		k.signaller.reap(h, p.fd)
	}
	slices.Sort(k.signalledPIDs)
}

// signalInit signals the container's init process, with which the kernel kills its pid
// namespace (kernel/pid_namespace.c: zap_pid_ns_processes).
func (k *FastKiller) signalInit(m *containerFDs, out *KillResult) {
	at, signalled := slices.BinarySearch(k.signalledPIDs, m.InitPID)
	if !signalled && k.signal(m.initFD) {
		out.addSignalled(1)
		k.signalledPIDs = slices.Insert(k.signalledPIDs, at, m.InitPID)
	}
}

// signal sends SIGKILL to a process and returns false on error. It keeps the error unless
// the process has exited.
func (k *FastKiller) signal(fd int) bool {
	err := k.signaller.signal(fd)
	if err != nil && err != unix.ESRCH {
		k.signalErr = err
	}
	return err == nil
}

// signalOthers opens the processes that are not preopened, lists the cgroup again, and
// signals those that are still listed. A pid that was reused since the first list is not.
// Processes beyond the limits of time, number and descriptors are left to the Reaper.
func (k *FastKiller) signalOthers(h *KillHandle, m *containerFDs, out *KillResult) {
	k.unopened, k.batch = k.unopened[:0], k.batch[:0]
	for _, pid := range k.pids {
		if _, signalled := slices.BinarySearch(k.signalledPIDs, pid); !signalled && len(k.unopened) < maxOpened {
			k.unopened = append(k.unopened, pid)
		}
	}
	for _, pid := range k.unopened {
		if time.Since(k.began) > k.timeout {
			break
		}
		fd, err := k.reserve.pidfdOpen(pid)
		if noProcess(err) {
			continue
		}
		if err != nil {
			break
		}
		k.batch = append(k.batch, pidfd{pid: pid, fd: fd})
	}
	if len(k.batch) > 0 {
		k.relisted, _, _ = k.readPIDs(m, m.lists[0].second, nil, k.relisted[:0])
		slices.Sort(k.relisted)
	}
	for i, p := range k.batch {
		_, listed := slices.BinarySearch(k.relisted, p.pid)
		if listed && time.Since(k.began) <= k.timeout && k.signal(p.fd) {
			out.addSignalled(1)
			k.signalledPIDs = append(k.signalledPIDs, p.pid)
			if len(m.openedAtKill)+len(m.preopened) < maxReleased {
				m.openedAtKill = append(m.openedAtKill, p)
				k.signaller.reap(h, p.fd)
				continue
			}
		}
		unix.Close(k.batch[i].fd)
	}
	k.reserve.fill()
}

// readPIDs appends the pids of a list to dst, in the order of the list, without those that
// v, if not nil, protects. It stops when dst is full, and reports whether it has read all.
func (k *FastKiller) readPIDs(m *containerFDs, list int, v *guardCheck, dst []int) (_ []int, all bool, err error) {
	if list < 0 {
		return dst, true, nil
	}
	pid, digits, off := 0, 0, int64(0)
	for {
		n, err := k.readChunk(m, list, off)
		if n <= 0 || err != nil {
			return dst, err == nil, err
		}
		off += int64(n)
		for _, c := range k.buf[:n] {
			switch {
			case c >= '0' && c <= '9' && digits < 9:
				pid, digits = 10*pid+int(c-'0'), digits+1
			case c == '\n' && digits > 0 && pid > 0:
				if len(dst) == cap(dst) {
					return dst, false, nil
				}
				if v == nil || v.add(pid) {
					dst = append(dst, pid)
				}
				pid, digits = 0, 0
			case c == '\n' && digits > 0 && m.namesAll:
				// The process is being forked or reaped. cgroup.kill or the next read of
				// the list finds it.
				pid, digits = 0, 0
			case c == '\n' && digits > 0:
				return dst, false, fmt.Errorf("list processes of %s: %w", m.Cgroup, cgroup.ErrOtherPIDNamespace)
			default:
				return dst, false, fmt.Errorf("list processes of %s: unexpected byte %q", m.Cgroup, c)
			}
		}
	}
}

// readChunk reads the next part of a list into k.buf and returns its length, 0 at the end.
func (k *FastKiller) readChunk(m *containerFDs, list int, off int64) (int, error) {
	for {
		n, err := unix.Pread(list, k.buf, off)
		switch err {
		case nil:
			return n, nil
		case unix.EINTR:
		case unix.ENODEV:
			return 0, cgroup.ErrGone
		case unix.EOPNOTSUPP:
			return 0, nil // threaded cgroup: its domain cgroup lists the processes
		default:
			return 0, fmt.Errorf("list processes of %s: %w", m.Cgroup, err)
		}
	}
}

// liveSignaller sends SIGKILL.
type liveSignaller struct{ reaper *Reaper }

func (liveSignaller) signal(fd int) error { return unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) }

func (l liveSignaller) finish(h *KillHandle, m *containerFDs, checked bool) bool {
	return l.reaper != nil && l.reaper.finish(h, m, checked)
}

func (l liveSignaller) reap(h *KillHandle, fd int) {
	if l.reaper != nil {
		l.reaper.releaseMemory(h, fd)
	}
}

// noopSignaller sends signal 0, for which the kernel makes the same checks and sends
// nothing (kernel/signal.c: group_send_sig_info).
type noopSignaller struct{}

func (noopSignaller) signal(fd int) error                          { return unix.PidfdSendSignal(fd, 0, nil, 0) }
func (noopSignaller) finish(*KillHandle, *containerFDs, bool) bool { return true }
func (noopSignaller) reap(*KillHandle, int)                        {}
