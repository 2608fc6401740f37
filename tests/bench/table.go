package main

import (
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
)

// table is text in rows of one length.
type table struct {
	head []string
	rows [][]string
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

// text is the table for a terminal, nothing without rows.
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

// markdown is the table for a document.
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

// labels are the first cells of the rows of some series, in their order: the contender, and before it, if they are of
// more than one case, the case where it is another than in the row before.
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

// crossingsTable has a row per series.
func crossingsTable(all []*crossings) *table {
	head, label := labels(all)
	t := &table{head: append(head,
		"n", "crossing → SIGKILL: median", "p99", "max", "≤ 0", "back above: median", "max", "overshoot: median", "max", "raised by", "beside")}
	for _, c := range all {
		cells := append(label(c), fmt.Sprint(c.n()))
		if len(c.Killed) == 0 {
			t.add(append(cells, "–", "–", "–", "–", "–", "–", "–", "–", "–", c.beside())...)
			continue
		}
		raised := "–"
		if len(c.Lanes) > 0 {
			raised = counts(c.Lanes)
		}
		t.add(append(cells,
			milliseconds(median(c.Killed)), milliseconds(quantile(c.Killed, 0.99)), milliseconds(quantile(c.Killed, 1)),
			fmt.Sprint(early(c.Killed)+c.By[byEarly]), milliseconds(median(c.Back)), milliseconds(quantile(c.Back, 1)),
			size(median(c.Overshoot)), size(quantile(c.Overshoot, 1)), raised, c.beside())...)
	}
	return t
}

// beside lists what else happened.
func (c *crossings) beside() string {
	var parts []string
	if c.Calm > 0 {
		parts = append(parts, fmt.Sprintf("all %d calm pods lived: %d of %d", c.Calm, c.Spared, c.n()))
	}
	for _, count := range []struct {
		what string
		n    int
	}{
		{"never fired", c.By[byNobody]}, {"the kernel was first", c.By[byKernel]}, {"stopped at the reserve", c.By[byWitness]},
		{"kernel OOM kills", c.OOMKills}, {"bystanders killed", c.Bystanders}, {"killed before its cue", c.Lost}, {"gone wrong", c.Failed},
	} {
		if count.n > 0 {
			parts = append(parts, fmt.Sprintf("%s: %d", count.what, count.n))
		}
	}
	if len(parts) == 0 {
		return "–"
	}
	return strings.Join(parts, "; ")
}
