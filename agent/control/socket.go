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
	// maxSocketPath is the longest path that fits into sockaddr_un.sun_path with
	// its NUL (unix(7)).
	maxSocketPath = 107
	// lockTimeout bounds how long Listen waits for another Listen on the same
	// socket, which takes milliseconds.
	lockTimeout = 3 * time.Second
	// lockSuffix is appended to the socket's path for the lock file.
	lockSuffix = ".lock"
)

// ErrInUse is returned by Listen if another process listens on the socket.
var ErrInUse = errors.New("another evictd is running")

// Listen creates the control socket at path with mode 0600, and its directory if
// that is missing. It replaces a socket without a listener, and returns ErrInUse
// for one with a listener. Any other file at path is an error: Listen does not
// follow a symbolic link or remove a file. Closing the listener removes the
// socket.
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
		return nil, fmt.Errorf("%s: the path is longer than %d bytes, the maximum for a socket", path, maxSocketPath)
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	// No other evictd may check and bind the path at the same time.
	unlock, err := lock(path + lockSuffix)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := removeStale(path); err != nil {
		return nil, err
	}
	config := net.ListenConfig{Control: setPrivateMode}
	return config.Listen(context.Background(), "unix", path)
}

// setPrivateMode sets the mode of a socket before it is bound, so that no other user
// can ever connect: the kernel takes the file's mode from the socket's
// (net/unix/af_unix.c, unix_bind_bsd).
func setPrivateMode(_, _ string, c syscall.RawConn) error {
	var err error
	if e := c.Control(func(fd uintptr) { err = syscall.Fchmod(int(fd), 0o600) }); e != nil {
		return e
	}
	return err
}

// lock takes an flock(2) on a file that only this user can open. It creates the
// file if it is missing and does not remove it. The kernel releases the lock when
// the process ends. A lock on the directory would not do: flock(2) needs no more
// than a descriptor, and every user may open a directory with mode 0755.
func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if errors.Is(err, syscall.ELOOP) {
		return nil, fmt.Errorf("%s is a symbolic link, which evictd does not follow", path)
	}
	if err != nil {
		return nil, err
	}
	if err := ownerOnly(f); err != nil {
		f.Close()
		return nil, err
	}
	for deadline := time.Now().Add(lockTimeout); ; time.Sleep(10 * time.Millisecond) {
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

// ownerOnly returns an error if another user could open the file too. The file may
// be another user's if the directory belongs to that user.
func ownerOnly(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s exists and is not a regular file", f.Name())
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
		return fmt.Errorf("%s is a symbolic link, which evictd does not follow", path)
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s exists and is not a socket", path)
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
		return fmt.Errorf("%w: a process listens on %s and does not accept connections", ErrInUse, path)
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

// peer returns "process N " for the process that listens on the socket, and "" if
// it is not in this pid namespace.
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
