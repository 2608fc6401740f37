package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// sections are the sections of crossings in the document, with their introductions.
var sections = []struct{ name, title, about string }{
	{"bursts", "Bursts", "A pod allocates gigabytes. The threshold is 3 GiB (less on a small machine) below available memory. At 200 MiB/s " +
		"most of it is allocated beforehand, and the rest at that rate. evictd has its default configuration, unless " +
		"its name has another."},
	{"survival", "Bursts with bystanders", "Three other pods should survive. earlyoom can kill the processes of all pods, and prefers all of them by name."},
	{"percentiles", "Many crossings", "A pod allocates 192 MiB as fast as possible until the threshold is crossed."},
	{"conditions", "Under load", "As in many crossings, under evictd with all lanes."},
	{"vm", "Comparison in a virtual machine", "One victim, one pod whose memory does not grow, and a limit of all pods not far below the threshold; " +
		"cgroup v2, systemd driver. systemd-oomd acts on pressure and has no threshold on available memory; it is configured to kill in the slice of all pods."},
}

// document returns all results as Markdown. causes is the content of causes.md.
func (b *resultSet) document(causes string) string {
	var d strings.Builder
	section := func(title, about string, tables ...string) {
		fmt.Fprintf(&d, "\n## %s\n", title)
		for _, text := range append([]string{about}, tables...) {
			if text != "" {
				fmt.Fprintf(&d, "\n%s\n", strings.TrimSpace(text))
			}
		}
	}
	d.WriteString("# Results\n\nWritten by `go run ./tests/bench` from results.jsonl; see `go doc ./tests/bench` for how it is measured. " +
		"Only ratios are\ncomparable between machines.\n\n![crossing to SIGKILL, and to memory back above the threshold](" + chartFile + ")\n")
	section("Goals", "On the native machine, in the default configuration. Missed goals are bold.", b.goalsTable().markdown(), b.idleGoals(), causes)
	machines := b.machines()
	for _, s := range sections {
		for _, on := range machines {
			if all := b.crossings(on.Name, s.name); len(all) > 0 {
				section(sectionTitle(s.title, all), s.about, crossingsTable(all).markdown(), ratios(s.name, all), footnote(all))
			}
		}
	}
	for _, on := range machines {
		if t := partsTable(b.crossings(on.Name, "")); len(t.rows) > 0 {
			section("Parts of the time to the SIGKILL ("+on.Name+")", partsAbout, t.markdown())
		}
	}
	for _, on := range machines {
		timings, bombs, idle := b.others(on.Name)
		if len(timings) > 0 {
			section("One decision, one observation ("+on.Name+")", "The benchmarks of agent/evict, agent/memory, agent/fence, agent/affinity, its extender and agent/controller/affinity. An observation has the figures that "+
				"one iteration of the loop reads: those of the node and of each pod's cgroup.", timingTable(timings).markdown(), footnoteOf(origins(timings)...))
		}
		if len(bombs) > 0 {
			section("Fork bombs ("+on.Name+")", bombsAbout, bombTable(bombs).markdown(), bombs[0].footnote())
		}
		if evictions := b.clusterEvictions(on.Name); len(evictions) > 0 {
			section("Evictions on a node of a cluster ("+on.Name+")", clusterAbout, clusterTable(evictions).markdown(), evictions[0].footnote())
		}
		if sizes := b.footprintsOn(on.Name); len(sizes) > 0 {
			section("Size of evictd and evictd-kube ("+on.Name+")", footprintAbout, footprintTable(sizes).markdown(), sizes[0].footnote())
		}
		if releases := b.nodeReleases(on.Name); len(releases) > 0 {
			section("Fencing of lost nodes ("+on.Name+")", fenceAbout, fenceTable(releases).markdown(), fenceGoals(releases), releases[0].footnote())
		}
		if costs := b.controllerCosts(on.Name); len(costs) > 0 {
			section("Idle evictd-controller ("+on.Name+")", controllerAbout, controllerTable(costs).markdown(), footnoteOf(origins(costs)...))
		}
		if delays := b.affinityDelays(on.Name); len(delays) > 0 {
			section("From a label to the eviction ("+on.Name+")", delayAbout, delayTable(delays).markdown(), delays[0].footnote())
		}
		if reclaims := b.reclaimCrossings(on.Name); len(reclaims) > 0 {
			section("Evictions avoided by memory.reclaim ("+on.Name+")", reclaimAbout, reclaimTable(reclaims).markdown(), reclaims[0].footnote())
		}
		if len(idle) > 0 {
			section("Idle ("+on.Name+")", "CPU is the time of the process, its BPF timer and its BPF programs, in percent of one CPU. The kernel charges BPF "+
				"to no process.", idleTable(idle).markdown(), idle[0].footnote())
		}
	}
	t := &table{head: []string{"", "Linux", "CPUs", "memory", "cgroup"}}
	for _, m := range machines {
		t.add(m.Name, m.Kernel, fmt.Sprintf("%d × %s", m.CPUs, strings.Join(strings.Fields(m.CPU), " ")),
			fmt.Sprintf("%.1f GiB", float64(m.Memory)/gibibyte), m.Cgroup)
	}
	section("Machines", "", t.markdown())
	return d.String()
}

// sectionTitle returns the title of a section on one machine, with the case if there is only one.
func sectionTitle(title string, all []*crossings) string {
	if head, _ := labels(all); len(head) == 1 {
		title += ": " + all[0].Case
	}
	return title + " (" + all[0].On + ")"
}

// crossings returns the series of a section on a machine; "" means all sections.
func (b *resultSet) crossings(on, section string) (all []*crossings) {
	for _, r := range b.results {
		if c := r.Crossings; c != nil && c.On == on && (section == "" || c.Section == section) {
			all = append(all, c)
		}
	}
	return all
}

// others returns the results of a machine other than crossings.
func (b *resultSet) others(on string) (timings []*timing, bombs []*bombs, idle []*idleCost) {
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

// machines returns the machines that have results.
func (b *resultSet) machines() (all []*machine) {
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

// measured returns where and when a result was measured.
func (o *origin) measured() origin { return *o }

// origins returns where and when results were measured.
func origins[R interface{ measured() origin }](all []R) (of []origin) {
	for _, r := range all {
		of = append(of, r.measured())
	}
	return of
}

// footnote returns when something was measured, with which version and under which load.
func (o *origin) footnote() string { return footnoteOf(*o) }

// footnoteOf returns the same of results that were measured in one run or in several.
func footnoteOf(all ...origin) string {
	var when, versions []string
	low, high := all[0].Load, all[0].Load
	for _, o := range all {
		if taken := o.Taken.Format("2006-01-02 15:04 MST"); !slices.Contains(when, taken) {
			when = append(when, taken)
		}
		if o.Version != "" && !slices.Contains(versions, o.Version) {
			versions = append(versions, o.Version)
		}
		low, high = min(low, o.Load), max(high, o.Load)
	}
	by, load := "", fmt.Sprintf("%.1f", low)
	if len(versions) > 0 {
		by = ", evictd " + strings.Join(versions, " and ")
	}
	if len(all) > 1 && high != low {
		load += fmt.Sprintf(" to %.1f", high)
	}
	return fmt.Sprintf("%s%s; load average %s.", strings.Join(when, " and "), by, load)
}

// footnote returns the same of series, with the largest median uncertainty.
func footnote(all []*crossings) string {
	low, high, uncertainty := all[0].Load, all[0].Load, int64(0)
	for _, c := range all {
		low, high = min(low, c.Load), max(high, c.Load)
		if len(c.Uncertainty) > 0 {
			uncertainty = max(uncertainty, median(c.Uncertainty))
		}
	}
	return fmt.Sprintf("%s, evictd %s; load average %.1f to %.1f. The median uncertainty of the time of the crossing is at most %s.",
		all[0].Taken.Format("2006-01-02 15:04 MST"), all[0].Version, low, high, milliseconds(uncertainty))
}

// ratios returns a table that compares the contenders in a virtual machine with evictd with all lanes.
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
	t := &table{head: []string{"ratio to evictd", "crossing → SIGKILL", "back above", "overshoot"}}
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
	return "Ratios of the medians, since absolute times of an emulated machine mean nothing:\n\n" + t.markdown()
}

// publish writes the results, the document and the chart into a directory. The document includes the directory's
// causes.md, if there is one.
func (b *resultSet) publish(dir string) error {
	causes, err := os.ReadFile(filepath.Join(dir, causesFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return errors.Join(
		b.save(filepath.Join(dir, resultsFile)),
		os.WriteFile(filepath.Join(dir, chartFile), b.chart(), 0o644),
		os.WriteFile(filepath.Join(dir, tableFile), []byte(b.document(string(causes))), 0o644))
}
