package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/evictd/evictd/agent/control"
)

func newReloadCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "reload",
		Short: "Have the running evictd read its configuration again",
		Long: `Have the running evictd read the files that it was started with again, and show
what has changed. systemctl reload runs this command.

It exits with 1 when a file is wrong, and prints everything that is wrong with it;
the configuration in force stays the one before.`,
		Args:    cobra.NoArgs,
		Example: `  evictctl reload`,
	}
	format := addOutputFlag(cmd)
	socket := addSocketFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := control.NewClient(*socket).Reload(cmd.Context())
		if err != nil {
			return withRemedy(err)
		}
		if *format == outputJSON {
			return printJSON(cmd.OutOrStdout(), c)
		}
		return reloadPage(&c).print(cmd.OutOrStdout())
	}
	return cmd
}

func reloadPage(c *control.Config) *page {
	p := &page{}
	p.line("config:      %s", configLine(*c))
	if len(c.Changed) == 0 {
		p.line("changed:     nothing")
	}
	for _, change := range c.Changed {
		p.line("changed:     %s: %s -> %s", change.Field, orDash(change.Before), orDash(change.After))
	}
	if len(c.NeedsRestart) > 0 {
		p.line("warning:     %s", needsRestart(c))
	}
	return p
}

// needsRestart says which fields wait for a restart.
func needsRestart(c *control.Config) string {
	return "changed, but in force after a restart only: " + strings.Join(c.NeedsRestart, ", ")
}
