package main

import (
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
)

// table has rows of the same length.
type table struct {
	head []string
	rows [][]string
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

// text returns the table for a terminal; "" without rows.
func (t *table) text() string {
	if len(t.rows) == 0 {
		return ""
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, row := range append([][]string{t.head}, t.rows...) {
		fmt.Fprintf(w, "  %s\n", strings.Join(row, "\t"))
	}
	w.Flush()
	return b.String()
}

// markdown returns the table for the document.
func (t *table) markdown() string {
	var b strings.Builder
	line := func(cells []string) { fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | ")) }
	line(t.head)
	b.WriteString("|" + strings.Repeat("---|", len(t.head)) + "\n")
	for _, row := range t.rows {
		line(row)
	}
	return b.String()
}

// labels returns the first columns of a table of series: the contender, preceded by the case if there is more than one.
// of must be called in the order of the rows: it leaves the case empty where it is that of the row before.
func labels(all []*crossings) (head []string, of func(*crossings) []string) {
	if !slices.ContainsFunc(all, func(c *crossings) bool { return c.Case != all[0].Case }) {
		return []string{""}, func(c *crossings) []string { return []string{c.Contender} }
	}
	last := ""
	return []string{"", ""}, func(c *crossings) []string {
		name := c.Case
		if name == last {
			name = ""
		}
		last = c.Case
		return []string{name, c.Contender}
	}
}

// crossingsTable returns a table with a row per series.
func crossingsTable(all []*crossings) *table {
	head, label := labels(all)
	t := &table{head: append(head,
		"n", "crossing → SIGKILL: median", "p99", "max", "≤ 0", "back above: median", "max", "overshoot: median", "max", "raised by", "other events")}
	for _, c := range all {
		cells := append(label(c), fmt.Sprint(c.n()))
		if len(c.Killed) == 0 {
			t.add(append(cells, "–", "–", "–", "–", "–", "–", "–", "–", "–", c.otherEvents())...)
			continue
		}
		raised := "–"
		if len(c.Lanes) > 0 {
			raised = counts(c.Lanes)
		}
		t.add(append(cells,
			milliseconds(median(c.Killed)), milliseconds(quantile(c.Killed, 0.99)), milliseconds(quantile(c.Killed, 1)),
			fmt.Sprint(early(c.Killed)+c.By[byEarly]), milliseconds(median(c.Back)), milliseconds(quantile(c.Back, 1)),
			size(median(c.Overshoot)), size(quantile(c.Overshoot, 1)), raised, c.otherEvents())...)
	}
	return t
}

// otherEvents lists failures, kills by others, and whether the bystanders survived.
func (c *crossings) otherEvents() string {
	var parts []string
	if c.BystanderPods > 0 {
		parts = append(parts, fmt.Sprintf("all %d bystanders survived: %d of %d", c.BystanderPods, c.Survived, c.n()))
	}
	counts := []count{
		{"no kill", c.By[byNone]}, {"killed by the kernel", c.By[byKernel]}, {"stopped at the reserve", c.By[bySampler]},
		{"kernel OOM kills", c.OOMKills}, {"bystanders killed", c.BystandersKilled}, {"killed before the start", c.Lost}, {"failed", c.Failed},
	}
	return joinCounts(counts, parts...)
}

// count is how often something was seen.
type count struct {
	what string
	n    int
}

// joinCounts lists parts and the counts that are not 0.
func joinCounts(counts []count, parts ...string) string {
	for _, c := range counts {
		if c.n > 0 {
			parts = append(parts, fmt.Sprintf("%s: %d", c.what, c.n))
		}
	}
	if len(parts) == 0 {
		return "–"
	}
	return strings.Join(parts, "; ")
}
