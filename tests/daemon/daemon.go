// Package daemon runs evictd as an operator does, for whoever shows or measures it: the executable that was
// built, as a process of its own, with a configuration, a state directory and a control socket in one directory.
//
// A Process dies with the one that started it, however that one ends. Stop ends it as a service manager would,
// and tells what it had to say where it did not end well. Nothing here touches /etc, /run or /var.
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

// Executable is where `make build` leaves evictd, from the root of the module.
const Executable = ".build/evictd"

// Options say what to run. All but Args are needed.
type Options struct {
	// Executable is evictd's path.
	Executable string
	// Dir receives the configuration, the log, the state and the control socket. It must exist, and its path be
	// short, as it becomes part of the socket's.
	Dir string
	// Config is the text of an AgentConfiguration.
	Config string
	// Args come after those that name the files in Dir.
	Args []string
}

// Daemon is an evictd that runs. It is safe for concurrent use.
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

// patience is how long evictd may take to end.
var patience = node.Slow(5 * time.Second)

// Start starts evictd, which then is not ready yet.
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
		"--web.listen-address", "",
	}, o.Args...)...)
	cmd.Stdout, cmd.Stderr = log, log
	if d.Process, err = StartProcess(cmd); err != nil {
		return nil, fmt.Errorf("start evictd: %w", err)
	}
	return d, nil
}

func (d *Daemon) path(elem ...string) string {
	return filepath.Join(append([]string{d.dir}, elem...)...)
}

// Client asks it over its control socket.
func (d *Daemon) Client() *control.Client { return control.NewClient(d.path(socketName)) }

// Await returns the first status with which ok is content. The error is ctx's, or says that evictd has ended.
func (d *Daemon) Await(ctx context.Context, ok func(*control.Status) bool) (control.Status, error) {
	client := d.Client()
	for {
		s, err := client.Status(ctx)
		switch {
		case err == nil && ok(&s):
			return s, nil
		case err != nil && !errors.Is(err, control.ErrNotRunning) && !late(err) && ctx.Err() == nil:
			return control.Status{}, err
		}
		select {
		case <-d.Done():
			return control.Status{}, fmt.Errorf("evictd ended (%v): %s", d.Err(), d.LogTail())
		case <-ctx.Done():
			return control.Status{}, fmt.Errorf("wait for evictd: %w: %s", context.Cause(ctx), d.LogTail())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// late tells an answer that did not come in the client's time, on a machine that is slower than that is made for.
func late(err error) bool { return node.Slow(1) > 1 && errors.Is(err, control.ErrNoAnswer) }

// LogTail is the end of evictd's log, for an error.
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

// Stop ends evictd by SIGTERM. It is idempotent. The error tells that it had ended before, that it did not do so
// cleanly, or that it had to be killed.
func (d *Daemon) Stop() error { return d.stop() }

func (d *Daemon) end() error {
	select {
	case <-d.Done():
		return fmt.Errorf("evictd had ended by itself (%v): %s", d.Err(), d.LogTail())
	default:
	}
	if err := d.Terminate(patience); err != nil {
		return fmt.Errorf("stop evictd: %w: %s", err, d.LogTail())
	}
	return nil
}
