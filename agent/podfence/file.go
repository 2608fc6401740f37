package podfence

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// ErrLocked means that another evictd has the file of marks open.
var ErrLocked = errors.New("another evictd uses the file")

// markFile is the open file of marks.
type markFile struct {
	*os.File
	// locked keeps the file's pages in memory. It is never accessed: the pages of a file
	// that another program truncated raise SIGBUS.
	locked []byte
}

// openFile opens or makes the file and returns its content. problem is why earlier content
// was not used: only this user may write the file, because it says which cgroups are
// written to at start.
func openFile(path string) (f *markFile, content []byte, problem, err error) {
	const flags = os.O_RDWR | os.O_CREATE | unix.O_NOFOLLOW | unix.O_NONBLOCK
	file, err := os.OpenFile(path, flags, 0o600)
	if err == nil {
		if problem = checkOwner(file); problem != nil {
			file.Close()
			if err = os.Remove(path); err == nil {
				file, err = os.OpenFile(path, flags|os.O_EXCL, 0o600)
			}
		}
	} else if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENXIO) {
		problem = fmt.Errorf("not a regular file: %w", err)
		if err = os.Remove(path); err == nil {
			file, err = os.OpenFile(path, flags|os.O_EXCL, 0o600)
		}
	}
	if err != nil {
		return nil, nil, nil, fmt.Errorf("open fence marks: %w", errors.Join(err, problem))
	}
	f = &markFile{File: file}
	if content, err = f.prepare(); err != nil {
		f.Close()
		return nil, nil, nil, fmt.Errorf("open fence marks: %w", err)
	}
	return f, content, problem, nil
}

// checkOwner fails unless an open file is a regular one that only this user can write.
func checkOwner(f *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return errors.New("not a regular file")
	case int(st.Uid) != os.Geteuid():
		return fmt.Errorf("it belongs to user %d", st.Uid)
	case st.Mode&0o022 != 0:
		return fmt.Errorf("others may write it: mode %#o", st.Mode&0o777)
	}
	return nil
}

// prepare locks the file against another evictd and reads it. It then gives it its size,
// with all pages allocated and in memory.
func (f *markFile) prepare() ([]byte, error) {
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == unix.EWOULDBLOCK {
		return nil, fmt.Errorf("%s: %w", f.Name(), ErrLocked)
	} else if err != nil {
		return nil, os.NewSyscallError("flock", err)
	}
	if err := f.Chmod(0o600); err != nil {
		return nil, err
	}
	content, err := io.ReadAll(io.LimitReader(f, fileSize+1))
	if err != nil {
		return nil, err
	}
	return content, nil
}

// rewrite replaces the whole content: every page is allocated, so that a mark needs no
// memory and no space.
func (f *markFile) rewrite(content []byte) error {
	_, err := f.WriteAt(content, 0)
	if err == nil {
		err = f.Truncate(int64(len(content)))
	}
	if err != nil {
		return err
	}
	f.lockPages(len(content))
	return nil
}

// lockPages keeps the pages in memory, if it may: tmpfs can be swapped out, and a mark
// would then wait for the disk under the pressure that it is written in. mlock(2) reads
// the pages in.
func (f *markFile) lockPages(size int) {
	mapping, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return
	}
	if unix.Mlock(mapping) != nil {
		unix.Munmap(mapping)
		return
	}
	if f.locked != nil {
		unix.Munmap(f.locked)
	}
	f.locked = mapping
}

// write writes one record. It does not allocate.
func (f *markFile) write(slot int, r *record) error {
	_, err := f.WriteAt(r[:], int64(1+slot)*recordSize)
	return err
}

// read reads one record. The rest of a record beyond the end of the file is zero.
func (f *markFile) read(slot int, r *record) error {
	*r = record{}
	if _, err := f.ReadAt(r[:], int64(1+slot)*recordSize); err != nil && err != io.EOF {
		return err
	}
	return nil
}

// intact fails if the path no longer leads to this file, or the file has another size. same
// is false in the first case.
func (f *markFile) intact() (same bool, err error) {
	at, err := os.Lstat(f.Name())
	if err != nil {
		return false, err
	}
	own, err := f.Stat()
	if err != nil {
		return false, err
	}
	if !os.SameFile(at, own) {
		return false, errors.New("another file has its name")
	}
	if own.Size() != fileSize {
		return true, fmt.Errorf("it has %d bytes, not %d", own.Size(), fileSize)
	}
	return true, nil
}

// extend gives the file its size and its header. It leaves the records, because Set may be
// writing one.
func (f *markFile) extend(first record) error {
	if err := f.Truncate(fileSize); err != nil {
		return err
	}
	if _, err := f.WriteAt(first[:], 0); err != nil {
		return err
	}
	f.lockPages(fileSize)
	return nil
}

// Close unlocks and closes the file. Writes in flight complete.
func (f *markFile) Close() error {
	if f.locked != nil {
		unix.Munmap(f.locked)
		f.locked = nil
	}
	return f.File.Close()
}
