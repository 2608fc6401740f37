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
		Long: `Show which pods the running evictd would evict if a signal were low now, in which
order and why. It also shows which pods are exempt, and which containers on this
host don't belong to the container runtime; evictd never kills those.

JSON also has the containers of each pod and their cgroups.`,
		Args: cobra.NoArgs,
		Example: `  evictctl explain

  # Which pod is evicted first when the disk is full?
  evictctl explain --signal nodefs.available

  evictctl explain -o json | jq -r '.ranking[0].pod'`,
	}
	format := addOutputFlag(cmd)
	socket := addSocketFlag(cmd)
	name := cmd.Flags().String("signal", signal.MemoryAvailable.String(), "`signal` to rank for")
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
	p.line("%s: %s", e.Signal, signalState(&e.Observation))
	if e.Observation.DryRunAdds > 0 {
		p.line("dry run:    dry-run victims add %s", control.Amount(e.Signal, e.Observation.DryRunAdds))
	}
	for _, t := range e.Observation.Thresholds {
		p.line("threshold:  %s, %s: %s", thresholdText(e.Signal, &t), kind(&t), thresholdState(&e.Observation, &t, e.At))
	}
	if len(e.Observation.Thresholds) == 0 {
		p.line("threshold:  none")
	}
	if m := e.Memory; m != nil {
		if m.UnaccountedBytes != nil {
			p.line("note:       %s of memory is the kernel's own (neither free, anonymous, file cache nor hugetlb); evictions don't free it", control.Bytes(*m.UnaccountedBytes))
		}
		if m.SwapTotalBytes != nil && m.SwapFreeBytes != nil && *m.SwapTotalBytes > 0 {
			p.line("note:       %s of %s of swap is free; it does not count as available", control.Bytes(*m.SwapFreeBytes), control.Bytes(*m.SwapTotalBytes))
		}
	}
	for _, n := range e.Notes {
		p.line("note:       %s", n)
	}
	podNotes(p, e.Ranking)
	if len(e.Ranking) == 0 {
		p.line("ranking:    no pod is eligible for eviction")
	}
	p.table([]string{"#", "POD", "QOS", "EXPECTED", "WHY"}, rankingRows(e))
	p.table([]string{"EXEMPT", "REASON", "DETAIL"}, exemptRows(e.Exempt))
	p.table([]string{"OOM_SCORE_ADJ", "CONTAINER", "IS", "SHOULD BE", "OOM GROUP", "BY"}, scoreRows(e.OOMScores))
	p.table([]string{"PROCESSES", "MEMORY", "COMMAND", "FOREIGN CONTAINER, NEVER KILLED"}, foreignRows(e.ForeignContainers))
	return p
}

// podNotes adds lines about the data of single pods.
func podNotes(p *page, ranking []control.Candidate) {
	for _, c := range ranking {
		for _, a := range c.IgnoredAnnotations {
			p.line("note:       %s: untrusted annotation %s is ignored", c.Pod, a)
		}
	}
	for _, c := range ranking {
		if text := factsText(c.Facts); text != "" {
			p.line("note:       %s: %s", c.Pod, text)
		}
	}
	for _, c := range ranking {
		if r := c.Reclaim; r != nil && r.Count > 0 {
			p.line("note:       %s: its tasks stalled %d times in direct reclaim, %s in total, %s at most",
				c.Pod, r.Count, seconds(r.Seconds), seconds(r.LongestSeconds))
		}
	}
	for _, c := range ranking {
		if d := c.Disk; d != nil {
			age, incomplete := "never", ""
			if d.AgeSeconds != nil {
				age = seconds(*d.AgeSeconds) + " ago"
			}
			if d.Incomplete != "" {
				incomplete = "; it may use more: " + d.Incomplete
			}
			p.line("note:       %s: measured %s by %s%s", c.Pod, age, orDash(strings.Join(d.By, ", ")), incomplete)
		}
	}
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

// scoreRows returns one row per container. A container whose processes differ shows
// the lowest and the highest score.
func scoreRows(scores []control.OOMScore) [][]string {
	var rows [][]string
	for i := range scores {
		s := &scores[i]
		is, wanted, group, by := "unknown", "-", "-", orDash(s.From)
		if s.Error != "" {
			by += "; " + s.Error
		}
		if s.Min != nil && s.Max != nil {
			if is = strconv.Itoa(*s.Min); *s.Max != *s.Min {
				is += " to " + strconv.Itoa(*s.Max)
			}
			if s.Mismatched != nil && *s.Mismatched > 0 {
				by += fmt.Sprintf("; %d of %d processes differ", *s.Mismatched, s.Processes)
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

func foreignRows(containers []control.ForeignContainer) [][]string {
	var rows [][]string
	for _, c := range containers {
		memory := "-"
		if c.MemoryBytes != nil {
			memory = control.Bytes(*c.MemoryBytes)
		}
		rows = append(rows, []string{strconv.Itoa(c.Processes), memory, orDash(c.Command), c.Cgroup})
	}
	return rows
}
