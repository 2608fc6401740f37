package cgroup

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel/internal/sys"
)

// errStop ends a walk early.
var errStop = errors.New("stop")

// walk calls visit for a directory and for each one below it, parents first, with
// its relative path ("." first). Directories that are removed during the walk are
// skipped: an ENODEV or ENOENT that visit returns for a directory below is taken for its
// removal. For "." it is returned. Besides dir, one descriptor is open at a time, however
// deep the tree is.
func walk(dir *sys.FD, visit func(rel string) error) error {
	err := visit(".")
	if err == errStop {
		return nil
	}
	// Most container cgroups have no children. isLeaf detects that without reading
	// the directory and without allocations.
	if err != nil || isLeaf(dir) {
		return err
	}
	todo, err := subdirectories(dir, ".")
	if err != nil {
		return err
	}
	for len(todo) > 0 {
		rel := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if err := visit(rel); err == errStop {
			return nil
		} else if err != nil && !removed(err) {
			return err
		}
		below, err := subdirectories(dir, rel)
		if err != nil && !removed(err) {
			return err
		}
		todo = append(todo, below...)
	}
	return nil
}

// isLeaf reports whether a directory certainly has no subdirectories: kernfs counts
// the ".." of each as a link. Other filesystems do the same, or report 1 link.
func isLeaf(dir *sys.FD) bool {
	var st unix.Stat_t
	err := dir.Use(func(fd int) error { return unix.Fstat(fd, &st) })
	return err == nil && st.Nlink == 2
}

// subdirectories returns the paths of the directories in rel, sorted in reverse order
// because walk pops them from the end.
func subdirectories(dir *sys.FD, rel string) ([]string, error) {
	var fd int
	err := dir.Use(func(at int) (err error) {
		for {
			fd, err = unix.Openat(at, rel, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
			if err != unix.EINTR {
				return err
			}
		}
	})
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: rel, Err: err}
	}
	f := os.NewFile(uintptr(fd), rel)
	defer f.Close()
	entries, err := f.ReadDir(-1)
	if err != nil {
		return nil, err
	}
	entries = slices.DeleteFunc(entries, func(e fs.DirEntry) bool { return !e.IsDir() })
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(b.Name(), a.Name()) })
	paths := make([]string, len(entries))
	for i, e := range entries {
		paths[i] = path.Join(rel, e.Name())
	}
	return paths, nil
}
