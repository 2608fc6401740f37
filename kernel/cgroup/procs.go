package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"path"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel/internal/sys"
	"github.com/evictd/evictd/kernel/internal/text"
)

// Procs returns the pids of the processes in the subtree, sorted and each once,
// in the storage of dst. For a cgroup without others below it, and a dst that is
// long enough, it allocates little. A process that can't be named from here is
// [ErrForeign] on v2, unless [Hierarchy.NamesAll]; on v1 the kernel leaves it out.
//
// Processes may fork and move while the list is read: what is done to them has to
// be repeated until the list is empty.
func (c *Cgroup) Procs(dst []int) ([]int, error) {
	dst, err := c.h.listProcs(c.dir, dst[:0])
	if err != nil {
		return dst[:0], c.failed("list processes", err)
	}
	return dst, nil
}

// WalkProcs calls visit for the cgroup (".") and for each below it, a parent before its
// children, with the pids of the processes in that one alone, sorted, until visit returns
// false or an error. The list is valid during the call. However many cgroups there are,
// each is read once.
func (c *Cgroup) WalkProcs(visit func(rel string, pids []int) (more bool, err error)) error {
	var pids []int
	err := walk(c.dir, func(rel string) (err error) {
		if pids, err = c.h.readProcs(c.dir, rel, pids[:0]); err != nil {
			return err
		}
		slices.Sort(pids)
		pids = slices.Compact(pids)
		more, err := visit(rel, pids)
		if err == nil && !more {
			return errStop
		}
		return err
	})
	if err != nil {
		return c.failed("list processes", err)
	}
	return nil
}

// ProcsOf returns the pids of the processes in one cgroup of the subtree alone, by its
// path as WalkProcs gives it, sorted. One that has gone has none.
func (c *Cgroup) ProcsOf(rel string, dst []int) ([]int, error) {
	dst, err := c.h.readProcs(c.dir, rel, dst[:0])
	if err != nil && rel != "." && removed(err) {
		return dst[:0], nil
	}
	if err != nil {
		return dst[:0], c.failed("list processes", err)
	}
	slices.Sort(dst)
	return slices.Compact(dst), nil
}

// Leaf reports whether there is no cgroup below this one for certain.
func (c *Cgroup) Leaf() bool { return isLeaf(c.dir) }

// FreezerProcs lists, as [Cgroup.Procs] does, whom [Cgroup.Freeze] would stop: on
// v1 those of the freezer's cgroup of the same path, which may be others.
func (c *Cgroup) FreezerProcs(dst []int) ([]int, error) {
	if !c.h.v1() {
		return c.Procs(dst)
	}
	dst = dst[:0]
	if c.freezer == nil {
		return dst, c.failed("list processes", c.noFreezer())
	}
	dst, err := c.h.listProcs(c.freezer, dst)
	if err != nil {
		return dst[:0], c.failed("list processes", c.ofFreezer(err))
	}
	return dst, nil
}

// listProcs appends the pids of a cgroup and of all below it, and sorts them.
func (h *Hierarchy) listProcs(dir *sys.FD, dst []int) ([]int, error) {
	err := walk(dir, func(rel string) (err error) {
		dst, err = h.readProcs(dir, rel, dst)
		return err
	})
	slices.Sort(dst)
	return slices.Compact(dst), err
}

// zeroRereads is how often a list is read again at once because a process in it
// had no number. In a fork storm the next list may have another such process.
const zeroRereads = 3

// readProcs appends the pids of one cgroup.
func (h *Hierarchy) readProcs(dir *sys.FD, rel string, dst []int) ([]int, error) {
	got, err := h.readList(dir, path.Join(rel, "cgroup.procs"), dst)
	if errors.Is(err, unix.EOPNOTSUPP) && rel != "." {
		// The threads of a threaded cgroup are those of processes that the domain
		// above it lists. That one is in this subtree too.
		return dst, nil
	}
	return got, err
}

// readList appends the numbers of a list. In the first pid namespace an entry
// without a number is skipped, and the list is read again, because a process that
// was beginning has a number by then.
//
// Each reading opens the list anew: v1 keeps that of an open file for a second
// after each reading (kernel/cgroup/cgroup-v1.c: cgroup_pidlist_start), so that a
// descriptor that is held misses what was forked since; and where two read one open
// file, each starts the list again below the other, who then goes on in the middle
// of a number.
func (h *Hierarchy) readList(dir *sys.FD, name string, dst []int) ([]int, error) {
	for reread := 0; ; reread++ {
		fd, err := dir.OpenAt(name, unix.O_RDONLY)
		if err != nil {
			return dst, err
		}
		got, err := readPIDs(fd, dst)
		fd.Close()
		if !h.namesAll || !errors.Is(err, ErrForeign) {
			return got, err
		}
		if reread == zeroRereads {
			return got, nil
		}
	}
}

// readPIDs appends the numbers of a file with one on each line. It reads on
// after a process that has no number here, and then returns [ErrForeign].
func readPIDs(fd *sys.FD, dst []int) ([]int, error) {
	var buf [4 << 10]byte
	foreign := false
	kept, off := 0, int64(0)
	for {
		n, err := fd.ReadAt(buf[kept:], off)
		if err != nil {
			return dst, err
		}
		if n == 0 && kept > 0 {
			return dst, fmt.Errorf("list of pids: %w", text.ErrCut)
		}
		if n == 0 && foreign {
			return dst, ErrForeign
		}
		if n == 0 {
			return dst, nil
		}
		off += int64(n)
		var rest []byte
		if dst, rest, err = parsePIDs(buf[:kept+n], dst); errors.Is(err, ErrForeign) {
			foreign = true
		} else if err != nil {
			return dst, err
		}
		if kept = copy(buf[:], rest); kept == len(buf) {
			return dst, fmt.Errorf("list of pids: %w", sys.ErrTooLong)
		}
	}
}

// parsePIDs appends the numbers of the whole lines in b, and returns what
// follows them. With [ErrForeign], which stands for zeros among them, it still
// returns all.
func parsePIDs(b []byte, dst []int) (pids []int, rest []byte, err error) {
	var foreign error
	for {
		line, rest, err := text.Line(b)
		if err != nil {
			return dst, b, foreign
		}
		pid, err := text.Uint(line)
		if err == nil && pid > maxPID {
			err = text.ErrRange
		}
		if err != nil {
			return dst, nil, fmt.Errorf("list of pids: %w: %q", err, bytes.Clone(line))
		}
		b = rest
		// A 0 would be signalled as our own process group.
		if pid == 0 {
			foreign = ErrForeign
			continue
		}
		dst = append(dst, int(pid))
	}
}

// maxPID is PID_MAX_LIMIT of 64-bit kernels.
const maxPID = 4 << 20

// Populated reports whether a process is in the subtree; on v1, whether one is
// that can be named from here. The root always is.
func (c *Cgroup) Populated() (bool, error) {
	if c.events != nil {
		populated, err := c.event("populated")
		if err != nil {
			return false, c.failed("read events", err)
		}
		return populated, nil
	}
	if c.path == "/" {
		return true, nil
	}
	populated := false
	var pids []int
	err := walk(c.dir, func(rel string) (err error) {
		pids, err = c.h.readProcs(c.dir, rel, pids[:0])
		if err == nil && len(pids) > 0 || errors.Is(err, ErrForeign) {
			populated = true
			return errStop
		}
		return err
	})
	if err != nil {
		return false, c.failed("list processes", err)
	}
	return populated, nil
}

// event reads one flag of cgroup.events:
//
//	populated 1
//	frozen 0
func (c *Cgroup) event(key string) (bool, error) {
	var buf [256]byte
	b, err := c.events.Read(buf[:])
	if err != nil {
		return false, err
	}
	return parseEvent(b, key)
}

func parseEvent(b []byte, key string) (bool, error) {
	for len(b) > 0 {
		line, rest, err := text.Line(b)
		if err != nil {
			return false, fmt.Errorf("cgroup.events: %w", err)
		}
		b = rest
		k, value, _ := bytes.Cut(line, []byte{' '})
		if string(k) != key {
			continue
		}
		switch string(value) {
		case "0":
			return false, nil
		case "1":
			return true, nil
		}
		return false, fmt.Errorf("cgroup.events: %s is %q, not 0 or 1", key, bytes.Clone(value))
	}
	return false, fmt.Errorf("cgroup.events: no line for %q", key)
}

// Children returns the names of the cgroups right below, sorted.
func (c *Cgroup) Children() ([]string, error) {
	names, err := subdirectories(c.dir, ".")
	if err != nil {
		return nil, c.failed("list children", err)
	}
	slices.Reverse(names)
	return names, nil
}

// Tasks returns how many threads are in the subtree: what the pids controller
// counts where it is on, which on v1 is for its own cgroup of the same path,
// else a count of the lists of threads.
func (c *Cgroup) Tasks() (uint64, error) {
	n, err := c.tasks()
	if err != nil {
		return 0, c.failed("count tasks", err)
	}
	return n, nil
}

func (c *Cgroup) tasks() (uint64, error) {
	if c.pids != nil {
		var buf [64]byte
		return readUint(c.pids, buf[:])
	}
	file := "tasks"
	if !c.h.v1() {
		file = "cgroup.threads"
	}
	n := uint64(0)
	var tids []int
	err := walk(c.dir, func(rel string) error {
		var err error
		tids, err = c.h.readList(c.dir, path.Join(rel, file), tids[:0])
		n += uint64(len(tids))
		return err
	})
	return n, err
}
