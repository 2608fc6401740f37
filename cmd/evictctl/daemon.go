package main

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/spf13/cobra"

	"github.com/evictd/evictd/agent/control"
)

// addSocketFlag gives a command --control-socket.
func addSocketFlag(cmd *cobra.Command) *string {
	return cmd.Flags().String("control-socket", control.DefaultSocket, "the `path` of evictd's control socket")
}

// withRemedy adds to an error of the control client what the user can do about
// it.
func withRemedy(err error) error {
	switch {
	case errors.Is(err, control.ErrNotRunning):
		return fmt.Errorf("%w; start it, or name its socket with --control-socket", err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w; the socket is its owner's alone, run evictctl as root", err)
	case errors.Is(err, control.ErrNoAnswer):
		return fmt.Errorf("%w; it hangs or stops, or the node is short of CPU or memory; its log tells", err)
	case errors.Is(err, control.ErrNotEvictd):
		return fmt.Errorf("%w; name evictd's socket with --control-socket", err)
	}
	return err
}
