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

// runner executes a plan.
type runner struct {
	port *port
	// running is the current command, nil between commands.
	mu      sync.Mutex
	running *command
}

// runPlan executes the plan and powers the machine off.
func runPlan() error {
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
	// Without a shutdown: the disk is discarded.
	return fmt.Errorf("power the machine off: %w", unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF))
}

// prepare applies the settings of the plan.
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

// uptime returns the uptime of the kernel, zero on error.
func uptime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}

// port is the virtio port to the host.
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
		// A blocking write waits while the host is slow.
		fd, err := unix.Open("/dev/"+filepath.Base(filepath.Dir(file)), unix.O_WRONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("open the port: %w", err)
		}
		return &port{file: os.NewFile(uintptr(fd), protocol.PortName)}, nil
	}
	return nil, errors.New("find the port: no virtio port named " + protocol.PortName)
}

// send sends an event to the host. It only logs an error: then the host has closed its end.
func (p *port) send(e protocol.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, err := p.file.Write(e.Encode()); err != nil {
		fmt.Fprintf(os.Stderr, "guest: send event: %v\n", err)
	}
}
