package disk

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// ErrMounted says that something is mounted in a directory that was to be removed.
var ErrMounted = errors.New("something is mounted there")

const (
	// deepestRemoved is how far down RemoveTree goes: it keeps a descriptor for each
	// level.
	deepestRemoved = 100
	// namesAtOnce is how many names of a directory it reads at a time.
	namesAtOnce = 1024
)

// RemoveTree removes a file, or a directory with all that is in it. Unlike
// os.RemoveAll it crosses no mount: what is mounted in the directory stays, with the
// directories above it, and the error is an [ErrMounted]. All else is removed, as far
// as it can be; the error is the first one. It follows no symbolic link below path's
// directory. That nothing is there is no error.
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
		return fmt.Errorf("%s: %w", name, ErrMounted)
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

// empty removes what is in a directory.
func (w *Walker) empty(dir int, name string, depth int) error {
	if depth >= deepestRemoved {
		return fmt.Errorf("%s: deeper than %d directories", name, deepestRemoved)
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
	// Something may have been mounted over it since it was looked at.
	if err := w.stat(fd, "", unix.AT_EMPTY_PATH); err != nil || w.mountID() != w.mount {
		return fmt.Errorf("%s: %w", name, errors.Join(ErrMounted, err))
	}
	var first error
	for {
		names, err := f.Readdirnames(namesAtOnce)
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
