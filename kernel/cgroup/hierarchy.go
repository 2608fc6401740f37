package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/process"
)

// Version is the version of the cgroup hierarchies of a node.
type Version int

// The versions. A hybrid node has a v2 hierarchy too, but its memory controller is
// on v1.
const (
	V1 Version = iota + 1
	V2
	Hybrid
)

func (v Version) String() string {
	switch v {
	case V1:
		return "v1"
	case V2:
		return "v2"
	case Hybrid:
		return "hybrid"
	}
	return fmt.Sprintf("Version(%d)", int(v))
}

// Hierarchy is the cgroup hierarchy of the memory controller, and the other
// hierarchies that are used with it. Paths of cgroups are below its root, as in
// /proc/PID/cgroup: "/kubepods/pod1".
type Hierarchy struct {
	Version Version
	Memory  kernel.FS // root of the memory controller's hierarchy
	Freezer kernel.FS // root of the v1 freezer; "" on V2 and if it is not mounted
	Pids    kernel.FS // root of the v1 pids controller; "" on V2 and if it is not mounted
	Unified kernel.FS // root of the v2 hierarchy; "" if there is none

	nested    bool
	initPIDNS bool // this process is in the initial pid namespace
}

// InInitPIDNamespace reports whether this process is in the initial pid namespace. Every
// process has a pid there, so a 0 in a list of v2 is a process that starts or
// exits, and not one of another namespace: the kernel lists it while it has no pid
// (kernel/fork.c: copy_process, kernel/exit.c: __unhash_process).
func (h *Hierarchy) InInitPIDNamespace() bool { return h.initPIDNS }

// Find returns the hierarchy of the memory controller below a directory where
// cgroup filesystems are mounted, normally /sys/fs/cgroup. It fails with
// [kernel.ErrUnavailable] if there is none; the error names the files that are
// missing.
func Find(root kernel.FS) (*Hierarchy, error) {
	h, err := find(root)
	if err != nil {
		return nil, fmt.Errorf("find cgroup memory controller: %w", err)
	}
	if h.nested, err = nested(h.Memory); err != nil {
		return nil, fmt.Errorf("find cgroup memory controller: %w", err)
	}
	// This is always the namespace of this process, even if other processes are
	// read from another procfs. If it can't be read, a 0 counts as a process of
	// another namespace.
	own, err := os.Readlink("/proc/self/ns/pid")
	h.initPIDNS = err == nil && own == process.InitPIDNamespace
	return h, nil
}

func find(root kernel.FS) (*Hierarchy, error) {
	// The v2 mount is checked first, because a cgroup below it may be named
	// "memory".
	if ok, err := hasMemory(root); err != nil {
		return nil, err
	} else if ok {
		return &Hierarchy{Version: V2, Memory: root, Unified: root}, nil
	}

	const unifiedDir = "unified"
	unified := kernel.FS("")
	if ok, err := exists(root.Path(unifiedDir, "cgroup.controllers")); err != nil {
		return nil, err
	} else if ok {
		unified = kernel.FS(root.Path(unifiedDir))
	}
	if ok, err := exists(root.Path("memory", "memory.usage_in_bytes")); err != nil {
		return nil, err
	} else if ok {
		h := &Hierarchy{Version: V1, Memory: kernel.FS(root.Path("memory")), Unified: unified}
		if unified != "" {
			h.Version = Hybrid
		}
		if h.Freezer, err = controller(root, "freezer"); err != nil {
			return nil, err
		}
		if h.Pids, err = controller(root, "pids"); err != nil {
			return nil, err
		}
		return h, nil
	}

	// cgroup_no_v1=memory moves memory to v2 and leaves the other controllers on v1.
	if unified != "" {
		if ok, err := hasMemory(unified); err != nil {
			return nil, err
		} else if ok {
			return &Hierarchy{Version: V2, Memory: unified, Unified: unified}, nil
		}
	}
	return nil, fmt.Errorf("%w: neither %s (v2) nor %s lists memory, and there is no %s (v1)", kernel.ErrUnavailable,
		root.Path("cgroup.controllers"), root.Path(unifiedDir, "cgroup.controllers"), root.Path("memory", "memory.usage_in_bytes"))
}

// hasMemory reports whether cgroup.controllers of a v2 root, such as
// "cpuset cpu io memory pids", lists memory. A missing file is not an error.
func hasMemory(root kernel.FS) (bool, error) {
	b, err := os.ReadFile(root.Path("cgroup.controllers"))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return slices.Contains(strings.Fields(string(b)), "memory"), nil
}

// controller returns the root of a v1 controller, or "" if it is not mounted.
func controller(root kernel.FS, name string) (kernel.FS, error) {
	ok, err := exists(root.Path(name, "cgroup.procs"))
	if !ok || err != nil {
		return "", err
	}
	return kernel.FS(root.Path(name)), nil
}

func exists(name string) (bool, error) {
	_, err := os.Stat(name)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return false, nil
	}
	return err == nil, err
}

// nested reports whether a directory is a cgroup below the kernel's root, whose
// inode number is 1 on each cgroup filesystem. A directory on another filesystem
// is a test's copy and counts as the root.
func nested(root kernel.FS) (bool, error) {
	var filesystem unix.Statfs_t
	if err := unix.Statfs(string(root), &filesystem); err != nil {
		return false, &os.PathError{Op: "statfs", Path: string(root), Err: err}
	}
	if int64(filesystem.Type) != unix.CGROUP_SUPER_MAGIC && int64(filesystem.Type) != unix.CGROUP2_SUPER_MAGIC {
		return false, nil
	}
	var st unix.Stat_t
	if err := unix.Stat(string(root), &st); err != nil {
		return false, &os.PathError{Op: "stat", Path: string(root), Err: err}
	}
	return st.Ino != 1, nil
}

// Nested reports whether the root is that of a container or a cgroup namespace
// and not the kernel's. Such a hierarchy shows only a part of the node.
func (h *Hierarchy) Nested() bool { return h.nested }

// v1 reports whether the memory controller is on v1.
func (h *Hierarchy) v1() bool { return h.Version != V2 }

// clean returns the clean form of a cgroup path. It fails for a path that leads
// outside the hierarchy, and for an empty one: a path that was never set must not
// refer to the root.
func clean(name string) (string, error) {
	if !strings.HasPrefix(name, "/") {
		return "", fmt.Errorf("cgroup path %q is not absolute", name)
	}
	if slices.Contains(strings.Split(name, "/"), "..") {
		return "", fmt.Errorf("cgroup path %q: %w", name, ErrOutsideNamespace)
	}
	if strings.ContainsRune(name, 0) {
		return "", fmt.Errorf("cgroup path %q has a NUL", name)
	}
	return path.Clean(name), nil
}
