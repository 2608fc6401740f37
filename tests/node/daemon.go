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
	done chan struct{} // closed once err is what Wait said
	err  error
}

// inside makes a command that runs in the node's system cgroup from its first instruction on, so that
// whatever it forks is there too.
func (n *Node) inside(ctx context.Context, name string, args ...string) *exec.Cmd {
	const join = `while [ "$1" != -- ]; do echo $$ >"$1" || exit 126; shift; done; shift; exec "$@"`
	argv := append([]string{"-c", join, "sh"}, n.tree.procsFiles(n.system())...)
	argv = append(append(argv, "--", name), args...)
	cmd := exec.CommandContext(ctx, "/bin/sh", argv...)
	cmd.Dir = "/"
	cmd.SysProcAttr = &unix.SysProcAttr{
		Chroot:  n.slash,
		Setpgid: true, // a ^C is for us
	}
	cmd.Env = append(os.Environ(), "PATH="+n.binaries.path())
	return cmd
}

// Restart starts containerd again on what it had, after killing it if it runs. Containers and shims live on.
// It returns when CRI answers.
func (n *Node) Restart(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.killDaemon()
	began := time.Now()
	logFile, err := os.OpenFile(n.path(logName), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("start containerd: %w", err)
	}
	defer logFile.Close()
	// Its life does not end with ctx. And it writes to a file: a pipe would break when we die.
	cmd := n.inside(context.WithoutCancel(ctx), n.binaries.Containerd, "--config", n.path("containerd.toml"))
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
	if err := n.answers(ctx, d); err != nil {
		return fmt.Errorf("start containerd: %w: %s", err, n.logTail())
	}
	n.log.Printf("containerd (pid %d) answers after %v", cmd.Process.Pid, since(began))
	return nil
}

// answers waits until CRI is served. It listens before it is ready, and then answers with errors.
func (n *Node) answers(ctx context.Context, d *daemon) error {
	ctx, cancel := context.WithTimeout(ctx, Slow(time.Minute))
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
				return fmt.Errorf("it ended: %w", d.err)
			default:
				return err
			}
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// Kill kills containerd by SIGKILL, and nothing else: shims and containers live on. Restart starts it again.
func (n *Node) Kill() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.killDaemon()
}

func (n *Node) killDaemon() {
	if n.daemon == nil {
		return
	}
	_ = n.daemon.cmd.Process.Kill() // ended already, at worst
	<-n.daemon.done
	n.daemon = nil
}

// PID is containerd's, 0 while it does not run.
func (n *Node) PID() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.daemon == nil {
		return 0
	}
	return n.daemon.cmd.Process.Pid
}

// logTail is the end of containerd's log, for an error.
func (n *Node) logTail() string {
	b, err := os.ReadFile(n.path(logName))
	if err != nil {
		return err.Error()
	}
	return string(bytes.TrimSpace(b[max(0, len(b)-2000):]))
}
