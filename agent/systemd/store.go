package systemd

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// firstPassed is the first of the descriptors that a service manager passes
// (sd_listen_fds(3)).
const firstPassed = 3

// Keep gives the service manager a descriptor to keep, under a name, for the
// next run of this service: it outlives a crash (FDSTORE, sd_notify(3); systemd
// 233, and the unit's FileDescriptorStoreMax). It is sent at once and waits for
// nobody; without a service manager it does nothing.
func (n *Notifier) Keep(name string, fd int) error {
	// The manager would take an inhibitor lock for unusable, and close it, whenever
	// logind is started again: FDPOLL=0.
	return n.sendNow("FDSTORE=1\nFDNAME="+name+"\nFDPOLL=0", fd)
}

// Forget has the service manager close what it keeps under a name.
func (n *Notifier) Forget(name string) error {
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

// Kept returns the descriptor that an earlier run had kept under a name, which
// is the caller's from then on, −1 where there is none. It reads what the service
// manager has put into the environment.
func Kept(name string) int {
	if pid, err := strconv.Atoi(os.Getenv("LISTEN_PID")); err != nil || pid != os.Getpid() {
		return -1
	}
	count, err := strconv.Atoi(os.Getenv("LISTEN_FDS"))
	if err != nil {
		return -1
	}
	found := -1
	for i, passed := range strings.Split(os.Getenv("LISTEN_FDNAMES"), ":") {
		fd := firstPassed + i
		switch {
		case i >= count || passed != name:
		case found < 0:
			unix.CloseOnExec(fd)
			found = fd
		default:
			unix.Close(fd) // one is as good as two
		}
	}
	return found
}
