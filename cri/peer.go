package cri

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// PeerPID returns the pid of the process that listens on the endpoint's socket,
// so that a caller can spare the runtime by identity and not by name. It is
// SO_PEERCRED (socket(7)) of a fresh connection, as seen from the caller's pid
// namespace.
//
// The kernel notes who called listen(2), not who accepts now: for a socket that
// an activator handed over the pid is the activator's, normally 1, and the pid of
// a listener that has exited since may have been given to another process.
//
// Nobody listening is ErrUnreachable; a listener in a pid namespace that the
// caller cannot see (the kernel says 0) is an error.
func PeerPID(endpoint string) (int, error) {
	socket, err := SocketPath(endpoint)
	if err != nil {
		return 0, err
	}
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return 0, fmt.Errorf("identify container runtime: %w: %w", ErrUnreachable, err)
	}
	defer conn.Close()
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("identify container runtime: %w", err)
	}
	var cred *unix.Ucred
	var optErr error
	if err := raw.Control(func(fd uintptr) {
		cred, optErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return 0, fmt.Errorf("identify container runtime: %w", err)
	}
	if optErr != nil {
		return 0, fmt.Errorf("identify container runtime: SO_PEERCRED of %s: %w", socket, optErr)
	}
	if cred.Pid <= 0 {
		return 0, fmt.Errorf("identify container runtime: the listener on %s is outside this pid namespace", socket)
	}
	return int(cred.Pid), nil
}
