package systemd

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// firstPassedFD is the first descriptor that a service manager passes
// (SD_LISTEN_FDS_START of sd_listen_fds(3)).
const firstPassedFD = 3

// StoreFD stores a descriptor under a name with the service manager, for the next run
// of this service. It survives a crash (FDSTORE of sd_notify(3), systemd 233; the
// unit needs FileDescriptorStoreMax). It sends at once and does not block. Without a
// service manager it does nothing.
func (n *Notifier) StoreFD(name string, fd int) error {
	// Without FDPOLL=0 the manager closes an inhibitor lock when logind restarts.
	return n.sendNow("FDSTORE=1\nFDNAME="+name+"\nFDPOLL=0", fd)
}

// RemoveFD makes the service manager close the descriptors stored under a name.
func (n *Notifier) RemoveFD(name string) error {
	return n.sendNow("FDSTOREREMOVE=1\nFDNAME=" + name)
}

func (n *Notifier) sendNow(message string, fds ...int) error {
	if !n.enabled {
		return nil
	}
	conn, err := net.Dial("unixgram", os.Getenv("NOTIFY_SOCKET"))
	if err != nil {
		return fmt.Errorf("notify service manager: %w", err)
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return fmt.Errorf("notify service manager: %w", err)
	}
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	sent := raw.Control(func(socket uintptr) {
		err = unix.Sendmsg(int(socket), []byte(message), oob, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	})
	if sent != nil {
		err = sent
	}
	if err != nil {
		return fmt.Errorf("notify service manager: %w", err)
	}
	return nil
}

// StoredFD returns the descriptor that an earlier run stored under a name, and −1 if
// there is none. The caller owns it. The descriptors are listed in the environment
// that the service manager has set (sd_listen_fds(3)).
func StoredFD(name string) int {
	if pid, err := strconv.Atoi(os.Getenv("LISTEN_PID")); err != nil || pid != os.Getpid() {
		return -1
	}
	count, err := strconv.Atoi(os.Getenv("LISTEN_FDS"))
	if err != nil {
		return -1
	}
	found := -1
	for i, passed := range strings.Split(os.Getenv("LISTEN_FDNAMES"), ":") {
		fd := firstPassedFD + i
		switch {
		case i >= count || passed != name:
		case found < 0:
			unix.CloseOnExec(fd)
			found = fd
		default:
			unix.Close(fd) // a duplicate
		}
	}
	return found
}
