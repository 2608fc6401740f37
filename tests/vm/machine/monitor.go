package machine

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// monitor is a connection to QEMU's monitor (QMP).
type monitor struct{ file *os.File }

// newMonitor returns a monitor and QEMU's end of its socket, which the caller closes.
func newMonitor() (m *monitor, end *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make the monitor's socket: %w", err)
	}
	m = &monitor{os.NewFile(uintptr(fds[0]), "monitor")}
	go io.Copy(io.Discard, m.file) // the answers are not needed; ends with QEMU
	return m, os.NewFile(uintptr(fds[1]), "monitor"), nil
}

// pressPowerKey presses the machine's power key. It negotiates capabilities first, which QEMU refuses a second time, so
// it can be called once.
func (m *monitor) pressPowerKey() error {
	_, err := m.file.WriteString("{\"execute\": \"qmp_capabilities\"}\n{\"execute\": \"system_powerdown\"}\n")
	if err != nil {
		return fmt.Errorf("press the power key: %w", err)
	}
	return nil
}

func (m *monitor) close() { m.file.Close() }
