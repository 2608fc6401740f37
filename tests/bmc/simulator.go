// Package bmc runs OpenIPMI's ipmi_sim as the BMC of a machine that does not exist, with faults. It needs no root.
//
// The commands that the BMC carries out call a script, whose log is what was really done, whatever the answer to the client was.
// The programs are looked up in PATH and in the cache directory of fetch.sh ([Program]).
package bmc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/tests/daemon"
)

// Options configure a Simulator. Only Dir is required.
type Options struct {
	// Dir is an absolute path without blanks. It is created; it must not be that of another simulator.
	Dir string
	// Name is the name of the machine, host1 by default.
	Name string
	// GUID is the System GUID as 32 hexadecimal digits, in the order in which the bytes are sent.
	GUID string
	// Address is an address of this machine, 127.0.0.1 by default.
	Address string
	// Port is the UDP port, a free one by default.
	Port int
	// Username and Password are "admin" and "secret" by default.
	Username, Password string
	// Off says that the machine is off at the beginning.
	Off bool
}

// Simulator is a running ipmi_sim.
type Simulator struct {
	options Options
	port    int
	process *daemon.Process
	output  *bytes.Buffer
	close   sync.Once
}

// Start starts ipmi_sim and returns when it answers. The error is ErrMissing if there is no ipmi_sim. The kernel kills
// it when this process exits.
func Start(ctx context.Context, o Options) (*Simulator, error) {
	program, err := Program("ipmi_sim")
	if err != nil {
		return nil, err
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	if err := o.prepare(); err != nil {
		return nil, err
	}
	// The free port may be taken before ipmi_sim opens it.
	for attempt := 1; ; attempt++ {
		s, err := start(ctx, program, o)
		if err == nil || ctx.Err() != nil || o.Port != 0 || attempt == 3 {
			return s, err
		}
	}
}

func start(ctx context.Context, program string, o Options) (*Simulator, error) {
	s := &Simulator{options: o, port: o.Port, output: &bytes.Buffer{}}
	if s.port == 0 {
		var err error
		if s.port, err = freePort(o.Address); err != nil {
			return nil, err
		}
	}
	if err := o.configure(s.port); err != nil {
		return nil, fmt.Errorf("configure ipmi_sim: %w", err)
	}
	cmd := exec.Command(program, "-n", "-c", "lan.conf", "-f", "bmc.emu", "-s", filepath.Join(o.Dir, "state"))
	cmd.Dir = o.Dir
	cmd.Stdout, cmd.Stderr = s.output, s.output
	cmd.WaitDelay = time.Second // a child may still have the output open
	var err error
	if s.process, err = daemon.StartProcess(cmd); err != nil {
		return nil, fmt.Errorf("start ipmi_sim: %w", err)
	}
	if err := s.wait(ctx); err != nil {
		s.Close()
		return nil, fmt.Errorf("start ipmi_sim on %s: %w: %s", s.Endpoint(), err, bytes.TrimSpace(s.output.Bytes()))
	}
	return s, nil
}

func freePort(address string) (int, error) {
	c, err := net.ListenPacket("udp", net.JoinHostPort(address, "0"))
	if err != nil {
		return 0, fmt.Errorf("find a free UDP port: %w", err)
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).Port, nil
}

// authCapabilities is the request Get Channel Authentication Capabilities of IPMI 1.5, to which any BMC replies
// without a session.
var authCapabilities = []byte("\x06\x00\xff\x07\x00\x00\x00\x00\x00\x00\x00\x00\x00" +
	"\x09\x20\x18\xc8\x81\x00\x38\x8e\x04\xb5")

// wait returns when ipmi_sim replies.
func (s *Simulator) wait(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, "udp", s.Endpoint())
	if err != nil {
		return err
	}
	defer c.Close()
	for {
		// Both calls fail at once with ECONNREFUSED while the port is not open.
		_ = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		_, err := c.Write(authCapabilities)
		if err == nil {
			_, err = c.Read(make([]byte, 256))
		}
		if err == nil {
			return nil
		}
		select {
		case <-s.process.Done():
			return fmt.Errorf("it exited: %w", s.process.Err())
		case <-ctx.Done():
			return fmt.Errorf("it does not answer: %w", errors.Join(ctx.Err(), err))
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// Endpoint returns address and port.
func (s *Simulator) Endpoint() string {
	return net.JoinHostPort(s.options.Address, strconv.Itoa(s.port))
}

// Parameters returns the parameters of a fence method that uses this BMC.
func (s *Simulator) Parameters() map[string]string {
	return map[string]string{
		"ip": s.options.Address, "ipport": strconv.Itoa(s.port),
		"username": s.options.Username, "password": s.options.Password,
	}
}

// PID returns the process ID of ipmi_sim.
func (s *Simulator) PID() int { return s.process.PID() }

// Freeze stops ipmi_sim without closing its socket: it keeps the datagrams that arrive, and handles them after Thaw.
func (s *Simulator) Freeze() error { return unix.Kill(s.PID(), unix.SIGSTOP) }

// Thaw continues ipmi_sim.
func (s *Simulator) Thaw() error { return unix.Kill(s.PID(), unix.SIGCONT) }

// Close kills ipmi_sim and the script that it runs. It can be called more than once.
func (s *Simulator) Close() {
	s.close.Do(func() {
		select {
		case <-s.process.Done():
		default:
			_ = unix.Kill(-s.PID(), unix.SIGKILL) // fails only if it has just exited
			<-s.process.Done()
		}
	})
}

// Ipmitool runs ipmitool as another client of the BMC, for example with "chassis", "power", "status". It returns what
// it printed. The error is ErrMissing if there is no ipmitool.
func (s *Simulator) Ipmitool(ctx context.Context, args ...string) (string, error) {
	program, err := Program("ipmitool")
	if err != nil {
		return "", err
	}
	args = append([]string{"-I", "lanplus", "-C", "3", "-H", s.options.Address, "-p", strconv.Itoa(s.port),
		"-U", s.options.Username, "-E"}, args...)
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), "IPMI_PASSWORD="+s.options.Password)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("ipmitool: %w: %s", err, bytes.TrimSpace(stderr.Bytes()))
	}
	return string(bytes.TrimSpace(out)), nil
}
