package act

import (
	"errors"
	"fmt"
	"slices"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel/cgroup"
)

// Striker kills what a [Hold] holds, with SIGKILL and without allocating: the
// largest processes first, by what is open already. Then the reaper is asked to
// have the kernel kill the cgroup as a whole, where that can be done, and the
// rest is signalled one by one. So nobody waits for a lock of the cgroups' tree
// (kernel/cgroup/cgroup.c: cgroup_kill_write takes cgroup_mutex). A container whose
// processes have cgroups of their own below it takes some memory. It belongs to
// one thread.
type Striker struct {
	trigger            trigger
	list, again, fresh []int
	done               []int
	text               []byte
	batch              []pidfd
	listed             [reaped]bool // which of those that are held the cgroup lists
	verdict            verdict
}

// trigger is what signals, or does not.
type trigger interface {
	// signal sends SIGKILL to a process. all has it sent to a whole cgroup soon, and
	// reports false where that won't be.
	signal(fd int) error
	all(h *Hold, fd int) bool
	// reap tears the memory of a process down besides the kernel.
	reap(h *Hold, fd int)
}

const (
	// mostListed is how many pids of a container are kept, and mostStruck how many
	// are signalled one by one: others are waiting. The rest is left to whoever
	// follows.
	mostListed, mostStruck = 2 << 10, 1 << 10
	batchSize              = 64 // pidfds that are opened at a time
)

// NewStriker returns a Striker that kills, and hands the largest processes to
// the reaper.
func NewStriker(r *Reaper) *Striker { return newStriker(live{r}) }

// NewBlank returns a Striker that opens, reads and checks what another would and
// signals nobody.
func NewBlank() *Striker { return newStriker(blank{}) }

func newStriker(t trigger) *Striker {
	return &Striker{
		trigger: t, list: make([]int, 0, mostListed), again: make([]int, 0, mostListed), fresh: make([]int, 0, mostListed),
		done: make([]int, 0, mostListed), text: make([]byte, 16<<10), batch: make([]pidfd, 0, batchSize),
		verdict: verdict{spared: make([]int, 0, mostSpared)},
	}
}

// Strike is what came of striking a pod.
type Strike struct {
	// First is when the first process was signalled; zero for none.
	First time.Time
	// Processes is how many were found to be signalled.
	Processes int
	// Err says what was not struck and why; a *WrongVictimError where it must not
	// be.
	Err error
}

// Refused reports whether nothing was struck because of a process that must
// outlive every kill, so that nobody else may end the pod either.
func (s *Strike) Refused() bool {
	if s.Processes > 0 || s.Err == nil {
		return false
	}
	wrong := (*WrongVictimError)(nil)
	return errors.As(s.Err, &wrong) && wrong.Never
}

var errStruck = errors.New("the pod has been struck before")

// Strike kills the pod. What of it is gone already is no error. Whoever has
// grabbed the Hold may strike it also when it has been closed since: the pod
// was chosen, and a Hold that took its place is not struck.
func (s *Striker) Strike(h *Hold, g *Guard) (out Strike) {
	if !h.keep() {
		out.Err = cgroup.ErrGone
		return out
	}
	defer h.release()
	if h.struck.Swap(true) {
		out.Err = errStruck
		return out
	}
	h.guard = g
	for _, m := range h.members {
		before := out.Processes
		if m.err = s.member(h, m, g, &out); m.err != nil && !errors.Is(m.err, cgroup.ErrGone) {
			out.Err = errors.Join(out.Err, m.err)
		} else if m.note != nil {
			out.Err = errors.Join(out.Err, m.note)
		}
		m.sent = out.Processes - before
	}
	return out
}

func (s *Striker) member(h *Hold, m *member, g *Guard, out *Strike) error {
	s.done = s.done[:0]
	most := mostStruck
	for round := range signalRounds {
		var err error
		s.verdict.begin(g, &m.Container, procfs{dir: h.proc}, m.note != nil)
		if s.list, err = s.procs(m, &s.verdict, s.list); err != nil {
			return err
		}
		if err := s.verdict.err(); err != nil {
			return err
		}
		if m.note == nil {
			m.note = s.verdict.note()
		}
		found := len(s.list)
		if round == 0 {
			s.ready(h, m, out)
			if m.note == nil && m.kill >= 0 && s.trigger.all(h, m.kill) {
				most = batchSize
			}
		}
		s.fresh = s.fresh[:0]
		for _, pid := range s.list {
			if _, struck := slices.BinarySearch(s.done, pid); !struck {
				s.fresh = append(s.fresh, pid)
			}
		}
		fresh := s.fresh[:min(len(s.fresh), max(0, most-len(s.done)))]
		if len(fresh) == 0 {
			return nil
		}
		for len(fresh) > 0 {
			n := min(batchSize, len(fresh))
			if err := s.strangers(h, m, fresh[:n], out); err != nil {
				return err
			}
			fresh = fresh[n:]
		}
		if most == batchSize { // the kernel sees to the others, and to those that are forked
			out.signalled(found - len(s.done))
			return nil
		}
	}
	return nil
}

func (o *Strike) signalled(n int) {
	if n > 0 && o.First.IsZero() {
		o.First = time.Now()
	}
	o.Processes += n
}

// ready signals the processes that were opened beforehand, as far as the cgroup
// still lists them.
func (s *Striker) ready(h *Hold, m *member, out *Strike) {
	for i := range m.ready {
		p := &m.ready[i]
		if !s.listed[i] || s.trigger.signal(p.fd) != nil {
			continue // gone, or a reused pid that is not meant: others find it
		}
		out.signalled(1)
		p.hit = true
		s.done = append(s.done, p.pid)
		s.trigger.reap(h, p.fd)
	}
	slices.Sort(s.done)
}

// strangers signals processes that are not held yet, as far as the cgroup lists
// them once they are: a pid that was reused since it was read is not listed.
func (s *Striker) strangers(h *Hold, m *member, pids []int, out *Strike) (err error) {
	s.batch = s.batch[:0]
	defer func() {
		for _, p := range s.batch {
			if !slices.Contains(m.kept, p) {
				unix.Close(p.fd)
			}
		}
	}()
	for _, pid := range pids {
		fd, err := unix.PidfdOpen(pid, 0)
		if err == unix.ESRCH {
			continue
		}
		if err != nil {
			return fmt.Errorf("hold process %d of %s: %w", pid, m.Cgroup, err)
		}
		s.batch = append(s.batch, pidfd{pid: pid, fd: fd})
	}
	if s.again, err = s.procs(m, nil, s.again); err != nil {
		return err
	}
	for _, p := range s.batch {
		if _, listed := slices.BinarySearch(s.again, p.pid); !listed {
			continue
		}
		if err := s.trigger.signal(p.fd); err == unix.ESRCH {
			continue
		} else if err != nil {
			return fmt.Errorf("kill process %d of %s: %w", p.pid, m.Cgroup, err)
		}
		out.signalled(1)
		if len(m.kept)+len(m.ready) < reaped {
			m.kept = append(m.kept, p)
			s.trigger.reap(h, p.fd)
		}
	}
	s.done = append(s.done, pids...)
	slices.Sort(s.done)
	return nil
}

// procs lists the processes of a container's cgroup and of those below it,
// sorted, in the storage of dst, and notes which of those that are held are among
// them. Where there are more than that has room for the rest is left out. v, where it
// is not nil, judges all of them, and those that are not to be signalled are left out.
func (s *Striker) procs(m *member, v *verdict, dst []int) ([]int, error) {
	dst = dst[:0]
	s.listed = [reaped]bool{}
	var st unix.Stat_t
	if err := unix.Fstat(m.dir, &st); err != nil {
		return dst, fmt.Errorf("look at cgroup %s: %w", m.Cgroup, err)
	}
	if st.Nlink != 2 { // it has others below it, which a leaf of kernfs has not
		all, err := m.group.Procs(nil)
		for _, pid := range all {
			dst = s.take(m, v, pid, dst)
		}
		return dst, err
	}
	// A file that is held open may keep an old list for a second on cgroup v1
	// (kernel/cgroup/cgroup-v1.c: cgroup_pidlist_start).
	fd, err := openProcs(m.dir)
	if err == unix.ENOENT || err == unix.ENODEV {
		return dst, cgroup.ErrGone
	}
	if err != nil {
		return dst, fmt.Errorf("list processes of %s: %w", m.Cgroup, err)
	}
	defer unix.Close(fd)
	pid, digits, off := 0, 0, int64(0)
	for {
		n, err := unix.Pread(fd, s.text, off)
		if err == unix.EINTR {
			continue
		}
		if err == unix.ENODEV {
			return dst[:0], cgroup.ErrGone
		}
		if err != nil {
			return dst[:0], fmt.Errorf("list processes of %s: %w", m.Cgroup, err)
		}
		if n <= 0 {
			break
		}
		off += int64(n)
		for _, c := range s.text[:n] {
			switch {
			case c >= '0' && c <= '9' && digits < 9:
				pid, digits = 10*pid+int(c-'0'), digits+1
			case c == '\n' && digits > 0 && pid > 0:
				dst = s.take(m, v, pid, dst)
				pid, digits = 0, 0
			case c == '\n' && digits > 0 && m.namesAll:
				// It is beginning or ending. cgroup.kill reaches it, or the next
				// reading of the list.
				pid, digits = 0, 0
			case c == '\n' && digits > 0:
				return dst[:0], fmt.Errorf("list processes of %s: %w", m.Cgroup, cgroup.ErrForeign)
			default:
				return dst[:0], fmt.Errorf("list processes of %s: %q is no part of a pid", m.Cgroup, c)
			}
		}
	}
	slices.Sort(dst)
	return slices.Compact(dst), nil
}

// take adds a listed process to dst, if there is room.
func (s *Striker) take(m *member, v *verdict, pid int, dst []int) []int {
	if v != nil && !v.add(pid) {
		return dst
	}
	for i := range m.ready {
		if m.ready[i].pid == pid {
			s.listed[i] = true
		}
	}
	if len(dst) < cap(dst) {
		dst = append(dst, pid)
	}
	return dst
}

var procsFile = [...]byte{'c', 'g', 'r', 'o', 'u', 'p', '.', 'p', 'r', 'o', 'c', 's', 0}

// openProcs is openat(2), for whose path x/sys would ask for memory.
func openProcs(dir int) (int, error) {
	for {
		fd, _, errno := unix.Syscall6(unix.SYS_OPENAT, uintptr(dir), uintptr(unsafe.Pointer(&procsFile[0])), unix.O_RDONLY|unix.O_CLOEXEC, 0, 0, 0)
		switch errno {
		case 0:
			return int(fd), nil
		case unix.EINTR:
			continue
		}
		return -1, errno
	}
}

// live kills.
type live struct{ reaper *Reaper }

func (live) signal(fd int) error { return unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) }

func (l live) all(h *Hold, fd int) bool { return l.reaper != nil && l.reaper.kill(h, fd) }

func (l live) reap(h *Hold, fd int) {
	if l.reaper != nil {
		l.reaper.add(h, fd)
	}
}

// blank signals nobody: signal 0 makes the kernel check all that it would check
// for another (kernel/signal.c: group_send_sig_info).
type blank struct{}

func (blank) signal(fd int) error { return unix.PidfdSendSignal(fd, 0, nil, 0) }
func (blank) all(*Hold, int) bool { return true }
func (blank) reap(*Hold, int)     {}
