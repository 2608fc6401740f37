package node

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// daemon is a running containerd.
type daemon struct {
	cmd  *exec.Cmd
	done chan struct{} // closed after err is set to the result of Wait
	err  error
}

// SystemCommand returns a command that a shell starts after it has joined the node's system cgroup, so that all of
// the command's children are in that cgroup too, and Close kills them.
func (n *Node) SystemCommand(ctx context.Context, name string, args ...string) *exec.Cmd {
	const join = `while [ "$1" != -- ]; do echo $$ >"$1" || exit 126; shift; done; shift; exec "$@"`
	argv := append([]string{"-c", join, "sh"}, n.tree.procsFiles(n.system())...)
	argv = append(append(argv, "--", name), args...)
	cmd := exec.CommandContext(ctx, "/bin/sh", argv...)
	cmd.Dir = "/"
	cmd.SysProcAttr = &unix.SysProcAttr{
		Chroot:  n.chroot,
		Setpgid: true, // the terminal's ^C goes only to this process
	}
	cmd.Env = append(os.Environ(), "PATH="+n.binaries.path())
	return cmd
}

// RestartRuntime kills containerd if it runs and starts it with the same state. Containers and shims are not affected.
// It returns when CRI answers.
func (n *Node) RestartRuntime(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.killDaemon()
	began := time.Now()
	logFile, err := os.OpenFile(n.path(logName), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("start containerd: %w", err)
	}
	defer logFile.Close()
	// containerd outlives ctx. It logs to a file, because a pipe would break when this process dies.
	cmd := n.SystemCommand(context.WithoutCancel(ctx), n.binaries.Containerd, "--config", n.path("containerd.toml"))
	cmd.Stdout, cmd.Stderr = logFile, logFile
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start containerd: %w", err)
	}
	d := &daemon{cmd: cmd, done: make(chan struct{})}
	n.daemon = d
	go func() {
		d.err = cmd.Wait()
		close(d.done)
	}()
	if err := n.waitForCRI(ctx, d); err != nil {
		return fmt.Errorf("start containerd: %w: %s", err, n.logTail())
	}
	n.log.Printf("containerd (pid %d) answers after %v", cmd.Process.Pid, since(began))
	return nil
}

// waitForCRI waits until CRI answers without an error. containerd listens before the CRI plugin is ready, and answers
// with errors until then.
func (n *Node) waitForCRI(ctx context.Context, d *daemon) error {
	ctx, cancel := context.WithTimeout(ctx, ScaleTimeout(time.Minute))
	defer cancel()
	go func() {
		select {
		case <-d.done:
			cancel()
		case <-ctx.Done():
		}
	}()
	for {
		_, err := n.runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			select {
			case <-d.done:
				return fmt.Errorf("containerd exited: %w", d.err)
			default:
				return err
			}
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// KillRuntime sends SIGKILL to containerd. Shims and containers go on running. RestartRuntime starts containerd again.
func (n *Node) KillRuntime() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.killDaemon()
}

func (n *Node) killDaemon() {
	if n.daemon == nil {
		return
	}
	_ = n.daemon.cmd.Process.Kill() // fails only if it has already exited
	<-n.daemon.done
	n.daemon = nil
}

// RuntimePID returns the process ID of containerd, or 0 while it does not run.
func (n *Node) RuntimePID() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.daemon == nil {
		return 0
	}
	return n.daemon.cmd.Process.Pid
}

// logTail returns the end of containerd's log, for an error text.
func (n *Node) logTail() string {
	b, err := os.ReadFile(n.path(logName))
	if err != nil {
		return err.Error()
	}
	return string(bytes.TrimSpace(b[max(0, len(b)-2000):]))
}
