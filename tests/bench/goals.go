package main

import (
	"fmt"
	"slices"
)

// goals are the upper bounds for evictd in the default configuration, on the native machine.
var goals = []struct {
	what string
	most float64
	unit string
	of   func(*crossings) float64
}{
	{"crossing → SIGKILL: median", 0.6, "ms", func(c *crossings) float64 { return float64(median(c.Killed)) / 1000 }},
	{"p99", 1.5, "ms", func(c *crossings) float64 { return float64(quantile(c.Killed, 0.99)) / 1000 }},
	{"back above: median", 5, "ms", func(c *crossings) float64 { return float64(median(c.Back)) / 1000 }},
	{"overshoot: median", 2, "MiB", func(c *crossings) float64 { return float64(median(c.Overshoot)) / 1024 }},
	{"max", 16, "MiB", func(c *crossings) float64 { return float64(quantile(c.Overshoot, 1)) / 1024 }},
}

// formatFigure formats a figure for Markdown, in bold if it is above its goal.
func formatFigure(got, most float64) string {
	if got > most {
		return fmt.Sprintf("**%.2f**", got)
	}
	return fmt.Sprintf("%.2f", got)
}

// goalsTable returns a table of evictd's series and the goals. A series without results has a row, too.
func (b *resultSet) goalsTable() *table {
	t := &table{head: []string{"", "n"}}
	for _, g := range goals {
		t.head = append(t.head, fmt.Sprintf("%s ≤ %g %s", g.what, g.most, g.unit))
	}
	t.head = append(t.head, "all bystanders survived")
	keys := []*crossings{
		{Section: "percentiles", Case: smallCase, Contender: allLanes}, {Section: "percentiles", Case: smallCase, Contender: bpfAlone},
		{Section: "survival", Case: survivalCase, Contender: allLanes},
	}
	for _, speed := range []string{fullSpeed, slowSpeed} {
		for _, cache := range caches {
			keys = append(keys, &crossings{Section: "bursts", Case: caseWithCache(speed, cache), Contender: allLanes})
		}
	}
	for _, w := range keys {
		name := w.Case
		if w.Contender != allLanes {
			name += ": " + w.Contender
		}
		c := b.series(native, w.Section, w.Case, w.Contender)
		if c == nil || len(c.Killed) == 0 {
			t.add(append([]string{name, "0"}, slices.Repeat([]string{"–"}, len(goals)+1)...)...)
			continue
		}
		cells := []string{name, fmt.Sprint(c.n())}
		for _, g := range goals {
			cells = append(cells, formatFigure(g.of(c), g.most))
		}
		lived := "–"
		if c.BystanderPods > 0 {
			lived = fmt.Sprintf("%d of %d", c.Survived, c.n())
			if c.Survived < c.n() {
				lived = "**" + lived + "**"
			}
		}
		t.add(append(cells, lived)...)
	}
	return t
}

// The goals for an idle evictd with all lanes on a node with idlePods pods: percent of a CPU, BPF included, and MiB.
const (
	idlePods     = 100
	idleCPU      = 0.1
	idleResident = 28
)

// idleGoals returns a sentence that compares the idle evictd with its goals.
func (b *resultSet) idleGoals() string {
	for _, r := range b.results {
		if i := r.Idle; i != nil && i.On == native && i.Lanes == allLanes && i.Pods == idlePods {
			return fmt.Sprintf("Idle with %d pods: %s %% of a CPU (goal %g), %s MiB resident (goal %d).\n", idlePods,
				formatFigure(i.share(), idleCPU), idleCPU, formatFigure(mebibytes(i.Resident), idleResident), idleResident)
		}
	}
	return fmt.Sprintf("Idle with %d pods: not measured.\n", idlePods)
}
