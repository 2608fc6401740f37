package main

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"text/template"
)

//go:embed document.md.tmpl
var documentText string

var documentTemplate = template.Must(template.New("document").Parse(documentText))

// part is a section of the document.
type part struct{ Title, About, Text string }

// abouts say of a section of crossings what its name does not.
var abouts = map[string]string{
	"bursts": "A pod takes gigabytes, the threshold 3 GiB (on a small machine less) below what is available. At 200 MiB/s most of " +
		"it is there beforehand, and what is left is taken at that speed. evictd runs in its default configuration, unless its name says otherwise.",
	"percentiles": "A pod takes 192 MiB as fast as it can until it meets the threshold.",
	"conditions":  "The same, under evictd with all lanes.",
	"vm": "A hog, a pod that keeps what it has, and a limit of all pods together not far below the threshold; cgroup v2, cgroups by " +
		"systemd. systemd-oomd goes by pressure and has no threshold; it is told to kill in the slice of all pods.",
}

// sections are the crossings' in their order, as the document titles them.
var sections = []struct{ name, title string }{
	{"bursts", "Bursts"}, {"percentiles", "Many crossings"}, {"conditions", "Under harder conditions"}, {"vm", "Beside others"},
}

// document is everything as Markdown. causes say in words why a figure is what it is.
func (b *book) document(picture, causes string) ([]byte, error) {
	var parts []part
	for _, s := range sections {
		for _, group := range b.groups(s.name) {
			parts = append(parts, part{s.title + ": " + group.title(), abouts[s.name], group.text(b)})
		}
	}
	for _, on := range b.machineNames() {
		bombs := b.bombs(on)
		if len(bombs) == 0 {
			continue
		}
		parts = append(parts, part{"Fork bombs: " + on, fmt.Sprintf("Processes that do nothing but fork, in a pod that may have %d tasks; the threshold on pid.available is "+
			"crossed by half of that. The kubelet looks every %v; here whoever looks then kills all at once, and asks no runtime; it has no real-time priority, which the kubelet has not either.", bombRoom, kubeletPeriod),
			bombTable(bombs).markdown() + bombs[0].footing()})
	}
	for _, on := range b.machineNames() {
		if cold := b.cold(on); len(cold) > 0 {
			parts = append(parts, coldPart(on, cold))
		}
	}
	for _, on := range b.machineNames() {
		idle := b.idle(on)
		if len(idle) == 0 {
			continue
		}
		parts = append(parts, part{"While nothing happens: " + on,
			"CPU is the process's, and that of its BPF timer and programs, which no process is charged for.", idleTable(idle).markdown()})
	}
	var out bytes.Buffer
	err := documentTemplate.Execute(&out, struct {
		Picture, Verdicts, Causes, Machines string
		Sections                            []part
	}{picture, b.verdicts().markdown(), causes, b.machines().markdown(), parts})
	return out.Bytes(), err
}

// group are the series of one case on one machine; conditions are one group together.
type group struct {
	on, section, name string
	all               []*crossings
}

// groups are those of a section, in the order in which they first came.
func (b *book) groups(section string) []*group {
	var groups []*group
	byKey := make(map[string]*group)
	for _, r := range b.results {
		c := r.Crossings
		if c == nil || c.Section != section {
			continue
		}
		name := c.Case
		if section == "conditions" {
			name = ""
		}
		g := byKey[c.On+"/"+name]
		if g == nil {
			g = &group{on: c.On, section: section, name: name}
			byKey[c.On+"/"+name] = g
			groups = append(groups, g)
		}
		g.all = append(g.all, c)
	}
	return groups
}

func (g *group) title() string {
	if g.name == "" {
		return g.on
	}
	return g.name + " (" + g.on + ")"
}

func (g *group) text(b *book) string {
	all := g.all
	if g.section == "conditions" {
		// What differs between the rows is the condition.
		all = nil
		for _, c := range g.all {
			row := *c
			row.Contender = c.Case
			all = append(all, &row)
		}
	}
	text := crossingsTable(all).markdown()
	if g.section != "vm" {
		return text + g.footing()
	}
	if r := ratios(all); len(r.rows) > 0 {
		text += "\nAs ratios of the medians, which is all that an emulated machine can tell:\n\n" + r.markdown()
	}
	return text + g.footing()
}

// footing says when something was measured, and under which load.
func (o *origin) footing() string {
	return fmt.Sprintf("\n%s, evictd %s; load average %.1f.\n", o.Taken.Format("2006-01-02 15:04 MST"), o.Version, o.Load)
}

// footing says so of all series.
func (g *group) footing() string {
	low, high, doubt := g.all[0].Load, g.all[0].Load, int64(0)
	for _, c := range g.all {
		low, high = min(low, c.Load), max(high, c.Load)
		if len(c.Doubt) > 0 {
			doubt = max(doubt, median(c.Doubt))
		}
	}
	return fmt.Sprintf("\n%s, evictd %s; load average %.1f to %.1f. The median doubt about when the crossing was is at most %s.\n",
		g.all[0].Taken.Format("2006-01-02 15:04 MST"), g.all[0].Version, low, high, milliseconds(doubt))
}

// ratios hold each of the others against evictd with all lanes.
func ratios(all []*crossings) *table {
	t := &table{head: []string{"how many times evictd's", "crossing → SIGKILL", "back above", "overshoot"}}
	var base *crossings
	for _, c := range all {
		if c.Contender == allLanes && len(c.Killed) > 0 {
			base = c
		}
	}
	if base == nil {
		return t
	}
	ratio := func(a, b int64) string {
		if b <= 0 {
			return "–"
		}
		return fmt.Sprintf("%.1f", float64(a)/float64(b))
	}
	for _, c := range all {
		switch {
		case c == base:
		case len(c.Killed) == 0:
			t.add(c.Contender, "never fired", "–", "–")
		default:
			t.add(c.Contender, ratio(median(c.Killed), median(base.Killed)), ratio(median(c.Back), median(base.Back)),
				ratio(median(c.Overshoot), median(base.Overshoot)))
		}
	}
	return t
}

func (b *book) idle(on string) (all []*idleness) {
	for _, r := range b.results {
		if r.Idle != nil && r.Idle.On == on {
			all = append(all, r.Idle)
		}
	}
	return all
}

func (b *book) machineNames() (names []string) {
	for _, r := range b.results {
		if r.Machine != nil {
			names = append(names, r.Machine.Name)
		}
	}
	return names
}

func (b *book) bombs(on string) (all []*bombs) {
	for _, r := range b.results {
		if r.Bombs != nil && r.Bombs.On == on {
			all = append(all, r.Bombs)
		}
	}
	return all
}

func (b *book) machines() *table {
	t := &table{head: []string{"", "Linux", "processors", "memory", "cgroup"}}
	for _, r := range b.results {
		if m := r.Machine; m != nil {
			t.add(m.Name, m.Kernel, fmt.Sprintf("%d × %s", m.CPUs, strings.Join(strings.Fields(m.CPU), " ")),
				fmt.Sprintf("%.1f GiB", float64(m.Memory)/gibibyte), m.Cgroup)
		}
	}
	return t
}

func (b *book) open(dir string) error { return b.load(filepath.Join(dir, bookFile)) }

// publish writes the results, the table and the picture, if there is anything to be seen on it.
func (b *book) publish(dir string) error {
	if err := b.save(filepath.Join(dir, bookFile)); err != nil {
		return err
	}
	name := ""
	if bars := b.bars(); len(bars) > 0 {
		picture, err := drawBars(bars)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, pictureFile), picture, 0o644); err != nil {
			return err
		}
		name = pictureFile
	}
	causes, err := os.ReadFile(filepath.Join(dir, causesFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	text, err := b.document(name, string(causes))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, tableFile), text, 0o644)
}
