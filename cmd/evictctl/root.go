package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

// The exit codes.
const (
	exitOK      = 0
	exitFailure = 1 // it failed, or what was checked is invalid
	exitUsage   = 2 // evictctl was called wrongly
)

// usageError is a mistake in the call that only the command itself can see,
// such as two flags that exclude each other.
type usageError struct{ message string }

func (e *usageError) Error() string { return e.message }

func usagef(format string, args ...any) error {
	return &usageError{message: fmt.Sprintf(format, args...)}
}

// errReported is returned by a command that has already printed why it failed.
var errReported = errors.New("reported already")

// run carries out one call of evictctl and returns its exit code.
func run(args []string, stdout, stderr io.Writer) int {
	root := newRootCommand()
	started := false
	root.PersistentPreRun = func(*cobra.Command, []string) { started = true }
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	command, err := root.ExecuteC()
	if err == nil {
		return exitOK
	}
	var usage *usageError
	switch {
	case !started, errors.As(err, &usage):
		fmt.Fprintf(stderr, "evictctl: %v\nRun '%s --help' for usage.\n", err, command.CommandPath())
		return exitUsage
	case !errors.Is(err, errReported):
		fmt.Fprintf(stderr, "evictctl: %v\n", err)
	}
	return exitFailure
}

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "evictctl",
		Short:         "Check, replay and explain what evictd does",
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE:          needsSubcommand,
		Example: `  # Is this configuration valid?
  evictctl config check /etc/evictd/config.yaml

  # Which values are in force, and where does each come from?
  evictctl config dump`,
	}
	root.AddCommand(newConfigCommand())
	root.AddCommand(newExplainCommand())
	root.AddCommand(newReloadCommand())
	root.AddCommand(newSimulateCommand())
	root.AddCommand(newShutdownCommand())
	root.AddCommand(newProbeCommand())
	root.AddCommand(newStatusCommand())
	root.AddCommand(newVersionCommand())
	return root
}

// needsSubcommand is what a command runs that only groups others: cobra would
// print its help and report success.
func needsSubcommand(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("unknown command %q for %q", args[0], cmd.CommandPath())
	}
	return usagef("%s needs a subcommand", cmd.CommandPath())
}
