package probe

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
)

// errNoTree stands for the reason that the first feature gives.
var errNoTree = errors.New("no cgroup tree carries memory")

// cgroupTree tells which tree carries the memory controller.
func cgroupTree(h *cgroup.Hierarchy, err error) Feature {
	const name = "cgroup"
	if errors.Is(err, kernel.ErrUnavailable) {
		return no(name, err.Error(), "the memory controller (a kernel without cgroup_disable=memory), and its tree mounted here")
	}
	if err != nil {
		return unknown(name, err)
	}
	detail := fmt.Sprintf("%s: memory is in %s", h.Version, h.Memory)
	if h.Version == cgroup.Hybrid {
		detail += fmt.Sprintf(", beside a v2 tree in %s", h.Unified)
	}
	f := yes(name, detail)
	if h.Nested() {
		f.Detail += ", which is not the root of the node's cgroups"
		f.Missing = "the host's cgroup namespace, or its tree mounted here: this one shows a part of the node"
	}
	return f
}

// kubepods looks for the cgroup above a kubelet's pods.
func kubepods(h *cgroup.Hierarchy, err error) Feature {
	const name = "kubepods"
	if err != nil {
		return unknown(name, errNoTree)
	}
	k, found, err := h.Kubepods("/")
	switch {
	case err != nil:
		return unknown(name, err)
	case !found:
		return no(name, "no kubelet has made one under /: allocatableMemory.available does not apply", "")
	}
	return yes(name, fmt.Sprintf("%s, named by the %s driver", k.Path, k.Driver))
}

// ownCgroup tells whether this process finds itself in the tree that it reads,
// without which that may be the tree of another.
func ownCgroup(h *cgroup.Hierarchy, err error) Feature {
	const (
		name    = "own cgroup"
		missing = "the host's cgroup tree mounted here, and the host's pid namespace (hostPID)"
	)
	if err != nil {
		return unknown(name, errNoTree)
	}
	paths, err := h.FindPID(os.Getpid())
	switch {
	case err != nil:
		return unknown(name, err)
	case len(paths) == 0:
		return no(name, fmt.Sprintf("no cgroup in %s lists pid %d", h.Memory, os.Getpid()), missing)
	case len(paths) > 1:
		return no(name, fmt.Sprintf("pid %d is listed by several cgroups: %s", os.Getpid(), strings.Join(paths, ", ")), missing)
	}
	return yes(name, paths[0])
}

// cgroupKill looks for cgroup.kill (Linux 5.14) in the tree that carries memory.
func cgroupKill(h *cgroup.Hierarchy, err error) Feature {
	const name = "cgroup.kill"
	if err != nil {
		return unknown(name, errNoTree)
	}
	if h.Version != cgroup.V2 {
		return no(name, "memory is in a v1 tree: processes are killed one by one", "cgroup v2")
	}
	return orderFile(h, name, "Linux 5.14")
}

// freezer looks for what stops a cgroup's processes.
func freezer(h *cgroup.Hierarchy, err error) Feature {
	const name = "freezer"
	if err != nil {
		return unknown(name, errNoTree)
	}
	if h.Version == cgroup.V2 {
		f := orderFile(h, "cgroup.freeze", "Linux 5.2")
		f.Name = name
		return f
	}
	if h.Freezer == "" {
		return no(name, "the v1 freezer is not mounted", "a mount of it beside the memory controller")
	}
	return writable(name, h.Freezer.Path("cgroup.procs"))
}

// orderFile looks for a file that every v2 cgroup has but the root of them all.
func orderFile(h *cgroup.Hierarchy, file, since string) Feature {
	entries, err := os.ReadDir(string(h.Memory))
	if err != nil {
		return unknown(file, err)
	}
	dirs := []string{"."} // the root of a part of the tree has it
	for _, e := range entries {
		if e.IsDir() {
			dirs = append(dirs, e.Name())
		}
	}
	looked := false
	for _, dir := range dirs {
		f := writable(file, h.Memory.Path(dir, file))
		if f.Supported != No || f.Missing != "" {
			return f
		}
		// A cgroup that went meanwhile lacks it too.
		if _, err := os.Stat(h.Memory.Path(dir, "cgroup.procs")); err == nil && dir != "." {
			looked = true
		}
	}
	if !looked {
		return unknown(file, fmt.Errorf("there is no cgroup below %s to look for it", h.Memory))
	}
	return no(file, "no cgroup has it", since)
}

// writable tells whether a file can be written, without opening it. A missing one
// is a No without a remedy.
func writable(name, path string) Feature {
	err := unix.Faccessat(unix.AT_FDCWD, path, unix.W_OK, unix.AT_EACCESS)
	switch {
	case err == nil:
		return yes(name, path)
	case errors.Is(err, fs.ErrNotExist):
		return no(name, path+" is not there", "")
	case errors.Is(err, fs.ErrPermission), errors.Is(err, unix.EROFS):
		return no(name, fmt.Sprintf("%s: %v", path, err), "the tree mounted read-write, and root or CAP_DAC_OVERRIDE")
	}
	return unknown(name, &os.PathError{Op: "access", Path: path, Err: err})
}
