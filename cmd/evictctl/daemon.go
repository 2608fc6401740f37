package main

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/spf13/cobra"

	"github.com/evictd/evictd/agent/control"
)

// addSocketFlag adds --control-socket to a command.
func addSocketFlag(cmd *cobra.Command) *string {
	return cmd.Flags().String("control-socket", control.DefaultSocket, "`path` of evictd's control socket")
}

// withRemedy adds to an error of the control client what the user can do.
func withRemedy(err error) error {
	switch {
	case errors.Is(err, control.ErrNotRunning):
		return fmt.Errorf("%w; start it, or name its socket with --control-socket", err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w; only its owner may open the socket, run evictctl as root", err)
	case errors.Is(err, control.ErrNoResponse):
		return fmt.Errorf("%w; it hangs or is stopping, or the node is short of CPU or memory; see its log", err)
	case errors.Is(err, control.ErrNotEvictd):
		return fmt.Errorf("%w; name evictd's socket with --control-socket", err)
	}
	return err
}
