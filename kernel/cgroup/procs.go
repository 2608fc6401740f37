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

// Procs returns the pids of the processes in the subtree, sorted and without
// duplicates, in the storage of dst. It allocates little for a cgroup without
// descendants if dst is large enough. v1 does not list a process without a pid in this
// pid namespace. On v2, Procs fails with [ErrOtherPIDNamespace] if there is one; if
// [Hierarchy.InInitPIDNamespace], the process is starting or exiting and is skipped.
//
// Processes may fork and move while the list is read, so callers repeat their
// operation until the list is empty.
func (c *Cgroup) Procs(dst []int) ([]int, error) {
	dst, err := c.h.listProcs(c.dir, dst[:0])
	if err != nil {
		return dst[:0], c.wrap("list processes", err)
	}
	return dst, nil
}

// WalkProcs calls visit for the cgroup (".") and for each descendant, parents first,
// with the sorted pids of the processes in that cgroup alone, until visit returns false
// or an error. pids is valid during the call only. Each cgroup is read once.
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
		return c.wrap("list processes", err)
	}
	return nil
}

// ProcsOf returns the sorted pids of the processes in one cgroup of the subtree alone.
// rel is its path as in WalkProcs. A descendant that was removed has none.
func (c *Cgroup) ProcsOf(rel string, dst []int) ([]int, error) {
	dst, err := c.h.readProcs(c.dir, rel, dst[:0])
	if err != nil && rel != "." && removed(err) {
		return dst[:0], nil
	}
	if err != nil {
		return dst[:0], c.wrap("list processes", err)
	}
	slices.Sort(dst)
	return slices.Compact(dst), nil
}

// Leaf reports whether this cgroup certainly has no child. It returns false if that
// can't be read.
func (c *Cgroup) Leaf() bool { return isLeaf(c.dir) }

// FreezerProcs returns the pids of the processes that [Cgroup.Freeze] freezes, as
// [Cgroup.Procs] does: on v1 those of the freezer cgroup of the same path, which may
// contain other processes than the memory cgroup.
func (c *Cgroup) FreezerProcs(dst []int) ([]int, error) {
	if !c.h.v1() {
		return c.Procs(dst)
	}
	dst = dst[:0]
	if c.freezer == nil {
		return dst, c.wrap("list processes", c.noFreezer())
	}
	dst, err := c.h.listProcs(c.freezer, dst)
	if err != nil {
		return dst[:0], c.wrap("list processes", c.freezerError(err))
	}
	return dst, nil
}

// listProcs appends the pids of a cgroup and its descendants, and sorts them.
func (h *Hierarchy) listProcs(dir *sys.FD, dst []int) ([]int, error) {
	err := walk(dir, func(rel string) (err error) {
		dst, err = h.readProcs(dir, rel, dst)
		return err
	})
	slices.Sort(dst)
	return slices.Compact(dst), err
}

// zeroRereads is how often a list is read again because a process in it had no pid.
// It is bounded because in a fork storm every list may have such a process.
const zeroRereads = 3

// readProcs appends the pids of one cgroup.
func (h *Hierarchy) readProcs(dir *sys.FD, rel string, dst []int) ([]int, error) {
	got, err := h.readList(dir, path.Join(rel, "cgroup.procs"), dst)
	if errors.Is(err, unix.EOPNOTSUPP) && rel != "." {
		// The threads of a threaded cgroup belong to processes that its domain
		// cgroup lists, which is in this subtree too.
		return dst, nil
	}
	return got, err
}

// readList appends the numbers of a list of pids or tids. In the initial pid
// namespace, an entry of 0 is a process that is starting or exiting. It is skipped,
// and the list is read again up to zeroRereads times: a process that was starting may
// have its pid at the next reading.
//
// Each read opens the file again: v1 caches the list of an open file for a second
// after each read (kernel/cgroup/cgroup-v1.c: cgroup_pidlist_start), so a descriptor
// that stays open misses later forks. With a shared descriptor, each reader would
// also restart the list of the other one, which would then continue in the middle of
// a number.
func (h *Hierarchy) readList(dir *sys.FD, name string, dst []int) ([]int, error) {
	for reread := 0; ; reread++ {
		fd, err := dir.OpenAt(name, unix.O_RDONLY)
		if err != nil {
			return dst, err
		}
		got, err := readPIDs(fd, dst)
		fd.Close()
		if !h.initPIDNS || !errors.Is(err, ErrOtherPIDNamespace) {
			return got, err
		}
		if reread == zeroRereads {
			return got, nil
		}
	}
}

// readPIDs appends the numbers of a file with one pid or tid per line. It skips a
// process without a pid in this namespace, reads to the end, and then returns
// [ErrOtherPIDNamespace].
func readPIDs(fd *sys.FD, dst []int) ([]int, error) {
	var buf [4 << 10]byte
	otherNS := false
	kept, off := 0, int64(0)
	for {
		n, err := fd.ReadAt(buf[kept:], off)
		if err != nil {
			return dst, err
		}
		if n == 0 && kept > 0 {
			return dst, fmt.Errorf("list of pids or tids: %w", text.ErrCut)
		}
		if n == 0 && otherNS {
			return dst, ErrOtherPIDNamespace
		}
		if n == 0 {
			return dst, nil
		}
		off += int64(n)
		var rest []byte
		if dst, rest, err = parsePIDs(buf[:kept+n], dst); errors.Is(err, ErrOtherPIDNamespace) {
			otherNS = true
		} else if err != nil {
			return dst, err
		}
		if kept = copy(buf[:], rest); kept == len(buf) {
			return dst, fmt.Errorf("list of pids or tids: %w", sys.ErrTooLong)
		}
	}
}

// parsePIDs appends the numbers of the complete lines in b, and returns the rest.
// ErrOtherPIDNamespace means that some of them are 0; the others are returned with it.
func parsePIDs(b []byte, dst []int) (pids []int, rest []byte, err error) {
	var otherNS error
	for {
		line, rest, err := text.Line(b)
		if err != nil {
			return dst, b, otherNS
		}
		pid, err := text.Uint(line)
		if err == nil && pid > maxPID {
			err = text.ErrRange
		}
		if err != nil {
			return dst, nil, fmt.Errorf("list of pids or tids: %w: %q", err, bytes.Clone(line))
		}
		b = rest
		// kill(0) would signal evictd's own process group.
		if pid == 0 {
			otherNS = ErrOtherPIDNamespace
			continue
		}
		dst = append(dst, int(pid))
	}
}

// maxPID is PID_MAX_LIMIT of 64-bit kernels.
const maxPID = 4 << 20

// Populated reports whether the subtree contains a process; on v1, one with a pid
// in this pid namespace. The root is always populated.
func (c *Cgroup) Populated() (bool, error) {
	if c.events != nil {
		populated, err := c.event("populated")
		if err != nil {
			return false, c.wrap("read events", err)
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
		if err == nil && len(pids) > 0 || errors.Is(err, ErrOtherPIDNamespace) {
			populated = true
			return errStop
		}
		return err
	})
	if err != nil {
		return false, c.wrap("list processes", err)
	}
	return populated, nil
}

// EventsFD returns the descriptor of cgroup.events (v2), which reports EPOLLPRI when the result
// of Populated has changed since it was read, at most once in 10 ms. The descriptor is valid until
// Close. EventsFD returns -1 on v1, for the root, and after Close.
func (c *Cgroup) EventsFD() int {
	n := -1
	_ = c.events.Use(func(fd int) error { n = fd; return nil })
	return n
}

// event reads one key of cgroup.events:
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

// Children returns the names of the child cgroups, sorted.
func (c *Cgroup) Children() ([]string, error) {
	names, err := subdirectories(c.dir, ".")
	if err != nil {
		return nil, c.wrap("list children", err)
	}
	slices.Reverse(names) // subdirectories returns them in reverse order
	return names, nil
}

// Tasks returns the number of threads in the subtree. It reads pids.current if the
// pids controller is on (on v1, that of the pids cgroup of the same path), and
// counts the entries of the thread lists otherwise.
func (c *Cgroup) Tasks() (uint64, error) {
	n, err := c.tasks()
	if err != nil {
		return 0, c.wrap("count tasks", err)
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
