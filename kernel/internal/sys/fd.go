// Package sys wraps descriptors of kernel files for latency-critical readers.
//
// They are raw, because the Go runtime must not poll them. They are
// reference-counted, because one goroutine closes the descriptors of a removed
// container while another one reads or signals through them: a descriptor number
// that the kernel has reused would then refer to another container.
package sys

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// ErrTooLong means that a file did not fit into the buffer it was read into.
var ErrTooLong = errors.New("longer than its buffer")

// FD is a descriptor that may be closed while it is in use: it stays open until
// the last call that uses it returns. A nil FD counts as closed.
type FD struct {
	fd int
	// users is the number of references, the owner's included. Its closed bit is
	// set by the first Close.
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

// Use calls use with the descriptor number, which stays valid until use returns.
// After Close it returns [os.ErrClosed] without calling use.
func (f *FD) Use(use func(fd int) error) error {
	if !f.acquire() {
		return os.ErrClosed
	}
	err := use(f.fd)
	f.release()
	return err
}

// Read reads the file from its start with one pread(2) and returns the part of
// buf that it filled. One pread returns a whole kernel file that is generated as
// one record. It fails with [ErrTooLong] if buf is full. It allocates nothing.
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

// Write writes b with one write(2); kernel files accept it whole or not at all.
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

// Close closes the descriptor after the last call that uses it. Further calls do
// nothing.
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
		// Close has returned already, so there is no caller to return the error to.
		_ = unix.Close(f.fd)
	}
}
