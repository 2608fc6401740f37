package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel/internal/sys"
)

// maxCgroups bounds a walk over the whole hierarchy. Nodes have a small fraction
// of that.
const maxCgroups = 1 << 17

// FindPID reads cgroup.procs of every cgroup in the memory controller's hierarchy
// and returns the paths of those that list the pid. That proves which cgroup of
// this mount the process is in, while the paths in /proc/PID/cgroup are relative to
// the cgroup namespace. Normally there is one path. With none, the process is in
// another tree; with several, the process moved or the directory is not a cgroup
// filesystem.
//
// The kernel translates pids to the reader's pid namespace, so pid is the node's
// only if this process is in the node's pid namespace.
func (h *Hierarchy) FindPID(pid int) ([]string, error) {
	paths, err := h.findPID(pid)
	if err != nil {
		return nil, fmt.Errorf("find pid %d in the cgroups of %s: %w", pid, h.Memory, err)
	}
	return paths, nil
}

func (h *Hierarchy) findPID(pid int) ([]string, error) {
	if pid <= 0 {
		return nil, errors.New("not a pid")
	}
	dir, err := sys.Open(string(h.Memory), unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	var found []string
	var pids []int
	seen := 0
	err = walk(dir, func(rel string) error {
		if seen++; seen > maxCgroups {
			return fmt.Errorf("more than %d cgroups", maxCgroups)
		}
		fd, err := dir.OpenAt(path.Join(rel, "cgroup.procs"), unix.O_RDONLY)
		if err != nil {
			return err
		}
		defer fd.Close()
		pids, err = readPIDs(fd, pids[:0])
		if errors.Is(err, unix.EOPNOTSUPP) {
			return nil // threaded: an ancestor lists its processes
		}
		if slices.Contains(pids, pid) {
			found = append(found, path.Join("/", rel))
		}
		if errors.Is(err, ErrOtherPIDNamespace) {
			return nil
		}
		return err
	})
	return found, err
}

// Driver is a kubelet's cgroup driver, which decides how it names cgroups.
type Driver int

// The drivers.
const (
	Cgroupfs Driver = iota + 1
	Systemd
)

func (d Driver) String() string {
	switch d {
	case Cgroupfs:
		return "cgroupfs"
	case Systemd:
		return "systemd"
	}
	return fmt.Sprintf("Driver(%d)", int(d))
}

// Kubepods is the parent cgroup of all pods.
type Kubepods struct {
	Path   string // below the root of the memory controller's hierarchy
	Driver Driver
}

// Kubepods finds the parent cgroup of all pods below the kubelet's cgroupRoot
// ("" and "/" are the root), by the names of both drivers. It returns false if
// there is none, as on a node without a kubelet. After a change of the driver, both
// exist until the node reboots; the one with processes is returned. It fails if
// both or neither have processes.
func (h *Hierarchy) Kubepods(cgroupRoot string) (Kubepods, bool, error) {
	k, err := h.kubepods(cgroupRoot)
	if err != nil {
		return Kubepods{}, false, fmt.Errorf("find kubepods cgroup under %q: %w", cgroupRoot, err)
	}
	return k, k != Kubepods{}, nil
}

func (h *Hierarchy) kubepods(cgroupRoot string) (Kubepods, error) {
	root, err := clean("/" + strings.TrimPrefix(cgroupRoot, "/"))
	if err != nil {
		return Kubepods{}, err
	}
	var found []Kubepods
	for _, k := range []Kubepods{
		{path.Join(root, "kubepods"), Cgroupfs},
		{systemdPath(root), Systemd},
		// A cgroupRoot in systemd's notation: /foo.slice.
		{path.Join(root, "kubepods.slice"), Systemd},
	} {
		if slices.Contains(found, k) {
			continue
		}
		if ok, err := isDir(h.Memory.Path(k.Path)); err != nil {
			return Kubepods{}, err
		} else if ok {
			found = append(found, k)
		}
	}
	if len(found) < 2 {
		return append(found, Kubepods{})[0], nil
	}
	return h.populated(found)
}

// populated returns the one cgroup that has processes. It fails if there is not
// exactly one.
func (h *Hierarchy) populated(of []Kubepods) (Kubepods, error) {
	var found []Kubepods
	for _, k := range of {
		c, err := h.Open(k.Path)
		if err != nil {
			return Kubepods{}, err
		}
		ok, err := c.Populated()
		c.Close()
		if err != nil {
			return Kubepods{}, err
		}
		if ok {
			found = append(found, k)
		}
	}
	if len(found) != 1 {
		return Kubepods{}, fmt.Errorf("%s and %s both exist, and %d of them have processes", of[0].Path, of[1].Path, len(found))
	}
	return found[0], nil
}

// systemdPath returns the path of kubepods below a root, as the kubelet's systemd
// driver converts it: /a/b-c becomes /a.slice/a-b_c.slice/a-b_c-kubepods.slice.
func systemdPath(root string) string {
	name, parent := "", "/"
	for part := range strings.SplitSeq(strings.Trim(root+"/kubepods", "/"), "/") {
		if part == "" {
			continue
		}
		if name != "" {
			name += "-"
		}
		name += strings.ReplaceAll(part, "-", "_")
		parent = path.Join(parent, name+".slice")
	}
	return parent
}

func isDir(name string) (bool, error) {
	st, err := os.Stat(name)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return false, nil
	}
	return err == nil && st.IsDir(), err
}
