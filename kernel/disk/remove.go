package disk

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// ErrMountPoint means that a directory to be removed contains a mount point.
var ErrMountPoint = errors.New("a mount point")

const (
	// maxRemoveDepth bounds the depth of RemoveTree, which keeps one descriptor open
	// per level.
	maxRemoveDepth = 100
	// namesPerRead is the number of names of a directory that it reads at a time.
	namesPerRead = 1024
)

// RemoveTree removes a file, or a directory with its content. Unlike os.RemoveAll it
// does not cross mounts: a mount point in the directory and its parents stay, and the
// error is [ErrMountPoint]. RemoveTree removes everything else that it can and returns
// the first error. It follows no symbolic link below the parent of path. A path that
// does not exist is not an error.
func RemoveTree(path string) error {
	parent, err := os.Open(filepath.Dir(path))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer parent.Close()
	var w Walker
	if err := w.stat(int(parent.Fd()), "", unix.AT_EMPTY_PATH); err != nil {
		return &os.PathError{Op: "statx", Path: parent.Name(), Err: err}
	}
	w.mount = w.mountID()
	if err := w.remove(int(parent.Fd()), filepath.Base(path), 0); err != nil {
		return fmt.Errorf("remove %s: %w", path, err)
	}
	return nil
}

// remove removes an entry of a directory.
func (w *Walker) remove(dir int, name string, depth int) error {
	switch err := w.stat(dir, name, 0); {
	case err == unix.ENOENT:
		return nil
	case err != nil:
		return &os.PathError{Op: "statx", Path: name, Err: err}
	case w.mountID() != w.mount:
		return fmt.Errorf("%s: %w", name, ErrMountPoint)
	}
	flags := 0
	if w.st.Mode&unix.S_IFMT == unix.S_IFDIR {
		if err := w.empty(dir, name, depth); err != nil {
			return err
		}
		flags = unix.AT_REMOVEDIR
	}
	if err := unix.Unlinkat(dir, name, flags); err != nil && err != unix.ENOENT {
		return &os.PathError{Op: "unlinkat", Path: name, Err: err}
	}
	return nil
}

// empty removes the content of a directory.
func (w *Walker) empty(dir int, name string, depth int) error {
	if depth >= maxRemoveDepth {
		return fmt.Errorf("%s: more than %d levels deep", name, maxRemoveDepth)
	}
	fd, err := openDir(dir, name)
	if err == unix.ENOENT {
		return nil
	}
	if err != nil {
		return &os.PathError{Op: "open", Path: name, Err: err}
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	// It may have become a mount point since the first check.
	if err := w.stat(fd, "", unix.AT_EMPTY_PATH); err != nil || w.mountID() != w.mount {
		return fmt.Errorf("%s: %w", name, errors.Join(ErrMountPoint, err))
	}
	var first error
	for {
		names, err := f.Readdirnames(namesPerRead)
		for _, entry := range names {
			if err := w.remove(fd, entry, depth+1); err != nil && first == nil {
				first = fmt.Errorf("%s/%w", name, err)
			}
		}
		if err == io.EOF || err != nil && first != nil {
			return first
		}
		if err != nil {
			return &os.PathError{Op: "read", Path: name, Err: err}
		}
	}
}
