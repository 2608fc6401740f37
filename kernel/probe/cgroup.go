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

// errNoHierarchy is the error of the features that need a hierarchy. The feature
// "cgroup" has the reason.
var errNoHierarchy = errors.New("no cgroup hierarchy of the memory controller")

// hierarchy reports the cgroup hierarchy of the memory controller.
func hierarchy(h *cgroup.Hierarchy, err error) Feature {
	const name = "cgroup"
	if errors.Is(err, kernel.ErrUnavailable) {
		return no(name, err.Error(), "the memory controller (a kernel without cgroup_disable=memory), and its hierarchy mounted here")
	}
	if err != nil {
		return unknown(name, err)
	}
	detail := fmt.Sprintf("%s: memory is in %s", h.Version, h.Memory)
	if h.Version == cgroup.Hybrid {
		detail += fmt.Sprintf(", a v2 hierarchy in %s", h.Unified)
	}
	f := yes(name, detail)
	if h.Nested() {
		f.Detail += ", which is not the root of the node's cgroups"
		f.Missing = "the host's cgroup namespace, or its hierarchy mounted here: this one shows a part of the node"
	}
	return f
}

// kubepods reports the parent cgroup of a kubelet's pods.
func kubepods(h *cgroup.Hierarchy, err error) Feature {
	const name = "kubepods"
	if err != nil {
		return unknown(name, errNoHierarchy)
	}
	k, found, err := h.Kubepods("/")
	switch {
	case err != nil:
		return unknown(name, err)
	case !found:
		return no(name, "no kubelet has created one under /: allocatableMemory.available does not apply", "")
	}
	return yes(name, fmt.Sprintf("%s, named by the %s driver", k.Path, k.Driver))
}

// ownCgroup checks that exactly one cgroup of the hierarchy lists this process. If
// none does, the hierarchy may be that of another namespace.
func ownCgroup(h *cgroup.Hierarchy, err error) Feature {
	const (
		name    = "own cgroup"
		missing = "the host's cgroup hierarchy mounted here, and the host's pid namespace (hostPID)"
	)
	if err != nil {
		return unknown(name, errNoHierarchy)
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

// cgroupKill checks for cgroup.kill (Linux 5.14) in the memory controller's
// hierarchy.
func cgroupKill(h *cgroup.Hierarchy, err error) Feature {
	const name = "cgroup.kill"
	if err != nil {
		return unknown(name, errNoHierarchy)
	}
	if h.Version != cgroup.V2 {
		return no(name, "the memory controller is on v1: processes are killed one by one", "cgroup v2")
	}
	return controlFile(h, name, "Linux 5.14")
}

// freezer checks for the v2 or v1 freezer.
func freezer(h *cgroup.Hierarchy, err error) Feature {
	const name = "freezer"
	if err != nil {
		return unknown(name, errNoHierarchy)
	}
	if h.Version == cgroup.V2 {
		f := controlFile(h, "cgroup.freeze", "Linux 5.2")
		f.Name = name
		return f
	}
	if h.Freezer == "" {
		return no(name, "the v1 freezer is not mounted", "a mount of it next to the memory controller")
	}
	return writable(name, h.Freezer.Path("cgroup.procs"))
}

// controlFile checks for a file that every v2 cgroup has except the kernel's root.
func controlFile(h *cgroup.Hierarchy, file, since string) Feature {
	entries, err := os.ReadDir(string(h.Memory))
	if err != nil {
		return unknown(file, err)
	}
	dirs := []string{"."} // the root of a nested hierarchy has the file
	for _, e := range entries {
		if e.IsDir() {
			dirs = append(dirs, e.Name())
		}
	}
	found := false // a cgroup that could have the file
	for _, dir := range dirs {
		f := writable(file, h.Memory.Path(dir, file))
		if f.Supported != No || f.Missing != "" {
			return f
		}
		// A cgroup that was removed during the search does not count.
		if _, err := os.Stat(h.Memory.Path(dir, "cgroup.procs")); err == nil && dir != "." {
			found = true
		}
	}
	if !found {
		return unknown(file, fmt.Errorf("no cgroup below %s to check", h.Memory))
	}
	return no(file, "no cgroup has it", since)
}

// writable checks whether this process may write a file, without opening it. For a
// missing file it returns No without Missing.
func writable(name, path string) Feature {
	err := unix.Faccessat(unix.AT_FDCWD, path, unix.W_OK, unix.AT_EACCESS)
	switch {
	case err == nil:
		return yes(name, path)
	case errors.Is(err, fs.ErrNotExist):
		return no(name, path+" does not exist", "")
	case errors.Is(err, fs.ErrPermission), errors.Is(err, unix.EROFS):
		return no(name, fmt.Sprintf("%s: %v", path, err), "the hierarchy mounted read-write, and root or CAP_DAC_OVERRIDE")
	}
	return unknown(name, &os.PathError{Op: "access", Path: path, Err: err})
}
