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

// Striker kills what a [Hold] holds, with SIGKILL, without allocating and without
// opening what can be open beforehand: the largest processes first. What it does on its
// thread is bounded by number and by time, whatever a container consists of; a Reaper
// then has the kernel kill the cgroup as a whole, where that can be done, or signals the
// rest one by one. So the thread never waits for a lock of the cgroups' tree
// (kernel/cgroup/cgroup.c: cgroup_kill_write takes cgroup_mutex). It belongs to one
// thread.
type Striker struct {
	trigger            trigger
	list, again, fresh []int
	done               []int
	text               []byte
	batch              []pidfd
	spares             spares
	listed             [reaped]bool // which of those that are held their cgroup lists
	verdict            verdict
	began              time.Time // of the strike
	longest            time.Duration
	failed             error // why a process can't be signalled, as without CAP_KILL
}

// trigger is what signals, or does not.
type trigger interface {
	// signal sends SIGKILL to a process. finish has the killing of a container finished
	// on another thread, and reports false where that won't be.
	signal(fd int) error
	finish(h *Hold, m *member, judged bool) bool
	// reap tears the memory of a process down besides the kernel.
	reap(h *Hold, fd int)
}

const (
	// mostListed is how many processes of a container a strike looks at, and mostStruck
	// how many it opens and signals besides those that are held.
	mostListed, mostStruck = 2 << 10, 64
	// longestStrike is when a strike opens and signals no further processes: other pods
	// wait for it. It does not concern those that are held.
	longestStrike = 2 * time.Millisecond
)

// NewStriker returns a Striker that kills, and hands the largest processes to
// the reaper.
func NewStriker(r *Reaper) *Striker { return newStriker(live{r}) }

// NewBlank returns a Striker that opens, reads and checks what another would and
// signals nobody.
func NewBlank() *Striker { return newStriker(blank{}) }

func newStriker(t trigger) *Striker {
	s := &Striker{
		trigger: t, list: make([]int, 0, mostListed), again: make([]int, 0, mostListed), fresh: make([]int, 0, mostListed),
		done: make([]int, 0, mostStruck+reaped+1), text: make([]byte, 16<<10), batch: make([]pidfd, 0, mostStruck),
		verdict: verdict{spared: make([]int, 0, mostSpared)}, longest: longestStrike,
	}
	s.spares.fill()
	return s
}

// Close gives the spare descriptors up.
func (s *Striker) Close() error { return s.spares.close() }

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
func (s *Striker) Strike(h *Hold, g *evict.Guard) (out Strike) {
	if !h.keep() {
		out.Err = cgroup.ErrGone
		return out
	}
	defer h.release()
	if h.struck.Swap(true) {
		out.Err = errStruck
		return out
	}
	defer h.over.Store(true)
	h.guard = g
	s.began = time.Now()
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

func (s *Striker) member(h *Hold, m *member, g *evict.Guard, out *Strike) error {
	s.done, s.failed = s.done[:0], nil
	s.verdict.begin(g, &m.ContainerHandle, procfs{dir: h.proc})
	all, err := s.look(m)
	if err != nil {
		return err
	}
	s.verdict.proven = s.verdict.hasInit && m.init >= 0 && !ended(m.init)
	m.proven.Store(s.verdict.proven)
	wrong := s.verdict.err()
	if all && wrong != nil {
		return wrong
	}
	m.unjudged = !all
	if all {
		m.note = s.verdict.note()
	}
	found := len(s.list)
	switch {
	case all:
		s.ready(h, m, out)
		s.strangers(h, m, out)
	case s.verdict.wrong == nil && s.verdict.proven:
		// Not all processes were read, but the cgroup is certainly still the container's:
		// the processes whose descriptors are open are signalled, and the first one.
		s.ready(h, m, out)
		s.first(m, out)
	}
	judged := all && m.note == nil
	finishes := s.trigger.finish(h, m, judged)
	if s.failed != nil && !(finishes && judged && m.kill >= 0) {
		return fmt.Errorf("kill processes of %s: %w", m.Cgroup, s.failed)
	}
	if finishes && all {
		out.signalled(found - len(s.done))
	}
	return nil
}

// look lists the processes of the container's own cgroup, or, where there are others
// below it, of those cgroups in which the processes are that are held. It reports whether
// these were all processes of the container.
func (s *Striker) look(m *member) (all bool, err error) {
	s.list, s.listed = s.list[:0], [reaped]bool{}
	var st unix.Stat_t
	if err := unix.Fstat(m.dir, &st); err != nil {
		return false, fmt.Errorf("look at cgroup %s: %w", m.Cgroup, err)
	}
	if m.large() {
		return false, nil
	}
	lists := m.lists
	all = st.Nlink == 2 // it has no other below it: kernfs counts each
	if all {
		lists = lists[:1]
	}
	gone := true
	for i := range lists {
		l := &lists[i]
		read := len(s.list)
		whole := false
		s.list, whole, err = s.read(m, l.first, &s.verdict, s.list)
		if err == cgroup.ErrGone || l.first < 0 {
			continue
		}
		if err != nil {
			return false, err
		}
		gone = false
		all = all && whole
		for j := range m.ready {
			p := &m.ready[j]
			s.listed[j] = s.listed[j] || p.rel == l.rel && slices.Contains(s.list[read:], p.pid)
		}
	}
	if gone {
		return false, cgroup.ErrGone
	}
	slices.Sort(s.list)
	s.list = slices.Compact(s.list)
	return all, nil
}

func (o *Strike) signalled(n int) {
	if n > 0 && o.First.IsZero() {
		o.First = time.Now()
	}
	o.Processes += n
}

// ready signals the processes that were opened beforehand, as far as their cgroup still
// lists them.
func (s *Striker) ready(h *Hold, m *member, out *Strike) {
	for i := range m.ready {
		p := &m.ready[i]
		if !s.listed[i] || !s.signal(p.fd) {
			continue // gone, or a reused pid that is not meant: others find it
		}
		out.signalled(1)
		p.hit = true
		s.done = append(s.done, p.pid)
		s.trigger.reap(h, p.fd)
	}
	slices.Sort(s.done)
}

// first signals the container's first process, which was seen: with it the kernel kills
// all of its pid namespace (kernel/pid_namespace.c: zap_pid_ns_processes).
func (s *Striker) first(m *member, out *Strike) {
	at, struck := slices.BinarySearch(s.done, m.InitPID)
	if !struck && s.signal(m.init) {
		out.signalled(1)
		s.done = slices.Insert(s.done, at, m.InitPID)
	}
}

// signal reports whether a process was signalled. One that has gone is no failure.
func (s *Striker) signal(fd int) bool {
	err := s.trigger.signal(fd)
	if err != nil && err != unix.ESRCH {
		s.failed = err
	}
	return err == nil
}

// strangers signals processes that are not held yet, as far as the cgroup lists
// them once they are: a pid that was reused since it was read is not listed. Those for
// which there is no time or no descriptor are left to others.
func (s *Striker) strangers(h *Hold, m *member, out *Strike) {
	s.fresh, s.batch = s.fresh[:0], s.batch[:0]
	for _, pid := range s.list {
		if _, struck := slices.BinarySearch(s.done, pid); !struck && len(s.fresh) < mostStruck {
			s.fresh = append(s.fresh, pid)
		}
	}
	for _, pid := range s.fresh {
		if time.Since(s.began) > s.longest {
			break
		}
		fd, err := s.spares.pidfdOpen(pid)
		if noProcess(err) {
			continue
		}
		if err != nil {
			break
		}
		s.batch = append(s.batch, pidfd{pid: pid, fd: fd})
	}
	if len(s.batch) > 0 {
		s.again, _, _ = s.read(m, m.lists[0].second, nil, s.again[:0])
		slices.Sort(s.again)
	}
	for i, p := range s.batch {
		_, listed := slices.BinarySearch(s.again, p.pid)
		if listed && time.Since(s.began) <= s.longest && s.signal(p.fd) {
			out.signalled(1)
			s.done = append(s.done, p.pid)
			if len(m.kept)+len(m.ready) < reaped {
				m.kept = append(m.kept, p)
				s.trigger.reap(h, p.fd)
				continue
			}
		}
		unix.Close(s.batch[i].fd)
	}
	s.spares.fill()
}

// read appends the processes that a descriptor of a list names, in the order of the
// list. Those that v, where it is not nil, has signalled by no means are left out. It
// stops where there is no room for more, and reports whether it has read all.
func (s *Striker) read(m *member, list int, v *verdict, dst []int) (_ []int, all bool, err error) {
	if list < 0 {
		return dst, true, nil
	}
	pid, digits, off := 0, 0, int64(0)
	for {
		n, err := s.readText(m, list, off)
		if n <= 0 || err != nil {
			return dst, err == nil, err
		}
		off += int64(n)
		for _, c := range s.text[:n] {
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
				// It is beginning or ending. cgroup.kill reaches it, or the next
				// reading of the list.
				pid, digits = 0, 0
			case c == '\n' && digits > 0:
				return dst, false, fmt.Errorf("list processes of %s: %w", m.Cgroup, cgroup.ErrForeign)
			default:
				return dst, false, fmt.Errorf("list processes of %s: %q is no part of a pid", m.Cgroup, c)
			}
		}
	}
}

// readText reads the next part of a list into s.text and returns its length, 0 at the
// end.
func (s *Striker) readText(m *member, list int, off int64) (int, error) {
	for {
		n, err := unix.Pread(list, s.text, off)
		switch err {
		case nil:
			return n, nil
		case unix.EINTR:
		case unix.ENODEV:
			return 0, cgroup.ErrGone
		case unix.EOPNOTSUPP:
			return 0, nil // threaded: the domain above it lists its processes
		default:
			return 0, fmt.Errorf("list processes of %s: %w", m.Cgroup, err)
		}
	}
}

// live kills.
type live struct{ reaper *Reaper }

func (live) signal(fd int) error { return unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) }

func (l live) finish(h *Hold, m *member, judged bool) bool {
	return l.reaper != nil && l.reaper.finish(h, m, judged)
}

func (l live) reap(h *Hold, fd int) {
	if l.reaper != nil {
		l.reaper.add(h, fd)
	}
}

// blank signals nobody: signal 0 makes the kernel check all that it would check
// for another (kernel/signal.c: group_send_sig_info).
type blank struct{}

func (blank) signal(fd int) error              { return unix.PidfdSendSignal(fd, 0, nil, 0) }
func (blank) finish(*Hold, *member, bool) bool { return true }
func (blank) reap(*Hold, int)                  {}
