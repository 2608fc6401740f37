package control

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

const (
	// maxSocketPath is the longest path that fits sockaddr_un.sun_path with
	// its NUL (unix(7)).
	maxSocketPath = 107
	// lockPatience is how long Listen waits for another one that is at work on
	// the same socket.
	lockPatience = 3 * time.Second
	// lockSuffix makes the name of the lock file from that of the socket.
	lockSuffix = ".lock"
)

// ErrInUse is what Listen returns where a live daemon has the socket.
var ErrInUse = errors.New("another evictd runs")

// Listen makes the control socket at path with mode 0600, and its directory
// where that is missing. A socket that a daemon left behind is replaced, one
// with a listener is ErrInUse, and anything else in its place is an error: a
// symbolic link is not followed, and a file is not removed. Closing the
// listener removes the socket.
func Listen(path string) (net.Listener, error) {
	l, err := listen(path)
	if err != nil {
		return nil, fmt.Errorf("listen on control socket: %w", err)
	}
	return l, nil
}

func listen(path string) (net.Listener, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	if len(path) > maxSocketPath {
		return nil, fmt.Errorf("%s: the path is longer than the %d bytes that a socket's may have", path, maxSocketPath)
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	// Between the look at what is there and the bind, no other daemon may do
	// the same.
	unlock, err := lock(path + lockSuffix)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := removeStale(path); err != nil {
		return nil, err
	}
	config := net.ListenConfig{Control: private}
	return config.Listen(context.Background(), "unix", path)
}

// private sets the mode of a socket before it is bound, so that at no time
// another user can connect: the kernel takes the file's mode from the socket's
// (net/unix/af_unix.c, unix_bind_bsd).
func private(_, _ string, c syscall.RawConn) error {
	var err error
	if e := c.Control(func(fd uintptr) { err = syscall.Fchmod(int(fd), 0o600) }); e != nil {
		return e
	}
	return err
}

// lock takes the flock of a file that only this user can open, which it makes
// where it is missing and leaves behind. The kernel drops the lock with the
// process. The directory itself is no place for a lock: flock(2) needs no more
// than a descriptor, and every user may open a directory of mode 0755.
func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if errors.Is(err, syscall.ELOOP) {
		return nil, fmt.Errorf("%s is a symbolic link, which is not followed", path)
	}
	if err != nil {
		return nil, err
	}
	if err := ownerOnly(f); err != nil {
		f.Close()
		return nil, err
	}
	for deadline := time.Now().Add(lockPatience); ; time.Sleep(10 * time.Millisecond) {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) || time.Now().After(deadline) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
	}
}

// ownerOnly reports why another user could open an open file; nil where none
// can. Where the directory belongs to another user, the file may be that user's.
func ownerOnly(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is in the way and is no regular file", f.Name())
	case ok && int(st.Uid) != os.Geteuid():
		return fmt.Errorf("%s belongs to user %d: remove it, or use another path", f.Name(), st.Uid)
	case info.Mode().Perm()&0o077 != 0:
		return fmt.Errorf("%s has mode %#o, so other users can lock it: remove it", f.Name(), info.Mode().Perm())
	}
	return nil
}

// removeStale removes a socket without a listener from path.
func removeStale(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() == fs.ModeSymlink:
		return fmt.Errorf("%s is a symbolic link, which is not followed", path)
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s is in the way and is no socket", path)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("%s belongs to user %d: remove it, or use another path", path, st.Uid)
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	switch {
	case err == nil:
		defer conn.Close()
		return fmt.Errorf("%w: %slistens on %s", ErrInUse, peer(conn), path)
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, os.ErrDeadlineExceeded): // its queue is full
		return fmt.Errorf("%w: somebody listens on %s, and does not answer", ErrInUse, path)
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case !errors.Is(err, syscall.ECONNREFUSED):
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// peer names the process that listens at the other end, "" where it can't be
// seen from this pid namespace.
func peer(conn net.Conn) string {
	uc, ok := conn.(*net.UnixConn)
	if !ok {
		return ""
	}
	raw, err := uc.SyscallConn()
	if err != nil {
		return ""
	}
	var cred *syscall.Ucred
	e := raw.Control(func(fd uintptr) {
		cred, err = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	})
	if e != nil || err != nil || cred.Pid <= 0 {
		return ""
	}
	return fmt.Sprintf("process %d ", cred.Pid)
}
