package cri

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// PeerPID returns the pid of the process that listens on the endpoint's socket, so
// that a caller can identify the runtime without relying on its name. It is
// SO_PEERCRED (socket(7)) of a new connection, in the caller's pid namespace.
//
// The kernel records the process that called listen(2), not the one that accepts. With
// socket activation, the pid is that of the activator, normally 1. If the listener has
// exited since, its pid may belong to another process.
//
// PeerPID fails with ErrUnreachable if no process listens. It also fails if the
// listener is in a pid namespace that the caller can't see (the kernel returns 0).
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
