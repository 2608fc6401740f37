package control

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
)

// ListenShared is Listen for a socket with mode 0660 that belongs to a group. Changing
// the group requires CAP_CHOWN, or membership in the group (chown(2)).
func ListenShared(path string, gid int) (net.Listener, error) {
	l, err := listen(path)
	if err != nil {
		return nil, fmt.Errorf("listen on socket for evictd-kube: %w", err)
	}
	err = os.Lchown(path, -1, gid)
	if errors.Is(err, syscall.EPERM) {
		err = fmt.Errorf("%w: evictd needs the system call lchown, and CAP_CHOWN or the supplementary group %d", err, gid)
	}
	if err == nil {
		err = os.Chmod(path, 0o660) // after the group: the socket has mode 0600 until here
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen on socket for evictd-kube: %w", err), l.Close())
	}
	return l, nil
}
