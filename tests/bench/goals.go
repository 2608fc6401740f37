package main

import (
	"fmt"
	"slices"
)

// goals are what each figure of evictd's series is to be at most, in the default configuration on the machine itself.
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

// figure writes a figure, and marks one that is above its goal.
func figure(got, most float64) string {
	if got > most {
		return fmt.Sprintf("**%.2f**", got)
	}
	return fmt.Sprintf("%.2f", got)
}

// goalsTable holds evictd's series against the goals. A series that was not measured has a row all the same.
func (b *book) goalsTable() *table {
	t := &table{head: []string{"", "n"}}
	for _, g := range goals {
		t.head = append(t.head, fmt.Sprintf("%s ≤ %g %s", g.what, g.most, g.unit))
	}
	t.head = append(t.head, "calm pods lived")
	wanted := []*crossings{
		{Section: "percentiles", Case: smallCase, Contender: allLanes}, {Section: "percentiles", Case: smallCase, Contender: bpfAlone},
		{Section: "survival", Case: calmCase, Contender: allLanes},
	}
	for _, speed := range []string{fullSpeed, slowSpeed} {
		for _, cache := range caches {
			wanted = append(wanted, &crossings{Section: "bursts", Case: besideCache(speed, cache), Contender: allLanes})
		}
	}
	for _, w := range wanted {
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
			cells = append(cells, figure(g.of(c), g.most))
		}
		lived := "–"
		if c.Calm > 0 {
			lived = fmt.Sprintf("%d of %d", c.Spared, c.n())
			if c.Spared < c.n() {
				lived = "**" + lived + "**"
			}
		}
		t.add(append(cells, lived)...)
	}
	return t
}

// idleGoals are for evictd with all lanes beside idlePods pods: percent of a core, BPF included, and MiB.
const (
	idlePods     = 100
	idleCPU      = 0.1
	idleResident = 28
)

func (b *book) idleGoals() string {
	for _, r := range b.results {
		if i := r.Idle; i != nil && i.On == native && i.Lanes == allLanes && i.Pods == idlePods {
			return fmt.Sprintf("Idle beside %d pods: %s %% of a core (goal %g), %s MiB resident (goal %d).\n", idlePods,
				figure(i.share(), idleCPU), idleCPU, figure(mebibytes(i.Resident), idleResident), idleResident)
		}
	}
	return fmt.Sprintf("Idle beside %d pods: not measured.\n", idlePods)
}
