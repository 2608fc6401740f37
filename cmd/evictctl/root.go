package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
)

// The exit codes.
const (
	exitOK      = 0
	exitFailure = 1 // failure, or a checked file is invalid
	exitUsage   = 2 // wrong usage, or input of affinity that can't be read
)

// usageError is wrong usage that only the command itself can detect, such as an
// unknown signal.
type usageError struct{ message string }

func (e *usageError) Error() string { return e.message }

func usagef(format string, args ...any) error {
	return &usageError{message: fmt.Sprintf(format, args...)}
}

// inputError is the problems of input that a command compares, and that is not what it checks. Each begins with its file
// and line.
type inputError struct{ problems []string }

func (e *inputError) Error() string { return strings.Join(e.problems, "\n") }

// errReported is returned by a command that has already printed its error.
var errReported = errors.New("reported already")

// run runs evictctl with args and returns its exit code.
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
	var input *inputError
	switch {
	case errors.As(err, &input):
		for _, problem := range input.problems {
			fmt.Fprintln(stderr, printable(problem))
		}
		return exitUsage
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
		Short:         "Inspect and control evictd",
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE:          needsSubcommand,
		Example: `  # Is this configuration valid?
  evictctl config check /etc/evictd/config.yaml

  # Which values are in force, and where does each come from?
  evictctl config dump`,
	}
	root.AddCommand(newAffinityCommand())
	root.AddCommand(newConfigCommand())
	root.AddCommand(newExplainCommand())
	root.AddCommand(newFenceCommand())
	root.AddCommand(newReloadCommand())
	root.AddCommand(newSimulateCommand())
	root.AddCommand(newShutdownCommand())
	root.AddCommand(newKubeletConfigCommand())
	root.AddCommand(newProbeCommand())
	root.AddCommand(newStatusCommand())
	root.AddCommand(newVersionCommand())
	return root
}

// needsSubcommand is the RunE of a command that only groups others. Without it cobra
// prints the help and exits with 0.
func needsSubcommand(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("unknown command %q for %q", args[0], cmd.CommandPath())
	}
	return usagef("%s needs a subcommand", cmd.CommandPath())
}
