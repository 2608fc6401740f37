package main

import (
	"fmt"
	"strings"
	"text/tabwriter"
)

// table is text in rows of one length, for people.
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
		fmt.Fprintf(w, "  %s\n", strings.Join(row, "\t")) // into memory
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

// crossingsTable has a row per series.
func crossingsTable(all []*crossings) *table {
	t := &table{head: []string{
		"", "n", "crossing → SIGKILL: median", "p99", "max", "≤ 0", "back above: median", "max", "overshoot: median", "max", "raised by", "beside",
	}}
	for _, c := range all {
		cells := []string{c.Contender, fmt.Sprint(c.n())}
		if len(c.Killed) == 0 {
			t.add(append(cells, "–", "–", "–", "–", "–", "–", "–", "–", "–", c.beside())...)
			continue
		}
		t.add(append(cells,
			milliseconds(median(c.Killed)), milliseconds(quantile(c.Killed, 0.99)), milliseconds(quantile(c.Killed, 1)),
			fmt.Sprint(early(c.Killed)+c.By[byEarly]),
			milliseconds(median(c.Back)), milliseconds(quantile(c.Back, 1)),
			size(median(c.Overshoot)), size(quantile(c.Overshoot, 1)),
			c.raisedBy(), c.beside())...)
	}
	return t
}

// raisedBy tells what raised the alarms, the most frequent first.
func (c *crossings) raisedBy() string {
	if len(c.Lanes) == 0 {
		return "–"
	}
	return counts(c.Lanes)
}

// beside tells what else happened.
func (c *crossings) beside() string {
	var parts []string
	add := func(n int, text string) {
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%s: %d", text, n))
		}
	}
	if c.Calm > 0 {
		parts = append(parts, fmt.Sprintf("all %d calm pods lived: %d of %d", c.Calm, c.Spared, c.n()))
	}
	add(c.By[byNobody], "never fired")
	add(c.By[byKernel], "the kernel was first")
	add(c.By[byWitness], "stopped at the reserve")
	add(c.OOMKills, "kernel OOM kills")
	add(c.Bystanders, "bystanders killed")
	add(c.Lost, "killed before its cue")
	add(c.Failed, "gone wrong")
	if len(parts) == 0 {
		return "–"
	}
	return strings.Join(parts, "; ")
}
