package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
)

func newExplainCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "explain",
		Short: "Show which pods would be evicted now, and why",
		Long: `Show which pods the running evictd would evict if a signal were low now, in
which order and why; which pods are exempt; and which containers on this host
are not the runtime's: those are not ours and never killed.

JSON also has each pod's containers and their cgroups.`,
		Args: cobra.NoArgs,
		Example: `  evictctl explain

  # Who goes first when the disk is full?
  evictctl explain --signal nodefs.available

  evictctl explain -o json | jq -r '.ranking[0].pod'`,
	}
	format := addOutputFlag(cmd)
	socket := addSocketFlag(cmd)
	name := cmd.Flags().String("signal", signal.MemoryAvailable.String(), "the `signal` to rank for")
	names := make([]cobra.Completion, 0, signal.Count)
	for _, s := range signal.All() {
		names = append(names, s.String())
	}
	if err := cmd.RegisterFlagCompletionFunc("signal", cobra.FixedCompletions(names, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // the flag was declared above
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		s, ok := signal.Parse(*name)
		if !ok {
			return usagef("%s", control.UnknownSignal(*name))
		}
		e, err := control.NewClient(*socket).Explain(cmd.Context(), s)
		if err != nil {
			return withRemedy(err)
		}
		if *format == outputJSON {
			return printJSON(cmd.OutOrStdout(), e)
		}
		return explanationPage(&e).print(cmd.OutOrStdout())
	}
	return cmd
}

func explanationPage(e *control.Explanation) *page {
	p := &page{}
	p.line("%s: %s", e.Signal, underPressure(&e.Observation))
	if e.Observation.DryRunAdds > 0 {
		p.line("dry run:    would-be victims add %s to that", control.Amount(e.Signal, e.Observation.DryRunAdds))
	}
	for _, t := range e.Observation.Thresholds {
		p.line("threshold:  %s, %s: %s", thresholdText(e.Signal, &t), kind(&t), standing(&e.Observation, &t, e.At))
	}
	if len(e.Observation.Thresholds) == 0 {
		p.line("threshold:  none")
	}
	if m := e.Memory; m != nil {
		if m.UnaccountedBytes != nil {
			p.line("note:       %s of memory are neither free, anonymous, file cache nor hugetlb: the kernel's own, which no eviction brings back", control.Bytes(*m.UnaccountedBytes))
		}
		if m.SwapTotalBytes != nil && m.SwapFreeBytes != nil && *m.SwapTotalBytes > 0 {
			p.line("note:       %s of %s of swap are free, which do not count", control.Bytes(*m.SwapFreeBytes), control.Bytes(*m.SwapTotalBytes))
		}
	}
	for _, n := range e.Notes {
		p.line("note:       %s", n)
	}
	for _, c := range e.Ranking {
		for _, a := range c.IgnoredAnnotations {
			p.line("note:       %s: the annotation %s is not believed", c.Pod, a)
		}
	}
	for _, c := range e.Ranking {
		if r := c.Reclaim; r != nil && r.Count > 0 {
			p.line("note:       %s: its tasks have stalled in reclaim for %s in all, %d times, the longest for %s",
				c.Pod, seconds(r.Seconds), r.Count, seconds(r.LongestSeconds))
		}
	}
	for _, c := range e.Ranking {
		if d := c.Disk; d != nil {
			age, short := "never", ""
			if d.AgeSeconds != nil {
				age = seconds(*d.AgeSeconds) + " ago"
			}
			if d.Short != "" {
				short = "; it may hold more: " + d.Short
			}
			p.line("note:       %s: measured %s by %s%s", c.Pod, age, orDash(strings.Join(d.By, ", ")), short)
		}
	}
	if len(e.Ranking) == 0 {
		p.line("ranking:    no pod may be evicted")
	}
	p.table([]string{"#", "POD", "QOS", "EXPECTED", "WHY"}, rankingRows(e))
	p.table([]string{"EXEMPT", "REASON", "DETAIL"}, exemptRows(e.Exempt))
	p.table([]string{"OOM_SCORE_ADJ", "CONTAINER", "IS", "SHOULD BE", "OOM GROUP", "BY"}, scoreRows(e.OOMScores))
	p.table([]string{"PROCESSES", "MEMORY", "COMMAND", "NOT OURS, NEVER KILLED"}, outsiderRows(e.NotOurs))
	return p
}

func rankingRows(e *control.Explanation) [][]string {
	var rows [][]string
	for i, c := range e.Ranking {
		why := c.Why
		if c.RequestOrigin != "" {
			why += "; request: " + c.RequestOrigin
		}
		rows = append(rows, []string{strconv.Itoa(i + 1), c.Pod, string(c.QoS), control.Amount(e.Signal, c.Expected), why})
	}
	return rows
}

func exemptRows(exempt []evict.Exempt) [][]string {
	var rows [][]string
	for _, x := range exempt {
		rows = append(rows, []string{x.Pod, x.Reason, orDash(x.Detail)})
	}
	return rows
}

// scoreRows shows the scores of processes: one, or the lowest and the highest.
func scoreRows(scores []control.OOMScore) [][]string {
	var rows [][]string
	for i := range scores {
		s := &scores[i]
		is, wanted, group, by := "not known", "-", "-", orDash(s.From)
		if s.Error != "" {
			by += "; " + s.Error
		}
		if s.Least != nil && s.Most != nil {
			if is = strconv.Itoa(*s.Least); *s.Most != *s.Least {
				is += " to " + strconv.Itoa(*s.Most)
			}
			if s.Wrong != nil && *s.Wrong > 0 {
				by += fmt.Sprintf("; %d of %d processes differ", *s.Wrong, s.Processes)
			}
		}
		if s.Wanted != nil {
			wanted = strconv.Itoa(*s.Wanted)
		}
		if s.Group != nil {
			group = strconv.FormatBool(*s.Group)
		}
		rows = append(rows, []string{s.Pod, s.Container, is, wanted, group, by})
	}
	return rows
}

func outsiderRows(outsiders []control.Outsider) [][]string {
	var rows [][]string
	for _, o := range outsiders {
		memory := "-"
		if o.MemoryBytes != nil {
			memory = control.Bytes(*o.MemoryBytes)
		}
		rows = append(rows, []string{strconv.Itoa(o.Processes), memory, orDash(o.Command), o.Cgroup})
	}
	return rows
}
