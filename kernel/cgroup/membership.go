package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel"
)

// Membership is where a process is: one entry for each hierarchy.
type Membership []Entry

// Entry is the cgroup of a process in one hierarchy.
type Entry struct {
	// Hierarchy is 0 for the v2 tree, and the same number as in /proc/cgroups
	// for a v1 tree.
	Hierarchy int
	// Controllers are those of a v1 tree, or its one "name=systemd". The v2 tree
	// lists none.
	Controllers []string
	// Path is relative to the root of this process's cgroup namespace, which
	// need not be the root of a tree that was mounted elsewhere.
	Path string
	// Deleted says that the v2 cgroup was removed while the process, a zombie
	// now, was in it. A living cgroup whose name ends in " (deleted)" reads the
	// same.
	Deleted bool
}

// Of reads /proc/PID/cgroup. A process that does not exist is [fs.ErrNotExist].
// For one that is exiting, a zombie too, the kernel prints "/" in every v1 tree,
// wherever it was: the root is the cgroup only of a process that lives.
func Of(proc kernel.FS, pid int) (Membership, error) {
	b, err := os.ReadFile(proc.Path(strconv.Itoa(pid), "cgroup"))
	if errors.Is(err, unix.ESRCH) { // it went between open and read
		err = fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	}
	if err != nil {
		return nil, fmt.Errorf("read cgroups of process %d: %w", pid, err)
	}
	m, err := parseMembership(string(b))
	if err != nil {
		return nil, fmt.Errorf("read cgroups of process %d: %w", pid, err)
	}
	return m, nil
}

// parseMembership parses /proc/PID/cgroup (cgroups(7)):
//
//	9:name=systemd:/
//	4:memory:/kubepods/burstable/pod1/ctr
//	0::/system.slice/containerd.service
func parseMembership(s string) (Membership, error) {
	var m Membership
	for line := range strings.Lines(s) {
		line, ok := strings.CutSuffix(line, "\n")
		if !ok {
			return nil, fmt.Errorf("line %q is cut off", line)
		}
		id, rest, ok1 := strings.Cut(line, ":")
		controllers, path, ok2 := strings.Cut(rest, ":")
		n, err := strconv.ParseUint(id, 10, 31)
		if !ok1 || !ok2 || err != nil || !strings.HasPrefix(path, "/") {
			return nil, fmt.Errorf("line %q is not hierarchy:controllers:/path", line)
		}
		e := Entry{Hierarchy: int(n), Path: path}
		if controllers != "" {
			e.Controllers = strings.Split(controllers, ",")
		}
		if e.Hierarchy == 0 {
			e.Path, e.Deleted = strings.CutSuffix(path, " (deleted)")
		}
		m = append(m, e)
	}
	return m, nil
}

// Memory returns the path of the cgroup in the tree that carries memory. It is
// [ErrOutside] if that is beyond the cgroup namespace, and [ErrGone] if it was
// removed.
func (m Membership) Memory(h *Hierarchy) (string, error) {
	i := slices.IndexFunc(m, func(e Entry) bool {
		if h.v1() {
			return slices.Contains(e.Controllers, "memory")
		}
		return e.Hierarchy == 0
	})
	if i < 0 {
		return "", fmt.Errorf("process has no cgroup in the %s tree that carries memory", h.Version)
	}
	e := m[i]
	if e.Path == "/.." || strings.HasPrefix(e.Path, "/../") {
		return "", fmt.Errorf("cgroup path %q: %w", e.Path, ErrOutside)
	}
	if e.Deleted {
		return "", fmt.Errorf("cgroup path %q: %w", e.Path, ErrGone)
	}
	return e.Path, nil
}
