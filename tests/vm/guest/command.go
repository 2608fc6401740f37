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

// command is one of the plan's that runs.
type command struct {
	protocol.Command
	stop context.CancelCauseFunc

	mu      sync.Mutex
	trouble protocol.Trouble
	text    string
}

// errTrouble ends a command that the kernel's trouble has failed.
var errTrouble = errors.New("the machine is in trouble")

// fail ends the command, unless it expects what happened or it fails nothing.
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

// troubled says that the command has failed by trouble already, or expects all there is.
func (c *command) troubled() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.trouble != ""
}

// lastWords is how long a command may take to tell where it was when it is stopped.
const lastWords = 10 * time.Second

// scope is the unit that a command runs in, with all that it starts. Its cgroup is the command's to divide.
const scope = "vm-command.scope"

// run runs one command to its end and tells the host.
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
		time.Sleep(goesDown)
		end.ExitCode, end.Text = -1, fmt.Sprintf("the machine was not switched off within %v", goesDown)
	}
	r.port.send(end)
}

// goesDown is how long a machine may take to switch itself off.
const goesDown = 3 * time.Minute

// execute runs the program until it ends, or ctx does. The code is −1 if it did not exit by itself.
func (c *command) execute(ctx context.Context, say func(string)) (code int, err error) {
	// The program starts as one that the kernel's OOM killer may take, which this one is not. systemd-run executes
	// it in its own place, so that it keeps the environment, the directory and the process id.
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
	// A pipe of our own: Wait closes cmd's before what its children hold is read.
	out, in, err := os.Pipe()
	if err != nil {
		return -1, fmt.Errorf("run %s: %w", c.Name, err)
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = in, in
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGQUIT) }
	cmd.WaitDelay = lastWords
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
	// What it has left behind goes before the next command, and lets go of the pipe.
	if left := endScope(); left != "" {
		say("left behind, and killed: " + left)
	}
	select {
	case <-read:
	case <-time.After(lastWords): // a process in another cgroup holds it
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

// readLines reads to the end, and cuts lines that no event holds.
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

// endScope kills what is left in the scope and returns the processes' names.
func endScope() string {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	// The scope is gone when its last process is, which may be just now.
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
