package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/evictd/evictd/agent/version"
)

func newVersionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of evictctl",
		Args:  cobra.NoArgs,
		Example: `  evictctl version
  evictctl version -o json`,
	}
	format := addOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		build := version.Of()
		if *format == outputJSON {
			return printJSON(cmd.OutOrStdout(), build)
		}
		_, err := fmt.Fprintln(cmd.OutOrStdout(), "evictctl", build)
		return err
	}
	return cmd
}
