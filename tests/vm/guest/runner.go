package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/tests/vm/protocol"
)

// runner carries out a plan.
type runner struct {
	port *port
	// running is the command that troubles fail; nil between commands.
	mu      sync.Mutex
	running *command
}

// carryOut does what the plan says, and switches the machine off.
func carryOut() error {
	text, err := os.ReadFile(protocol.PlanFile)
	if err != nil {
		return fmt.Errorf("read plan: %w", err)
	}
	plan, err := protocol.DecodePlan(text)
	if err != nil {
		return err
	}
	p, err := openPort()
	if err != nil {
		return err
	}
	r := &runner{port: p}
	if err := prepare(plan); err != nil {
		return err
	}
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return fmt.Errorf("read release: %w", err)
	}
	kmsg, err := openKernelLog()
	if err != nil {
		return err
	}
	r.port.send(protocol.Event{Kind: protocol.Hello, Text: strings.TrimSpace(string(release)), Uptime: uptime()})
	go r.beat()
	go r.watchKernel(kmsg)
	for _, c := range plan.Commands {
		r.run(c)
	}
	r.port.send(protocol.Event{Kind: protocol.Done, Uptime: uptime()})
	// There is nothing on this machine that would be missed.
	return fmt.Errorf("switch the machine off: %w", unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF))
}

// prepare makes the machine what the plan wants before any command.
func prepare(plan protocol.Plan) error {
	if err := os.MkdirAll(protocol.ScratchDir, 0o1777); err != nil {
		return fmt.Errorf("make scratch directory: %w", err)
	}
	for _, w := range plan.Writes {
		if err := os.WriteFile(w.File, []byte(w.Text), 0); err != nil {
			return fmt.Errorf("prepare: %w", err)
		}
	}
	for _, dir := range plan.Hide {
		if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_RDONLY, ""); err != nil {
			return fmt.Errorf("hide %s: %w", dir, err)
		}
	}
	return nil
}

// uptime is the age of the kernel, or zero if the kernel does not tell it.
func uptime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}

// port is the wire to the host.
type port struct {
	mu   sync.Mutex
	file *os.File
}

// openPort finds the virtio port by its name.
func openPort() (*port, error) {
	names, err := filepath.Glob("/sys/class/virtio-ports/*/name")
	if err != nil {
		return nil, fmt.Errorf("find the port: %w", err)
	}
	for _, file := range names {
		name, err := os.ReadFile(file)
		if err != nil || strings.TrimSpace(string(name)) != protocol.PortName {
			continue
		}
		// Blocking: an event must wait while the host is slow.
		fd, err := unix.Open("/dev/"+filepath.Base(filepath.Dir(file)), unix.O_WRONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("open the port: %w", err)
		}
		return &port{file: os.NewFile(uintptr(fd), protocol.PortName)}, nil
	}
	return nil, errors.New("find the port: no virtio port named " + protocol.PortName)
}

// send tells the host. A host that can't be told any more has given up on this machine.
func (p *port) send(e protocol.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, err := p.file.Write(e.Encode()); err != nil {
		fmt.Fprintf(os.Stderr, "guest: tell the host: %v\n", err)
	}
}
