package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// sections are the crossings' in their order, with what the document says of them.
var sections = []struct{ name, title, about string }{
	{"bursts", "Bursts", "A pod takes gigabytes, the threshold 3 GiB (on a small machine less) below what is available. At 200 MiB/s " +
		"most of it is there beforehand, and what is left is taken at that speed. evictd runs in its default configuration, unless " +
		"its name says otherwise."},
	{"survival", "Bursts beside calm pods", "earlyoom may kill the processes of all pods and prefers them by their name."},
	{"percentiles", "Many crossings", "A pod takes 192 MiB as fast as it can until it meets the threshold."},
	{"conditions", "Under harder conditions", "The same, under evictd with all lanes."},
	{"vm", "Beside others", "A hog, a pod that keeps what it has, and a limit of all pods together not far below the threshold; " +
		"cgroup v2, cgroups by systemd. systemd-oomd goes by pressure and has no threshold; it is told to kill in the slice of all pods."},
}

// document is everything as Markdown.
func (b *book) document(causes string) string {
	var d strings.Builder
	section := func(title, about string, tables ...string) {
		fmt.Fprintf(&d, "\n## %s\n", title)
		for _, text := range append([]string{about}, tables...) {
			if text != "" {
				fmt.Fprintf(&d, "\n%s\n", strings.TrimSpace(text))
			}
		}
	}
	d.WriteString("# Measured\n\nWritten by `go run ./tests/bench` from results.jsonl; `go doc ./tests/bench` says how it is measured. " +
		"Only ratios carry over to\nanother machine.\n\n![crossing to SIGKILL, and to memory back above the threshold](" + pictureFile + ")\n")
	section("Goals", "On the machine itself, in the default configuration; what is bold is missed.", b.goalsTable().markdown(), b.idleGoals(), causes)
	machines := b.machines()
	for _, s := range sections {
		for _, on := range machines {
			if all := b.crossings(on.Name, s.name); len(all) > 0 {
				section(titled(s.title, all), s.about, crossingsTable(all).markdown(), ratios(s.name, all), footing(all))
			}
		}
	}
	for _, on := range machines {
		if t := partsTable(b.crossings(on.Name, "")); len(t.rows) > 0 {
			section("What the time to the SIGKILL is made of ("+on.Name+")", partsAbout, t.markdown())
		}
	}
	for _, on := range machines {
		timings, bombs, idle := b.rest(on.Name)
		if len(timings) > 0 {
			section("One decision, one observation ("+on.Name+")", "The benchmarks of agent/evict and agent/memory. An observation is what a turn of "+
				"the loop reads: the node, and each pod's cgroup.", timingTable(timings).markdown(), timings[0].footing())
		}
		if len(bombs) > 0 {
			section("Fork bombs ("+on.Name+")", bombsAbout, bombTable(bombs).markdown(), bombs[0].footing())
		}
		if cold := b.cold(on.Name); len(cold) > 0 {
			section("Evictions that memory.reclaim avoids ("+on.Name+")", coldAbout, coldTable(cold).markdown(), cold[0].footing())
		}
		if len(idle) > 0 {
			section("While nothing happens ("+on.Name+")", "CPU is the process's, and that of its BPF timer and programs, which no process "+
				"is charged for.", idleTable(idle).markdown(), idle[0].footing())
		}
	}
	t := &table{head: []string{"", "Linux", "processors", "memory", "cgroup"}}
	for _, m := range machines {
		t.add(m.Name, m.Kernel, fmt.Sprintf("%d × %s", m.CPUs, strings.Join(strings.Fields(m.CPU), " ")),
			fmt.Sprintf("%.1f GiB", float64(m.Memory)/gibibyte), m.Cgroup)
	}
	section("Machines", "", t.markdown())
	return d.String()
}

// titled is the title of a section on one machine, with the case where there is only one.
func titled(title string, all []*crossings) string {
	if head, _ := labels(all); len(head) == 1 {
		title += ": " + all[0].Case
	}
	return title + " (" + all[0].On + ")"
}

// crossings are the series of a section on a machine; "" is all sections.
func (b *book) crossings(on, section string) (all []*crossings) {
	for _, r := range b.results {
		if c := r.Crossings; c != nil && c.On == on && (section == "" || c.Section == section) {
			all = append(all, c)
		}
	}
	return all
}

// rest is what there is of a machine besides crossings.
func (b *book) rest(on string) (timings []*timing, bombs []*bombs, idle []*idleness) {
	for _, r := range b.results {
		switch {
		case r.on() != on:
		case r.Timing != nil:
			timings = append(timings, r.Timing)
		case r.Bombs != nil:
			bombs = append(bombs, r.Bombs)
		case r.Idle != nil:
			idle = append(idle, r.Idle)
		}
	}
	return timings, bombs, idle
}

// machines are those that there are results of.
func (b *book) machines() (all []*machine) {
	measured := make(map[string]bool)
	for _, r := range b.results {
		if r.Machine == nil {
			measured[r.on()] = true
		}
	}
	for _, r := range b.results {
		if r.Machine != nil && measured[r.Machine.Name] {
			all = append(all, r.Machine)
		}
	}
	return all
}

// footing says when something was measured, and under which load.
func (o *origin) footing() string {
	by := ""
	if o.Version != "" {
		by = ", evictd " + o.Version
	}
	return fmt.Sprintf("%s%s; load average %.1f.", o.Taken.Format("2006-01-02 15:04 MST"), by, o.Load)
}

// footing says so of series, and how exact they are.
func footing(all []*crossings) string {
	low, high, doubt := all[0].Load, all[0].Load, int64(0)
	for _, c := range all {
		low, high = min(low, c.Load), max(high, c.Load)
		if len(c.Doubt) > 0 {
			doubt = max(doubt, median(c.Doubt))
		}
	}
	return fmt.Sprintf("%s, evictd %s; load average %.1f to %.1f. The median doubt about when the crossing was is at most %s.",
		all[0].Taken.Format("2006-01-02 15:04 MST"), all[0].Version, low, high, milliseconds(doubt))
}

// ratios hold the contenders in a virtual machine against evictd with all lanes.
func ratios(section string, all []*crossings) string {
	base := (*crossings)(nil)
	for _, c := range all {
		if c.Contender == allLanes && len(c.Killed) > 0 {
			base = c
		}
	}
	if section != "vm" || base == nil {
		return ""
	}
	t := &table{head: []string{"how many times evictd's", "crossing → SIGKILL", "back above", "overshoot"}}
	for _, c := range all {
		cells := []string{c.Contender}
		for _, of := range []func(*crossings) []int64{
			func(c *crossings) []int64 { return c.Killed }, func(c *crossings) []int64 { return c.Back }, func(c *crossings) []int64 { return c.Overshoot },
		} {
			if len(c.Killed) == 0 || median(of(base)) <= 0 {
				cells = append(cells, "–")
			} else {
				cells = append(cells, fmt.Sprintf("%.1f", float64(median(of(c)))/float64(median(of(base)))))
			}
		}
		if c != base {
			t.add(cells...)
		}
	}
	return "As ratios of the medians, which is all that an emulated machine can tell:\n\n" + t.markdown()
}

// publish writes the results, and the document and the picture that are made of them. causes.md, which is written by
// hand, says why figures are missed.
func (b *book) publish(dir string) error {
	causes, err := os.ReadFile(filepath.Join(dir, causesFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return errors.Join(
		b.save(filepath.Join(dir, bookFile)),
		os.WriteFile(filepath.Join(dir, pictureFile), b.picture(), 0o644),
		os.WriteFile(filepath.Join(dir, tableFile), []byte(b.document(string(causes))), 0o644))
}
