package act

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/process"
)

// drain looks at a killed container when its processes exit (exitWatch). It also does so after
// drainPollMin, doubled up to drainPollMax, for processes that were forked or whose exit is
// not reported. It gives up after drainTimeout: a pod that does not exit is ordered again
// after a minute, and must not be drained twice.
const (
	drainPollMin, drainPollMax = time.Millisecond, 100 * time.Millisecond
	drainTimeout               = 50 * time.Second
)

const (
	// maxReleased is the number of processes per container, the largest ones, whose
	// memory evictd releases by process_mrelease(2).
	maxReleased = 4
	// maxSignalRounds bounds how often kill reads a cgroup again for newly forked
	// processes.
	maxSignalRounds = 8
	// maxOpenPidfds bounds the pidfds that are open at a time. maxSized bounds the
	// processes whose size is read before they are signalled.
	maxOpenPidfds, maxSized = 512, 64
)

var errDrainTimeout = errors.New("they do not exit after SIGKILL")

// victim is a container that is killed by cgroup.kill and by pidfds that are opened for the
// kill: by a [Killer], or by a [Reaper] that finishes the kill of a [FastKiller].
type victim struct {
	container evict.RunningContainer
	guard     *evict.Guard
	hierarchy *cgroup.Hierarchy
	group     *cgroup.Cgroup
	procs     []int // as last read
	signalled map[int]bool
	// hasGuarded means that guarded processes are in the cgroup. They are not signalled
	// and not in procs.
	hasGuarded     bool
	slowToList     bool         // reading its list of processes takes long
	pathsMatch     bool         // see verifyPaths
	killed         bool         // cgroup.kill was written
	initSeen       *atomic.Bool // the init process was alive when the kill began
	stopAfterDrain bool         // the runtime is asked after drain; see finish
	check          guardCheck
	signalledAt    time.Time // the first signal
	largest        []*process.Process

	// Set for a victim that a FastKiller killed. The descriptors belong to the handle.
	preSignalled      int           // number of processes that the FastKiller signalled
	finisherSignalled *atomic.Int64 // number of processes signalled by the Reaper; nil for none
	exiting           []pidfd       // signalled processes to wait for
	preopened         []pidfd
	sharedGroup       bool // group belongs to the handle

	// outpaced means that the container forks faster than it is signalled, and
	// unfreezable that killFrozen could not freeze it.
	outpaced, unfreezable bool
	thread                *PriorityThread
}

// open opens a container's cgroup. It returns cgroup.ErrGone if the path names a
// different cgroup than the container's.
func open(h *cgroup.Hierarchy, c evict.RunningContainer, g *evict.Guard) (*victim, error) {
	group, err := h.Open(c.Cgroup)
	if err != nil {
		return nil, err
	}
	if id := group.ID(); id != c.CgroupID {
		group.Close()
		return nil, fmt.Errorf("cgroup %s was replaced by another: %w", c.Cgroup, cgroup.ErrGone)
	}
	return newVictim(h, group, c, g), nil
}

func newVictim(h *cgroup.Hierarchy, group *cgroup.Cgroup, c evict.RunningContainer, g *evict.Guard) *victim {
	return &victim{container: c, guard: g, hierarchy: h, group: group, signalled: map[int]bool{}, initSeen: &atomic.Bool{}}
}

func (v *victim) close() {
	for _, p := range v.largest {
		p.Close()
	}
	v.largest = nil
	if !v.sharedGroup {
		v.group.Close()
	}
}

// kill signals the processes of the container, the largest of each cgroup first. After the
// first ones it writes cgroup.kill (cgroup v2, Linux 5.14), which ends the others. Where
// that is not possible, it signals all, and repeats while new ones appear. One that forks
// faster is left to drain (outpaced).
func (v *victim) kill(proc kernel.FS) error {
	for range maxSignalRounds {
		fresh, err := v.signalRound(proc, false)
		if err != nil || fresh == 0 || v.killed {
			return err
		}
	}
	v.outpaced = true
	return nil
}

// yieldEvery is the number of cgroups after which a real-time thread yields.
const yieldEvery = 64

// signalRound reads all cgroups of the container once and signals the processes that are
// not signalled yet; with again it signals all. It returns how many processes it found to
// signal.
func (v *victim) signalRound(proc kernel.FS, again bool) (found int, err error) {
	if err := v.checkProcs(proc); err != nil {
		return 0, err
	}
	v.signalPreopened(proc)
	v.procs = v.procs[:0]
	cgroups := 0
	triedKill := v.hasGuarded // cgroup.kill would kill the guarded processes too
	err = v.group.WalkProcs(func(rel string, pids []int) (more bool, err error) {
		if cgroups++; cgroups%yieldEvery == 0 {
			yieldCPU()
		}
		var fresh []int
		for _, pid := range pids {
			if !v.check.add(pid) {
				continue
			}
			v.procs = append(v.procs, pid)
			if again || !v.signalled[pid] {
				fresh = append(fresh, pid)
			}
		}
		// A guarded process may have been moved here since the check.
		if err := v.check.err(); err != nil {
			return false, err
		}
		v.hasGuarded = v.hasGuarded || len(v.check.guarded) > 0
		found += len(fresh)
		for len(fresh) > 0 {
			n := min(len(fresh), maxOpenPidfds)
			if !triedKill && len(fresh) > maxSized {
				// Opening so many takes a while, and they fork during that time. The oldest is
				// usually the init process of the container's pid namespace; when it dies, the
				// kernel kills the namespace (kernel/pid_namespace.c: zap_pid_ns_processes).
				n = 1
			}
			err := v.signal(proc, rel, fresh[:n])
			if !triedKill && !v.hasGuarded {
				// cgroup.kill needs no further descriptor, so it also works when none is left
				// for pidfds.
				triedKill = true
				killErr := v.group.Kill()
				if killErr == nil {
					v.noteKilled()
					return false, nil
				}
				if !errors.Is(killErr, kernel.ErrUnavailable) {
					return false, killErr
				}
			}
			if err != nil {
				return false, err
			}
			fresh = fresh[n:]
			if n > maxSized {
				yieldCPU()
			}
		}
		return true, nil
	})
	slices.Sort(v.procs)
	v.procs = slices.Compact(v.procs)
	return found, err
}

// signalPreopened signals the preopened processes that are still in the container. In a
// container with many processes it takes long to reach the others.
func (v *victim) signalPreopened(proc kernel.FS) {
	for _, p := range v.preopened {
		if v.signalled[p.pid] || !v.check.add(p.pid) {
			continue
		}
		if inside, err := v.inContainer(proc, p.pid); err != nil || !inside || unix.PidfdSendSignal(p.fd, unix.SIGKILL, nil, 0) != nil {
			continue
		}
		if v.signalledAt.IsZero() {
			v.signalledAt = time.Now()
		}
		v.signalled[p.pid] = true
	}
}

// yieldCPU sleeps for a microsecond: a real-time thread must sleep from time to time
// (RLIMIT_RTTIME).
func yieldCPU() { _ = unix.Nanosleep(&unix.Timespec{Nsec: 1000}, nil) }

// killAtPriority is kill, on the real-time thread if there are many processes.
func (v *victim) killAtPriority(proc kernel.FS) (err error) {
	if len(v.procs) <= maxSized {
		return v.kill(proc)
	}
	v.thread.do(func() { err = v.kill(proc) })
	return err
}

// noteKilled marks all listed processes as signalled, after a write to cgroup.kill.
func (v *victim) noteKilled() {
	v.killed = true
	if v.signalledAt.IsZero() {
		v.signalledAt = time.Now()
	}
	for _, pid := range v.procs {
		v.signalled[pid] = true
	}
}

// signal opens the processes of one cgroup, by its path below the container's, lists the
// cgroup again, and sends SIGKILL to those that are still listed. A pid that was reused
// since the first list is not.
func (v *victim) signal(proc kernel.FS, rel string, pids []int) error {
	opened := make([]sizedProcess, 0, len(pids))
	defer func() {
		for _, h := range opened {
			if !slices.Contains(v.largest, h.Process) {
				h.Close()
			}
		}
	}()
	for _, pid := range pids {
		p, err := process.Open(pid)
		if errors.Is(err, process.ErrGone) {
			continue
		}
		if err != nil {
			return err
		}
		h := sizedProcess{Process: p}
		if len(pids) <= maxSized {
			h.size, _ = process.Resident(proc, pid) // 0 if it has exited
		}
		opened = append(opened, h)
	}
	still, err := v.group.ProcsOf(rel, nil)
	if err != nil {
		return err
	}
	slices.SortStableFunc(opened, func(a, b sizedProcess) int { return cmp.Compare(b.size, a.size) })
	for _, h := range opened {
		if _, listed := slices.BinarySearch(still, h.PID()); !listed {
			continue
		}
		if err := h.Signal(unix.SIGKILL); err != nil {
			if errors.Is(err, process.ErrGone) {
				continue
			}
			return fmt.Errorf("kill process %d of %s: %w", h.PID(), v.container.Cgroup, err)
		}
		if v.signalledAt.IsZero() {
			v.signalledAt = time.Now()
		}
		v.signalled[h.PID()] = true
		if len(v.largest) < maxReleased {
			v.largest = append(v.largest, h.Process)
		}
	}
	return nil
}

// sizedProcess is an open process and its resident memory, in bytes.
type sizedProcess struct {
	*process.Process
	size uint64
}

// drain waits until all processes of the cgroup have exited. It signals newly forked
// processes, freezes the cgroup if they are too many, and thaws it if it was frozen. It
// calls first when the first process has exited; it may call it several times.
func (v *victim) drain(ctx context.Context, proc kernel.FS, first func()) error {
	ctx, cancel := context.WithTimeoutCause(ctx, drainTimeout, errDrainTimeout)
	defer cancel()
	w := newExitWatch(drainPollMin)
	defer w.close()
	return v.drainWatched(ctx, proc, first, w)
}

// drainWatched is drain with a watch.
func (v *victim) drainWatched(ctx context.Context, proc kernel.FS, first func(), w *exitWatch) error {
	for {
		if frozen, err := v.group.Frozen(); err == nil && frozen {
			// On cgroup v1 a frozen task does not exit before it is thawed.
			if err := v.group.Thaw(); err != nil && !errors.Is(err, cgroup.ErrGone) {
				return fmt.Errorf("thaw %s: %w", v.container.Cgroup, err)
			}
		}
		if w.interval == drainPollMax {
			// Signalled processes have had time to exit. A pid that is still listed may have
			// been reused, so signal all of them again.
			clear(v.signalled)
		}
		if err := v.killAtPriority(proc); err != nil && !errors.Is(err, cgroup.ErrGone) {
			return err
		}
		if v.outpaced && !v.unfreezable && !v.hasGuarded {
			var all bool
			var err error
			v.thread.do(func() { all, err = v.killFrozen(proc) })
			if err != nil && !errors.Is(err, cgroup.ErrGone) {
				return err
			}
			v.outpaced, v.unfreezable = false, !all
		}
		if len(v.procs) < max(len(v.signalled), v.preSignalled) {
			first()
		}
		if len(v.procs) == 0 && v.exited() && v.unpopulated() {
			return nil
		}
		w.watch(v)
		if err := w.wait(ctx); err != nil {
			return fmt.Errorf("%d processes left in %s: %w", len(v.procs), v.container.Cgroup, err)
		}
	}
}

// unpopulated reports whether the kernel counts no process in the cgroup. It also returns
// true if that can't be read, or if guarded processes remain. It is needed in addition to
// the list, which leaves out a process without a pid, one that is just being forked.
func (v *victim) unpopulated() bool {
	if v.hasGuarded {
		return true
	}
	populated, err := v.group.Populated()
	return err != nil || !populated
}

// exited reports whether the largest processes have released their memory. A cgroup stops
// listing a process when its last thread begins to exit; its pidfd becomes readable when
// the process has exited.
func (v *victim) exited() bool {
	for _, p := range v.largest {
		if gone, err := p.Exited(); err == nil && !gone {
			return false
		}
	}
	for _, p := range v.exiting {
		if !processExited(p.fd) {
			return false
		}
	}
	return true
}

// processExited reports whether a process has exited, or can't be polled.
func processExited(fd int) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return n > 0 || err != nil && err != unix.EINTR
}

// reap releases the memory of the largest processes, which helps if they get too little
// CPU time to exit.
func reap(largest []*process.Process) {
	for _, p := range largest {
		for range maxReleaseAttempts {
			err := p.ReleaseMemory()
			if !errors.Is(err, unix.EAGAIN) {
				break
			}
		}
	}
}

// maxReleaseAttempts bounds the attempts on a process of which the kernel could release only
// a part (EAGAIN).
const maxReleaseAttempts = 5
