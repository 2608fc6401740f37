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

// maxCgroups bounds a walk over the whole tree, many times what a node has.
const maxCgroups = 1 << 17

// FindPID reads cgroup.procs of every cgroup of the tree that carries memory and
// returns the paths of those that list the pid. Unlike /proc/PID/cgroup, which
// speaks of the namespace, that proves which cgroup of this tree it is. One path
// is what should be found: with none, the tree is another than the process's,
// and with more, something moved or the tree is none of the kernel's.
//
// The kernel translates pids into those of the reader's namespace, so a pid that
// is found is the node's only where that is the node's pid namespace.
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
			return nil // threaded: its processes are listed above
		}
		if slices.Contains(pids, pid) {
			found = append(found, path.Join("/", rel))
		}
		if errors.Is(err, ErrForeign) {
			return nil
		}
		return err
	})
	return found, err
}

// Driver is how the kubelet names cgroups.
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

// Kubepods is the cgroup above all pods.
type Kubepods struct {
	Path   string // below the root of the tree that carries memory
	Driver Driver
}

// Kubepods looks for the cgroup above all pods under the kubelet's cgroupRoot
// ("" and "/" are the root), by the names of both drivers. It returns false where
// there is none, as on a node without a kubelet. A node that changed its driver
// has both until it boots: the one with processes counts, and if both have some,
// or neither has, that is an error.
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
		// A cgroupRoot in systemd's own notation: /foo.slice.
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

// populated returns the only one that has processes.
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
		return Kubepods{}, fmt.Errorf("%s and %s are both there, and %d of them have processes", of[0].Path, of[1].Path, len(found))
	}
	return found[0], nil
}

// systemdPath returns the path of kubepods below a root as the kubelet's systemd
// driver spells it: /a/b-c becomes /a.slice/a-b_c.slice/a-b_c-kubepods.slice.
func systemdPath(root string) string {
	name, slices := "", "/"
	for part := range strings.SplitSeq(strings.Trim(root+"/kubepods", "/"), "/") {
		if part == "" {
			continue
		}
		if name != "" {
			name += "-"
		}
		name += strings.ReplaceAll(part, "-", "_")
		slices = path.Join(slices, name+".slice")
	}
	return slices
}

func isDir(name string) (bool, error) {
	st, err := os.Stat(name)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return false, nil
	}
	return err == nil && st.IsDir(), err
}
