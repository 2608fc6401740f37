package main

import (
	"strings"
	"time"

	"github.com/spf13/cobra"
)

func newFenceListCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "Print the fences of the cluster",
		Long: `List prints the NodeFences of the cluster, those that have not ended first: how far
each is, since when, how often its step was repeated, and the conditions that are
true, such as what it waits for. It runs kubectl, with your credentials.`,
		Example: `  evictctl fence list
  evictctl fence list --context production -o json`,
		Args: cobra.NoArgs,
	}
	k := addKubectlFlags(cmd)
	format := addOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		list, err := listFences(cmd.Context(), k)
		if err != nil {
			return err
		}
		if *format == outputJSON {
			return printJSON(cmd.OutOrStdout(), append([]nodeFence{}, list...))
		}
		return fencesPage(list, time.Now()).print(cmd.OutOrStdout())
	}
	return cmd
}

// fencesPage is the text output of evictctl fence list.
func fencesPage(list []nodeFence, now time.Time) *page {
	p := &page{}
	if len(list) == 0 {
		p.line("no node is or was fenced")
		return p
	}
	var rows [][]string
	for i := range list {
		f := &list[i]
		rows = append(rows, []string{f.Node, f.stage(), between(f.since(), now), orDash(strings.Join(f.holds(), ", "))})
	}
	p.table([]string{"NODE", "STAGE", "FOR", "CONDITIONS"}, rows)
	return p
}
