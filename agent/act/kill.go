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

const (
	// Between looks at a cgroup that is being killed: at first, and at most.
	firstLook, slowestLook = time.Millisecond, 100 * time.Millisecond
	// reaped is how many of the largest processes are torn down by us besides
	// the kernel.
	reaped = 4
	// signalRounds bounds how often a cgroup is read again at once for
	// processes that were forked meanwhile.
	signalRounds = 8
	// mostHeld bounds the descriptors that are open at a time, mostSized the
	// processes that are looked at before they are signalled.
	mostHeld, mostSized = 512, 64
	// longestDrain is how long an emptying cgroup is looked after. A pod that
	// does not go is ordered to go again after a minute, and must not be looked
	// after twice then.
	longestDrain = 50 * time.Second
)

var errUndrained = errors.New("they do not die of SIGKILL")

// victim is a container's cgroup on its way to being empty.
type victim struct {
	container evict.ContainerHandle
	guard     *evict.Guard
	hierarchy *cgroup.Hierarchy
	group     *cgroup.Cgroup
	procs     []int // as read last
	signalled map[int]bool
	// sparing says that there are processes in it that are not to be signalled: they
	// are left out of procs.
	sparing bool
	large   bool         // its list of processes takes long to make
	mapped  bool         // /proc/PID/cgroup is known to name cgroups as the container's path does
	killed  bool         // the kernel has killed the whole cgroup
	proven  *atomic.Bool // the container's first process was there when the killing began
	spares  bool         // what sparing was when the runtime was told
	verdict verdict
	began   time.Time // when the first was signalled
	largest []*process.Process
	// Of a victim that a Striker has struck: how many it signalled, and whom of
	// them to wait for. The descriptors are the Hold's.
	struck   int
	finished *atomic.Int64 // how many the thread signalled that finished the strike; nil for none
	dying    []pidfd
	ready    []pidfd
	borrowed bool // the group is the Hold's, too
	// outrun tells that it forks faster than it is signalled, and unfreezable that it
	// could not be frozen for that.
	outrun, unfreezable bool
	urgent              *Urgent
}

// open names the container's cgroup by descriptor and makes sure that it is
// the one that was meant.
func open(h *cgroup.Hierarchy, c evict.ContainerHandle, g *evict.Guard) (*victim, error) {
	group, err := h.Open(c.Cgroup)
	if err != nil {
		return nil, err
	}
	if id := group.ID(); id != c.CgroupID {
		group.Close()
		return nil, fmt.Errorf("cgroup %s is another one by now: %w", c.Cgroup, cgroup.ErrGone)
	}
	return &victim{container: c, guard: g, hierarchy: h, group: group, signalled: map[int]bool{}, proven: &atomic.Bool{}}, nil
}

func (v *victim) close() {
	for _, p := range v.largest {
		p.Close()
	}
	v.largest = nil
	if !v.borrowed {
		v.group.Close()
	}
}

// kill signals every process of the cgroup, the largest first, and again while
// new ones appear: what forks faster than it is read is caught by the kernel
// where it can kill a whole cgroup (Linux 5.14, cgroup v2), else by drain.
func (v *victim) kill(proc kernel.FS) error {
	for range signalRounds {
		fresh, err := v.round(proc, false)
		if err != nil || fresh == 0 || v.killed {
			return err
		}
	}
	v.outrun = true
	return nil
}

// restEvery is after how many cgroups a thread at real-time priority rests.
const restEvery = 64

// round signals the processes that have not been, and with again also those that have.
// It goes through the cgroups once, however many there are, and returns how many
// processes it found to be signalled.
func (v *victim) round(proc kernel.FS, again bool) (found int, err error) {
	if err := v.judge(proc); err != nil {
		return 0, err
	}
	v.signalReady(proc)
	v.procs = v.procs[:0]
	cgroups, asked := 0, v.sparing
	err = v.group.WalkProcs(func(rel string, pids []int) (more bool, err error) {
		if cgroups++; cgroups%restEvery == 0 {
			rest()
		}
		var fresh []int
		for _, pid := range pids {
			if !v.verdict.add(pid) {
				continue
			}
			v.procs = append(v.procs, pid)
			if again || !v.signalled[pid] {
				fresh = append(fresh, pid)
			}
		}
		// A guarded process may have been moved here meanwhile.
		if err := v.verdict.err(); err != nil {
			return false, err
		}
		v.sparing = v.sparing || len(v.verdict.spared) > 0
		found += len(fresh)
		for len(fresh) > 0 {
			n := min(len(fresh), mostHeld)
			if !asked && len(fresh) > mostSized {
				// So many take a while to be held, and fork meanwhile. The oldest is mostly
				// the first of the container's pid namespace: with it the kernel kills all
				// that are in it (kernel/pid_namespace.c: zap_pid_ns_processes).
				n = 1
			}
			err := v.signal(proc, rel, fresh[:n])
			if !asked && !v.sparing {
				// It needs no descriptor that is not open yet, so that it also helps
				// where there is none left for the processes.
				asked = true
				killed := v.group.Kill()
				if killed == nil {
					v.note()
					return false, nil
				}
				if !errors.Is(killed, kernel.ErrUnavailable) {
					return false, killed
				}
			}
			if err != nil {
				return false, err
			}
			fresh = fresh[n:]
			if n > mostSized {
				rest()
			}
		}
		return true, nil
	})
	slices.Sort(v.procs)
	v.procs = slices.Compact(v.procs)
	return found, err
}

// signalReady signals the processes that were held beforehand and not reached yet, if
// they say that they are in the container: of a container of many the others take long.
func (v *victim) signalReady(proc kernel.FS) {
	for _, p := range v.ready {
		if v.signalled[p.pid] || !v.verdict.add(p.pid) {
			continue
		}
		if inside, err := v.within(proc, p.pid); err != nil || !inside || unix.PidfdSendSignal(p.fd, unix.SIGKILL, nil, 0) != nil {
			continue
		}
		if v.began.IsZero() {
			v.began = time.Now()
		}
		v.signalled[p.pid] = true
	}
}

// rest lets others run: a thread at real-time priority must sleep now and then
// (RLIMIT_RTTIME).
func rest() { _ = unix.Nanosleep(&unix.Timespec{Nsec: 1000}, nil) }

// killUrgently is kill where there are so many processes that it takes a while.
func (v *victim) killUrgently(proc kernel.FS) (err error) {
	if len(v.procs) <= mostSized {
		return v.kill(proc)
	}
	v.urgent.do(func() { err = v.kill(proc) })
	return err
}

// note counts those that were listed as signalled, after the kernel has killed the
// whole cgroup.
func (v *victim) note() {
	v.killed = true
	if v.began.IsZero() {
		v.began = time.Now()
	}
	for _, pid := range v.procs {
		v.signalled[pid] = true
	}
}

// signal sends SIGKILL to those of the processes that their cgroup, by its path below
// the container's, still lists once they are held by a descriptor: a pid that was reused
// since it was read is not listed.
func (v *victim) signal(proc kernel.FS, rel string, pids []int) error {
	held := make([]sized, 0, len(pids))
	defer func() {
		for _, h := range held {
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
		h := sized{Process: p}
		if len(pids) <= mostSized {
			h.size, _ = process.Resident(proc, pid) // gone meanwhile: 0
		}
		held = append(held, h)
	}
	still, err := v.group.ProcsOf(rel, nil)
	if err != nil {
		return err
	}
	slices.SortStableFunc(held, func(a, b sized) int { return cmp.Compare(b.size, a.size) })
	for _, h := range held {
		if _, listed := slices.BinarySearch(still, h.PID()); !listed {
			continue
		}
		if err := h.Signal(unix.SIGKILL); err != nil {
			if errors.Is(err, process.ErrGone) {
				continue
			}
			return fmt.Errorf("kill process %d of %s: %w", h.PID(), v.container.Cgroup, err)
		}
		if v.began.IsZero() {
			v.began = time.Now()
		}
		v.signalled[h.PID()] = true
		if len(v.largest) < reaped {
			v.largest = append(v.largest, h.Process)
		}
	}
	return nil
}

// sized is a held process and its resident memory, in bytes.
type sized struct {
	*process.Process
	size uint64
}

// drain waits until nothing of the cgroup runs any more, killing what was
// forked, in a frozen cgroup where that is too much, and thawing what is frozen on
// the way, and calls first when the first
// process has gone.
func (v *victim) drain(ctx context.Context, proc kernel.FS, first func()) error {
	ctx, cancel := context.WithTimeoutCause(ctx, longestDrain, errUndrained)
	defer cancel()
	wait := firstLook
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		if frozen, err := v.group.Frozen(); err == nil && frozen {
			// A frozen task does not die before it runs again.
			if err := v.group.Thaw(); err != nil && !errors.Is(err, cgroup.ErrGone) {
				return fmt.Errorf("thaw %s: %w", v.container.Cgroup, err)
			}
		}
		if wait == slowestLook {
			// What is still here has had time to go: one of the pids may have been
			// given to another that was forked meanwhile.
			clear(v.signalled)
		}
		if err := v.killUrgently(proc); err != nil && !errors.Is(err, cgroup.ErrGone) {
			return err
		}
		if v.outrun && !v.unfreezable && !v.sparing {
			var all bool
			var err error
			v.urgent.do(func() { all, err = v.killFrozen(proc) })
			if err != nil && !errors.Is(err, cgroup.ErrGone) {
				return err
			}
			v.outrun, v.unfreezable = false, !all
		}
		if len(v.procs) < max(len(v.signalled), v.struck) {
			first()
		}
		if len(v.procs) == 0 && v.exited() && v.emptied() {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s still holds %d processes: %w", v.container.Cgroup, len(v.procs), context.Cause(ctx))
		case <-timer.C:
		}
		wait = min(2*wait, slowestLook)
		timer.Reset(wait)
	}
}

// emptied reports whether the kernel counts no process in the cgroup, or none any
// more that it can be asked for: a list leaves out a process that has no number
// because it is just beginning.
func (v *victim) emptied() bool {
	if v.sparing {
		return true // those that are left alone remain
	}
	populated, err := v.group.Populated()
	return err != nil || !populated
}

// exited reports whether the largest processes have let go of their memory: a
// cgroup stops listing a process when its last thread begins to exit, its
// pidfd becomes readable when it has.
func (v *victim) exited() bool {
	for _, p := range v.largest {
		if gone, err := p.Exited(); err == nil && !gone {
			return false
		}
	}
	for _, p := range v.dying {
		if !ended(p.fd) {
			return false
		}
	}
	return true
}

// ended reports whether a process has, or can't be asked.
func ended(fd int) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return n > 0 || err != nil && err != unix.EINTR
}

// reap tears down the memory of the largest processes besides the kernel,
// which matters where they get little CPU.
func reap(largest []*process.Process) {
	for _, p := range largest {
		for range reapTries {
			err := p.Release()
			if !errors.Is(err, unix.EAGAIN) {
				break
			}
		}
	}
}

// reapTries bounds the attempts on a process whose memory map is contended.
const reapTries = 5
