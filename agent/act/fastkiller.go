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

// FastKiller kills pods through a [KillHandle], with SIGKILL. Of each container it signals
// the preopened processes first, which are the largest ones, and then the others in the
// order of their pids. It opens only pidfds of processes that the handle does not have. It
// does not allocate unless it fails or finds a guarded process. Its work on the calling
// thread is bounded in number and time for any container. A [Reaper] then writes
// cgroup.kill, or signals the remaining processes one by one. So the calling thread never
// takes a lock of the cgroup tree (kernel/cgroup/cgroup.c: cgroup_kill_write takes
// cgroup_mutex). It is not safe for concurrent use.
type FastKiller struct {
	signaller                signaller
	pids, relisted, unopened []int
	signalledPIDs            []int
	buf                      []byte
	batch                    []pidfd
	reserve                  fdReserve
	preopenedListed          [maxPreopened]bool // which preopened processes their cgroup still lists
	check                    guardCheck
	began                    time.Time // of the kill
	timeout                  time.Duration
	signalErr                error // why a process can't be signalled, such as no CAP_KILL
}

// signaller has the parts of a [FastKiller] that differ in dry run.
type signaller interface {
	// signal sends SIGKILL to a process. In dry run it only makes the kernel's checks for
	// that. It returns ESRCH if the process has exited.
	signal(fd int) error
	// finish leaves the rest of a container's kill to another thread. checked means that
	// all its processes were read and none is guarded. It returns false if no thread
	// will kill the rest: there is none, or its queue is full. In dry run it does nothing
	// and returns true, so that the rest counts as killed.
	finish(h *KillHandle, m *containerFDs, checked bool) bool
	// reap has another thread release the memory of a signalled process, if it has time.
	// In dry run it does nothing.
	reap(h *KillHandle, fd int)
}

const (
	// maxListed bounds the processes of a container that are read, and maxOpened those
	// that are opened and signalled in addition to the preopened ones.
	maxListed, maxOpened = 2 << 10, 64
	// fastKillTimeout is the time since the start of a kill after which no further
	// processes are opened and signalled, because other pods wait for the thread. The
	// preopened ones are always signalled.
	fastKillTimeout = 2 * time.Millisecond
)

// NewFastKiller returns a [FastKiller] that kills, and leaves to r what it does not do
// itself. r may be nil.
func NewFastKiller(r *Reaper) *FastKiller { return newFastKiller(liveSignaller{r}) }

// NewNoopKiller returns a [FastKiller] for dry runs: it opens, reads and checks the same,
// and sends no signal.
func NewNoopKiller() *FastKiller { return newFastKiller(noopSignaller{}) }

func newFastKiller(t signaller) *FastKiller {
	k := &FastKiller{
		signaller: t, pids: make([]int, 0, maxListed), relisted: make([]int, 0, maxListed), unopened: make([]int, 0, maxListed),
		signalledPIDs: make([]int, 0, maxOpened+maxPreopened+1), buf: make([]byte, 16<<10), batch: make([]pidfd, 0, maxOpened),
		check: guardCheck{guarded: make([]int, 0, maxGuarded)}, timeout: fastKillTimeout,
	}
	k.reserve.fill()
	return k
}

// Close closes the reserved descriptors.
func (k *FastKiller) Close() error { return k.reserve.close() }

// KillResult is the result of killing one pod.
type KillResult struct {
	// FirstSignal is when the first process was signalled, or, if all were left to the
	// [Reaper], when it was asked to kill them. It is zero if Processes is 0.
	FirstSignal time.Time
	// Processes is the number of processes that were signalled or, in a container whose
	// processes were all read, left to the Reaper. In dry run none is really signalled.
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

// Kill kills the pod of a handle. A container that is gone is not an error.
//
// h may have been closed since the pod was chosen, for example because the loop has
// replaced it. The caller's reference keeps its descriptors open, and they still name the
// chosen pod. Without any reference, Kill fails with [cgroup.ErrGone].
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
		} else if m.guardedErr != nil {
			out.Err = errors.Join(out.Err, m.guardedErr)
		}
		m.signalled = out.Processes - before
	}
	return out
}

// killContainer kills one container. It returns nil if the processes were signalled, or if
// the kill was left to finish.
//
// If all processes were read, the check of the guarded ones is complete. killContainer
// returns its error if the cgroup must not be killed. Otherwise it signals the processes
// that are not guarded.
//
// If only a part was read, a guarded process may be among the others. Then only processes
// that are open already are signalled, and only if the cgroup is certainly the container's:
// its init process is alive, and no listed process is guarded. Otherwise nothing is
// signalled here, which is no error, even if a process is guarded: the thread of
// finish(checked=false) and Killer.Follow check all processes before they signal any, and
// Follow reports the [WrongVictimError].
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
		m.guardedErr = k.check.guardedError()
	}
	found := len(k.pids)
	switch {
	case all:
		k.signalPreopened(h, m, out)
		k.signalOthers(h, m, out)
	case k.check.wrong == nil && k.check.initSeen:
		k.signalPreopened(h, m, out)
		k.signalInit(m, out)
	}
	checked := all && m.guardedErr == nil
	finishes := k.signaller.finish(h, m, checked)
	killsCgroup := finishes && checked && m.killFD >= 0 // by cgroup.kill
	if k.signalErr != nil && !killsCgroup {
		return fmt.Errorf("kill processes of %s: %w", m.Cgroup, k.signalErr)
	}
	if finishes && all {
		// Counted before they are signalled, because cgroup.kill reports no number.
		out.addSignalled(found - len(k.signalledPIDs))
	}
	return nil
}

// listProcs reads the processes of the container's cgroup into k.pids, without the
// guarded ones. If there are cgroups below it, it also reads those with a preopened
// process. It reports whether it has read all processes of the container.
func (k *FastKiller) listProcs(m *containerFDs) (all bool, err error) {
	k.pids, k.preopenedListed = k.pids[:0], [maxPreopened]bool{}
	var st unix.Stat_t
	if err := unix.Fstat(m.dirFD, &st); err != nil {
		return false, fmt.Errorf("stat cgroup %s: %w", m.Cgroup, err)
	}
	if m.slowToList() {
		return false, nil // left to the Reaper
	}
	lists := m.lists
	all = st.Nlink == 2 // no cgroups below: kernfs counts each as a link
	if all {
		lists = lists[:1]
	}
	gone := true
	for i := range lists {
		l := &lists[i]
		start := len(k.pids)
		whole := false
		k.pids, whole, err = k.readPIDs(m, l.firstRead, &k.check, k.pids)
		if err == cgroup.ErrGone || l.firstRead < 0 {
			continue
		}
		if err != nil {
			return false, err
		}
		gone = false
		all = all && whole
		for j := range m.preopened {
			p := &m.preopened[j]
			k.preopenedListed[j] = k.preopenedListed[j] || p.rel == l.rel && slices.Contains(k.pids[start:], p.pid)
		}
	}
	if gone {
		return false, cgroup.ErrGone
	}
	slices.Sort(k.pids)
	k.pids = slices.Compact(k.pids)
	return all, nil
}

// addSignalled counts n processes as signalled now.
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

// signalOthers opens the processes that were not signalled yet, in the order of their pids.
// It then lists the cgroup again and signals those that are still listed: a pid that was
// reused since the first list names a process outside.
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
		k.relisted, _, _ = k.readPIDs(m, m.lists[0].secondRead, nil, k.relisted[:0])
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
// v, if not nil, does not let be signalled. It stops when dst is full, and reports whether it has read all.
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
			case c == '\n' && digits > 0 && m.zeroIsTransient:
				// 0: the process is being forked or reaped. cgroup.kill or the next read of
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
