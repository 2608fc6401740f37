package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/tests/vm/protocol"
)

// openKernelLog opens the kernel's log at its beginning: what went wrong during the boot counts as well.
func openKernelLog() (int, error) {
	fd, err := unix.Open("/dev/kmsg", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open the kernel's log: %w", err)
	}
	return fd, nil
}

// watchKernel reads the log for ever.
func (r *runner) watchKernel(fd int) {
	record := make([]byte, 8192) // more than the kernel puts into one (CONSOLE_EXT_LOG_MAX)
	for {
		n, err := unix.Read(fd, record)
		switch {
		case err == nil:
			message, ofKernel := parseRecord(string(record[:n]))
			if t := protocol.Classify(message); ofKernel && t != "" {
				r.trouble(t, message)
			}
		case errors.Is(err, unix.EPIPE), errors.Is(err, unix.EINTR):
			// Records were overwritten before they were read: those that follow are not.
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
// (Documentation/ABI/testing/dev-kmsg). A process that writes into the log gets another facility, whatever it asks.
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

// trouble tells the host what befell the kernel or the disk, and ends the running command if that fails it. A disk
// that stays full is told once for each command.
func (r *runner) trouble(t protocol.Trouble, text string) {
	r.mu.Lock()
	c := r.running
	r.mu.Unlock()
	if t == protocol.DiskFull && c != nil && c.troubled() {
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
