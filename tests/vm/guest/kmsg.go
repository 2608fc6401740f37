package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/tests/vm/protocol"
)

// openKernelLog opens the kernel's log at its beginning, so that problems during the boot are reported too.
func openKernelLog() (int, error) {
	fd, err := unix.Open("/dev/kmsg", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open the kernel's log: %w", err)
	}
	return fd, nil
}

// watchKernel reads the kernel's log and reports troubles. It returns only on error.
func (r *runner) watchKernel(fd int) {
	record := make([]byte, 8192) // at least the maximum of the kernel (CONSOLE_EXT_LOG_MAX)
	for {
		n, err := unix.Read(fd, record)
		switch {
		case err == nil:
			message, ofKernel := parseRecord(string(record[:n]))
			if t := protocol.Classify(message); ofKernel && t != "" {
				r.trouble(t, message)
			}
		case errors.Is(err, unix.EPIPE), errors.Is(err, unix.EINTR):
			// EPIPE: unread records were overwritten. The next read returns the oldest record that is left.
		default:
			fmt.Fprintf(os.Stderr, "guest: read the kernel's log: %v\n", err)
			return
		}
	}
}

// parseRecord returns the message of a record of /dev/kmsg, and whether the kernel itself printed it (facility 0):
//
//	6,339,5140900,-;NET: Registered PF_INET protocol family
//	 SUBSYSTEM=acpi
//
// (Documentation/ABI/testing/dev-kmsg). A message that a process writes never has facility 0.
func parseRecord(record string) (message string, ofKernel bool) {
	prefix, rest, ok := strings.Cut(record, ";")
	if !ok {
		return "", false
	}
	message, _, _ = strings.Cut(rest, "\n")
	level, _, _ := strings.Cut(prefix, ",")
	var priority int
	if n, _ := fmt.Sscan(level, &priority); n != 1 {
		return "", false
	}
	return message, priority>>3 == 0
}

// trouble reports a trouble to the host, and stops the running command if the trouble fails it. A full disk is reported
// once per command.
func (r *runner) trouble(t protocol.Trouble, text string) {
	r.mu.Lock()
	c := r.running
	r.mu.Unlock()
	if t == protocol.DiskFull && c != nil && c.failed() {
		return
	}
	name := ""
	if c != nil {
		name = c.Name
	}
	r.port.send(protocol.Event{Kind: protocol.Kernel, Command: name, Trouble: t, Text: text})
	if c != nil {
		c.fail(t, text)
	}
}
