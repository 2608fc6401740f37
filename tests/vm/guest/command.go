package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/tests/vm/protocol"
)

// command is a running command of the plan.
type command struct {
	protocol.Command
	stop context.CancelCauseFunc

	mu      sync.Mutex
	trouble protocol.Trouble
	text    string
}

// errTrouble is the cause of the end of a command that a trouble has failed.
var errTrouble = errors.New("a trouble of the machine")

// fail stops the command, unless it expects the trouble or the trouble fails no command.
func (c *command) fail(t protocol.Trouble, text string) {
	if !t.Fails() || slices.Contains(c.Expect, t) {
		return
	}
	c.mu.Lock()
	if c.trouble == "" {
		c.trouble, c.text = t, text
	}
	c.mu.Unlock()
	c.stop(errTrouble)
}

// failed reports whether a trouble has already failed the command.
func (c *command) failed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.trouble != ""
}

const (
	// dumpTimeout is the time for a command to print its goroutines after SIGQUIT, before SIGKILL.
	dumpTimeout = 10 * time.Second
	// powerOffTimeout is the time for a machine to power itself off.
	powerOffTimeout = 3 * time.Minute
	// endScopeTimeout bounds the calls of systemctl that kill a scope.
	endScopeTimeout = 30 * time.Second
)

// scope is the unit in which a command runs with its children. Its cgroup is delegated to the command.
const scope = "vm-command.scope"

// run runs one command to its end and reports it to the host.
func (r *runner) run(pc protocol.Command) {
	start := time.Now()
	ctx, stop := context.WithCancelCause(context.Background())
	ctx, cancel := context.WithTimeout(ctx, pc.Timeout)
	defer cancel()
	c := &command{Command: pc, stop: stop}
	r.mu.Lock()
	r.running = c
	r.mu.Unlock()
	r.port.send(protocol.Event{Kind: protocol.Begin, Command: pc.Name})

	code, err := c.execute(ctx, func(line string) {
		r.port.send(protocol.Event{Kind: protocol.Line, Command: pc.Name, Text: line})
	})

	r.mu.Lock()
	r.running = nil
	r.mu.Unlock()
	end := protocol.Event{
		Kind: protocol.End, Command: pc.Name, ExitCode: code, Duration: time.Since(start),
		TimedOut: errors.Is(ctx.Err(), context.DeadlineExceeded) && !errors.Is(context.Cause(ctx), errTrouble),
	}
	if err != nil {
		end.Text = err.Error()
	}
	c.mu.Lock()
	if c.trouble != "" {
		end.Trouble, end.Text = c.trouble, c.text
	}
	c.mu.Unlock()
	if pc.PowersOff && code == 0 && end.Text == "" {
		r.port.send(protocol.Event{Kind: protocol.Leave, Command: pc.Name, Duration: end.Duration})
		time.Sleep(powerOffTimeout)
		end.ExitCode, end.Text = -1, fmt.Sprintf("the machine did not power itself off within %v", powerOffTimeout)
	}
	r.port.send(end)
}

// execute runs the program until it or ctx ends. The code is −1 if a signal ended it.
func (c *command) execute(ctx context.Context, say func(string)) (code int, err error) {
	// choom resets oom_score_adj, which is -1000 for this process. systemd-run --scope executes the program in its own
	// process, so that the program has this environment, directory and process ID.
	args := append([]string{
		"-n", "0", "--", "systemd-run", "--scope", "--quiet", "--collect", "--unit=" + scope, "--slice=vmcommands.slice",
		"--property=Delegate=yes", "--",
	}, c.Argv...)
	cmd := exec.CommandContext(ctx, "choom", args...)
	cmd.Env = append([]string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8",
		"HOME=" + protocol.ScratchDir, "TMPDIR=" + protocol.ScratchDir,
	}, c.Env...)
	cmd.Dir = c.Dir
	if cmd.Dir == "" {
		cmd.Dir = protocol.ScratchDir
	}
	// An explicit pipe: Wait would close one of cmd's before the output of the program's children is read.
	out, in, err := os.Pipe()
	if err != nil {
		return -1, fmt.Errorf("run %s: %w", c.Name, err)
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = in, in
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGQUIT) }
	cmd.WaitDelay = dumpTimeout
	err = cmd.Start()
	in.Close()
	if err != nil {
		return -1, fmt.Errorf("run %s: %w", c.Name, err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		readLines(out, say)
	}()
	err = cmd.Wait()
	// Remaining processes are killed before the next command; then they no longer have the pipe open.
	if left := endScope(); left != "" {
		say("killed remaining processes: " + left)
	}
	select {
	case <-read:
	case <-time.After(dumpTimeout): // a process in another cgroup has the pipe open
		out.Close()
		<-read
	}
	code = cmd.ProcessState.ExitCode()
	if errors.As(err, new(*exec.ExitError)) {
		err = nil
		if status, ok := cmd.ProcessState.Sys().(unix.WaitStatus); ok && status.Signaled() {
			err = fmt.Errorf("killed by %v", status.Signal())
		}
	}
	return code, err
}

// readLines reads to the end, and splits lines that are too long for an event.
func readLines(out io.Reader, say func(string)) {
	const longest = protocol.MaxLine / 8 // a byte may need six in JSON
	r := bufio.NewReaderSize(out, longest)
	for {
		line, err := r.ReadSlice('\n')
		if len(line) > 0 {
			say(string(bytes.TrimRight(line, "\r\n")))
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}

// endScope kills the remaining processes of the scope and returns their names.
func endScope() string {
	ctx, cancel := context.WithTimeout(context.Background(), endScopeTimeout)
	defer cancel()
	// systemd removes the scope with its last process.
	if err := exec.CommandContext(ctx, "systemctl", "is-active", "--quiet", scope).Run(); err != nil {
		return ""
	}
	group, err := exec.CommandContext(ctx, "systemctl", "show", "--property=ControlGroup", "--value", scope).Output()
	if err != nil {
		return ""
	}
	names := processes(strings.TrimSpace(string(group)))
	_ = exec.CommandContext(ctx, "systemctl", "kill", "--kill-whom=all", "--signal=SIGKILL", scope).Run()
	_ = exec.CommandContext(ctx, "systemctl", "stop", scope).Run()
	return names
}
