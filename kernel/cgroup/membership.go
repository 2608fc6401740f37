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

// Membership is the cgroup of a process in each hierarchy.
type Membership []Entry

// Entry is the cgroup of a process in one hierarchy.
type Entry struct {
	// Hierarchy is 0 for v2, and the hierarchy ID of /proc/cgroups for v1.
	Hierarchy int
	// Controllers are those of a v1 hierarchy, or a name such as "name=systemd".
	// It is empty for v2.
	Controllers []string
	// Path is relative to the root of this process's cgroup namespace, which can
	// differ from the root of a mount.
	Path string
	// Deleted means that the v2 cgroup was removed while the process, now a zombie,
	// was in it. A cgroup whose name ends in " (deleted)" reads the same.
	Deleted bool
}

// ReadMembership reads /proc/PID/cgroup. It fails with [fs.ErrNotExist] if there is no such
// process. For an exiting process or a zombie, the kernel prints "/" in every v1
// hierarchy: "/" is the cgroup only of a process that is alive.
func ReadMembership(proc kernel.FS, pid int) (Membership, error) {
	b, err := os.ReadFile(proc.Path(strconv.Itoa(pid), "cgroup"))
	if errors.Is(err, unix.ESRCH) { // it exited between open and read
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

// MemoryPath returns the path of the cgroup in the memory controller's hierarchy. It
// fails with [ErrOutsideNamespace] if that is outside the cgroup namespace, and with
// [ErrGone] if it was removed.
func (m Membership) MemoryPath(h *Hierarchy) (string, error) {
	i := slices.IndexFunc(m, func(e Entry) bool {
		if h.v1() {
			return slices.Contains(e.Controllers, "memory")
		}
		return e.Hierarchy == 0
	})
	if i < 0 {
		return "", fmt.Errorf("process has no cgroup in the memory controller's %s hierarchy", h.Version)
	}
	e := m[i]
	if e.Path == "/.." || strings.HasPrefix(e.Path, "/../") {
		return "", fmt.Errorf("cgroup path %q: %w", e.Path, ErrOutsideNamespace)
	}
	if e.Deleted {
		return "", fmt.Errorf("cgroup path %q: %w", e.Path, ErrGone)
	}
	return e.Path, nil
}
