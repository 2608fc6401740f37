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
	// lockPatience is how long Listen waits for another one that is at work in
	// the same directory.
	lockPatience = 3 * time.Second
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
	unlock, err := lock(dir)
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

// lock takes the directory's flock, which the kernel drops with its holder.
func lock(dir string) (unlock func(), err error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(lockPatience); ; time.Sleep(10 * time.Millisecond) {
		err = syscall.Flock(int(d.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { d.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) || time.Now().After(deadline) {
			d.Close()
			return nil, fmt.Errorf("lock %s: %w", dir, err)
		}
	}
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
