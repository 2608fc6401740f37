package machine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/tests/daemon"
)

// errNoTerminal means that standard input is not a terminal.
var errNoTerminal = errors.New("standard input is not a terminal")

// Shell boots the machine with its console on this process's terminal, and returns when it is powered off. Without a
// plan, its runner does not start. Dir has the guest's writes and no logs.
func Shell(ctx context.Context, c Config) error {
	if _, err := unix.IoctlGetTermios(int(os.Stdin.Fd()), unix.TCGETS); err != nil {
		return fmt.Errorf("start shell: %w", errNoTerminal)
	}
	cmd := exec.Command(c.QEMU, c.shellArguments()...)
	cmd.Env = append(os.Environ(), "TMPDIR="+c.Dir)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	// QEMU has its own process group, which must be the terminal's foreground to read from it.
	cmd.SysProcAttr = &unix.SysProcAttr{Foreground: true, Ctty: int(os.Stdin.Fd())}
	qemu, err := daemon.StartProcess(cmd)
	if err != nil {
		return fmt.Errorf("start shell: %w", err)
	}
	select {
	case <-qemu.Done():
		return qemu.Err()
	case <-ctx.Done():
		return errors.Join(context.Cause(ctx), qemu.Terminate(panicDelay))
	}
}
