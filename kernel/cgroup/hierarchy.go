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
)

// Version says which trees a node has.
type Version int

// The versions. A hybrid node has a v2 tree too, but its memory controller is
// in v1.
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

// Hierarchy is the tree of cgroups that carries the memory controller, and the
// trees beside it. The paths of cgroups are those below its root, as
// /proc/PID/cgroup has them: "/kubepods/pod1".
type Hierarchy struct {
	Version Version
	Memory  kernel.FS // root of the tree that carries memory
	Freezer kernel.FS // root of the v1 freezer; "" on V2, and where it is not mounted
	Pids    kernel.FS // root of the v1 pids controller; "" on V2, and where it is not mounted
	Unified kernel.FS // root of the v2 tree; "" where there is none

	nested bool
	// namesAll says that this process is in the first pid namespace, where every
	// process has a number.
	namesAll bool
}

// firstPIDNamespace is what the link of the first pid namespace reads
// (include/linux/proc_ns.h: PROC_PID_INIT_INO).
const firstPIDNamespace = "pid:[4026531836]"

// NamesAll reports whether this process is in the first pid namespace. There a 0
// in a list of v2 stands for no process of another namespace but for one that is
// beginning or ending: the kernel lists it while it has no number
// (kernel/fork.c: copy_process, kernel/exit.c: __unhash_process).
func (h *Hierarchy) NamesAll() bool { return h.namesAll }

// Find looks at a directory where cgroup filesystems are mounted, normally
// /sys/fs/cgroup, and tells from its content which tree carries memory. When
// none does, the error is a [kernel.ErrUnavailable] that names what was looked
// for.
func Find(root kernel.FS) (*Hierarchy, error) {
	h, err := find(root)
	if err != nil {
		return nil, fmt.Errorf("find cgroup memory controller: %w", err)
	}
	if h.nested, err = nested(h.Memory); err != nil {
		return nil, fmt.Errorf("find cgroup memory controller: %w", err)
	}
	// The namespace is this process's own, whatever procfs it reads others from.
	// Where it can't be read, a 0 remains a process of another namespace.
	own, err := os.Readlink("/proc/self/ns/pid")
	h.namesAll = err == nil && own == firstPIDNamespace
	return h, nil
}

func find(root kernel.FS) (*Hierarchy, error) {
	// The unified mount comes first: below it, a cgroup may be named "memory".
	if ok, err := carriesMemory(root); err != nil {
		return nil, err
	} else if ok {
		return &Hierarchy{Version: V2, Memory: root, Unified: root}, nil
	}

	const unified = "unified"
	beside := kernel.FS("")
	if ok, err := exists(root.Path(unified, "cgroup.controllers")); err != nil {
		return nil, err
	} else if ok {
		beside = kernel.FS(root.Path(unified))
	}
	if ok, err := exists(root.Path("memory", "memory.usage_in_bytes")); err != nil {
		return nil, err
	} else if ok {
		h := &Hierarchy{Version: V1, Memory: kernel.FS(root.Path("memory")), Unified: beside}
		if beside != "" {
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

	// cgroup_no_v1=memory leaves the other controllers in v1 trees.
	if beside != "" {
		if ok, err := carriesMemory(beside); err != nil {
			return nil, err
		} else if ok {
			return &Hierarchy{Version: V2, Memory: beside, Unified: beside}, nil
		}
	}
	return nil, fmt.Errorf("%w: neither %s (v2) nor %s lists memory, and there is no %s (v1)", kernel.ErrUnavailable,
		root.Path("cgroup.controllers"), root.Path(unified, "cgroup.controllers"), root.Path("memory", "memory.usage_in_bytes"))
}

// carriesMemory reads the controllers of a v2 root: "cpuset cpu io memory pids".
func carriesMemory(root kernel.FS) (bool, error) {
	b, err := os.ReadFile(root.Path("cgroup.controllers"))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return slices.Contains(strings.Fields(string(b)), "memory"), nil
}

// controller returns the root of a v1 tree, or "".
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
// inode is 1 on each cgroup filesystem. What is no cgroup filesystem is a copy
// of one, and is taken for what it says.
func nested(root kernel.FS) (bool, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(string(root), &fs); err != nil {
		return false, &os.PathError{Op: "statfs", Path: string(root), Err: err}
	}
	if int64(fs.Type) != unix.CGROUP_SUPER_MAGIC && int64(fs.Type) != unix.CGROUP2_SUPER_MAGIC {
		return false, nil
	}
	var st unix.Stat_t
	if err := unix.Stat(string(root), &st); err != nil {
		return false, &os.PathError{Op: "stat", Path: string(root), Err: err}
	}
	return st.Ino != 1, nil
}

// Nested reports whether the root is not the kernel's, but that of a container
// or a cgroup namespace: the tree then shows a part of the node.
func (h *Hierarchy) Nested() bool { return h.nested }

// v1 reports whether the tree that carries memory is a v1 tree.
func (h *Hierarchy) v1() bool { return h.Version != V2 }

// RootMemory reads the memory of the whole node, as the kubelet counts it. A
// nested tree does not show that: [kernel.ErrUnavailable]. Whoever reads it often
// opens "/" and keeps it.
func (h *Hierarchy) RootMemory() (Memory, error) {
	if h.nested {
		return Memory{}, fmt.Errorf("read root memory: %s is not the root of the node's cgroups: %w", h.Memory, kernel.ErrUnavailable)
	}
	c, err := h.Open("/")
	if err != nil {
		return Memory{}, err
	}
	defer c.Close()
	return c.Memory()
}

// clean checks a cgroup's path. None may lead outside the tree, and an empty
// one, which something forgot to fill in, must not name the root.
func clean(name string) (string, error) {
	if !strings.HasPrefix(name, "/") {
		return "", fmt.Errorf("cgroup path %q is not absolute", name)
	}
	if slices.Contains(strings.Split(name, "/"), "..") {
		return "", fmt.Errorf("cgroup path %q: %w", name, ErrOutside)
	}
	if strings.ContainsRune(name, 0) {
		return "", fmt.Errorf("cgroup path %q has a NUL", name)
	}
	return path.Clean(name), nil
}
