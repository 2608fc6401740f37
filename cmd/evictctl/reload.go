package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/evictd/evictd/agent/control"
)

func newReloadCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "reload",
		Short: "Reload the configuration of the running evictd",
		Long: `Make the running evictd read again the configuration files that it was started
with, and show what has changed. systemctl reload runs this command.

If a file is invalid, it prints all errors and exits with 1; the previous
configuration stays in force.`,
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
		p.line("changed:     none")
	}
	for _, change := range c.Changed {
		p.line("changed:     %s: %s -> %s", change.Field, orDash(change.Before), orDash(change.After))
	}
	if len(c.NeedsRestart) > 0 {
		p.line("warning:     %s", needsRestart(c))
	}
	return p
}

// needsRestart returns a warning that lists the fields that take effect at the next
// start.
func needsRestart(c *control.Config) string {
	return "changed, but takes effect only after a restart: " + strings.Join(c.NeedsRestart, ", ")
}
