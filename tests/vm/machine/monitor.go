package machine

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// monitor is QEMU's own interface to a machine, QMP.
type monitor struct{ file *os.File }

// newMonitor returns it, and QEMU's end, which is the caller's to close.
func newMonitor() (m *monitor, end *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make the monitor's socket: %w", err)
	}
	m = &monitor{os.NewFile(uintptr(fds[0]), "monitor")}
	go io.Copy(io.Discard, m.file) // what it answers ends with QEMU, and is of no use
	return m, os.NewFile(uintptr(fds[1]), "monitor"), nil
}

// pressPowerKey does what its name says. Before it says so, it has to negotiate, which QEMU refuses to do twice.
func (m *monitor) pressPowerKey() error {
	_, err := m.file.WriteString("{\"execute\": \"qmp_capabilities\"}\n{\"execute\": \"system_powerdown\"}\n")
	if err != nil {
		return fmt.Errorf("press the power key: %w", err)
	}
	return nil
}

func (m *monitor) close() { m.file.Close() }
