// Package sys holds descriptors of kernel files for readers in a hurry.
//
// They are raw, because the Go runtime must not poll them, and counted, because
// one goroutine drops the descriptors of a container that is gone while another
// reads or signals: a number that the kernel has handed out again would then
// name another container.
package sys

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// ErrTooLong says that a file did not fit into the buffer it was read into.
var ErrTooLong = errors.New("longer than its buffer")

// FD is a descriptor that may be closed while it is in use: it stays open until
// its last user is done. A nil FD is a closed one.
type FD struct {
	fd int
	// users counts those who hold the number, the owner included, and carries
	// closed from the first Close on.
	users atomic.Int64
}

const closed = 1 << 62

// New takes ownership of fd.
func New(fd int) *FD {
	f := &FD{fd: fd}
	f.users.Store(1)
	return f
}

// Open opens a path, with O_CLOEXEC.
func Open(path string, flags int) (*FD, error) {
	fd, err := open(unix.AT_FDCWD, path, flags)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return New(fd), nil
}

// OpenAt opens a path relative to the directory f, with O_CLOEXEC.
func (f *FD) OpenAt(path string, flags int) (*FD, error) {
	var got *FD
	err := f.Use(func(dir int) error {
		fd, err := open(dir, path, flags)
		if err != nil {
			return &os.PathError{Op: "open", Path: path, Err: err}
		}
		got = New(fd)
		return nil
	})
	return got, err
}

func open(dir int, path string, flags int) (int, error) {
	for {
		fd, err := unix.Openat(dir, path, flags|unix.O_CLOEXEC, 0)
		if err != unix.EINTR {
			return fd, err
		}
	}
}

// Use calls use with the number, which stays valid until use returns. After
// Close it returns [os.ErrClosed] instead.
func (f *FD) Use(use func(fd int) error) error {
	if !f.acquire() {
		return os.ErrClosed
	}
	err := use(f.fd)
	f.release()
	return err
}

// Read reads the file from its start with one pread, which for a kernel file
// that is written as one record is all of it, and returns the part of buf that
// it filled. It allocates nothing.
func (f *FD) Read(buf []byte) ([]byte, error) {
	n, err := f.ReadAt(buf, 0)
	if err != nil {
		return nil, err
	}
	if n == len(buf) {
		return nil, fmt.Errorf("%w of %d bytes", ErrTooLong, len(buf))
	}
	return buf[:n], nil
}

// ReadAt reads up to len(buf) bytes at an offset. At the end of the file it
// returns 0 and no error. It allocates nothing.
func (f *FD) ReadAt(buf []byte, off int64) (int, error) {
	if !f.acquire() {
		return 0, os.ErrClosed
	}
	defer f.release()
	for {
		n, err := unix.Pread(f.fd, buf, off)
		if err == unix.EINTR {
			continue
		}
		return max(n, 0), err
	}
}

// Write writes b, which a kernel file takes whole or not at all.
func (f *FD) Write(b []byte) error {
	if !f.acquire() {
		return os.ErrClosed
	}
	defer f.release()
	for {
		_, err := unix.Write(f.fd, b)
		if err != unix.EINTR {
			return err
		}
	}
}

// Close gives the descriptor up. Further calls do nothing.
func (f *FD) Close() error {
	if f == nil {
		return nil
	}
	for {
		n := f.users.Load()
		if n&closed != 0 {
			return nil
		}
		if !f.users.CompareAndSwap(n, (n-1)|closed) {
			continue
		}
		if n == 1 {
			return unix.Close(f.fd)
		}
		return nil
	}
}

func (f *FD) acquire() bool {
	if f == nil {
		return false
	}
	for {
		n := f.users.Load()
		if n&closed != 0 {
			return false
		}
		if f.users.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (f *FD) release() {
	if f.users.Add(-1) == closed {
		// Whoever closed it has long gone on: nobody is left to tell.
		_ = unix.Close(f.fd)
	}
}
