// Package daemon runs an evictd executable for the demonstration and the benchmarks, as a process with its
// configuration, state directory and control socket in one directory.
//
// The kernel kills a Process when the process that started it exits for any reason. Stop ends evictd as a service
// manager does, and returns the end of its log with an error. The package does not touch /etc, /run or /var.
package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/tests/node"
)

// Executable is the path of the evictd that `make build` builds, relative to the module's root.
const Executable = ".build/evictd"

// Options configure an evictd. All but Args are required.
type Options struct {
	// Executable is evictd's path.
	Executable string
	// Dir receives the configuration, the log, the state and the control socket. It must exist, and its path must be
	// short, because it is part of the path of a unix socket.
	Dir string
	// Config is the text of an AgentConfiguration.
	Config string
	// Args are further arguments, after those for the files in Dir.
	Args []string
}

// Daemon is a running evictd. It is safe for concurrent use.
type Daemon struct {
	*Process
	dir  string
	stop func() error
}

const (
	configName = "evictd.yaml"
	logName    = "evictd.log"
	socketName = "evictd.sock"
)

// stopTimeout is the time for evictd to exit after SIGTERM, before SIGKILL.
var stopTimeout = node.ScaleTimeout(5 * time.Second)

// Start starts evictd. It does not wait until evictd is ready.
func Start(o Options) (*Daemon, error) {
	d := &Daemon{dir: o.Dir}
	d.stop = sync.OnceValue(d.end)
	if err := os.WriteFile(d.path(configName), []byte(o.Config), 0o600); err != nil {
		return nil, fmt.Errorf("start evictd: %w", err)
	}
	log, err := os.OpenFile(d.path(logName), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start evictd: %w", err)
	}
	defer log.Close()
	cmd := exec.Command(o.Executable, append([]string{
		"--config", d.path(configName),
		"--state-dir", d.path("state"),
		"--control-socket", d.path(socketName),
		"--fence-file", d.path("fences"),
		"--web.listen-address", "",
	}, o.Args...)...)
	cmd.Stdout, cmd.Stderr = log, log
	if d.Process, err = StartService(cmd); err != nil {
		return nil, fmt.Errorf("start evictd: %w", err)
	}
	return d, nil
}

func (d *Daemon) path(elem ...string) string {
	return filepath.Join(append([]string{d.dir}, elem...)...)
}

// Client returns a client of evictd's control socket.
func (d *Daemon) Client() *control.Client { return control.NewClient(d.path(socketName)) }

// Await returns the first status for which ok returns true. It fails when ctx ends or evictd exits.
func (d *Daemon) Await(ctx context.Context, ok func(*control.Status) bool) (control.Status, error) {
	client := d.Client()
	for {
		s, err := client.Status(ctx)
		switch {
		case err == nil && ok(&s):
			return s, nil
		case err != nil && !errors.Is(err, control.ErrNotRunning) && !isTimeout(err) && ctx.Err() == nil:
			return control.Status{}, err
		}
		select {
		case <-d.Done():
			return control.Status{}, fmt.Errorf("evictd exited (%v): %s", d.Err(), d.LogTail())
		case <-ctx.Done():
			return control.Status{}, fmt.Errorf("wait for evictd: %w: %s", context.Cause(ctx), d.LogTail())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// isTimeout reports whether the client's own timeout expired on a slow machine, for which it is too short.
func isTimeout(err error) bool {
	return node.ScaleTimeout(1) > 1 && errors.Is(err, control.ErrNoResponse)
}

// LogTail returns the end of evictd's log, for an error text.
func (d *Daemon) LogTail() string {
	b, err := os.ReadFile(d.path(logName))
	if err != nil {
		return err.Error()
	}
	if len(b) > 4000 {
		b = b[len(b)-4000:]
		b = b[bytes.IndexByte(b, '\n')+1:]
	}
	return strings.TrimSpace(string(b))
}

// Stop ends evictd with SIGTERM. It is idempotent. It fails if evictd had exited before, exits with an error, or had to
// be killed.
func (d *Daemon) Stop() error { return d.stop() }

func (d *Daemon) end() error {
	select {
	case <-d.Done():
		return fmt.Errorf("evictd had already exited (%v): %s", d.Err(), d.LogTail())
	default:
	}
	if err := d.Terminate(stopTimeout); err != nil {
		return fmt.Errorf("stop evictd: %w: %s", err, d.LogTail())
	}
	return nil
}
