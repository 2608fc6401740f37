package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"
)

// result is one line of the results file: exactly one of its fields is set. A newer line takes the place of the older
// one with the same key.
type result struct {
	Machine   *machine       `json:"machine,omitempty"`
	Crossings *crossings     `json:"crossings,omitempty"`
	Idle      *idleness      `json:"idle,omitempty"`
	Bombs     *bombs         `json:"bombs,omitempty"`
	Timing    *timing        `json:"timing,omitempty"`
	Cold      *coldCrossings `json:"cold,omitempty"`
}

// origin says where and when something was measured.
type origin struct {
	// On is the machine's name.
	On    string    `json:"on"`
	Taken time.Time `json:"taken"`
	// Version is evictd's.
	Version string `json:"version,omitempty"`
	// Load is the machine's load average over the last minute just before.
	Load float64 `json:"load"`
}

// machine is what it was measured on.
type machine struct {
	Name   string `json:"name"`
	Kernel string `json:"kernel"`
	CPU    string `json:"cpu"`
	CPUs   int    `json:"cpus"`
	Memory int64  `json:"memoryBytes"`
	// Cgroup is v1 or v2: of the tree with the memory controller.
	Cgroup string `json:"cgroup"`
}

// crossings are those of one contender in one case. The lists have one value for each crossing that the contender
// answered, in order.
type crossings struct {
	origin
	Section   string `json:"section"`
	Case      string `json:"case"`
	Contender string `json:"contender"`
	// Killed is from the crossing to the first SIGKILL to the victim, Back from the crossing until the signal is above
	// the threshold again, Doubt how far apart the two samples were that the crossing lies between: microseconds.
	Killed []int64 `json:"killedMicroseconds"`
	Back   []int64 `json:"backMicroseconds"`
	Doubt  []int64 `json:"doubtMicroseconds"`
	// Parts is what Killed is made of, by evictd's own record, in the order of partNames: microseconds. It is null for a
	// crossing of which the record does not tell all.
	Parts [][]int64 `json:"partsMicroseconds,omitempty"`
	// Overshoot is how far below the threshold the signal came: KiB.
	Overshoot []int64 `json:"overshootKiB"`
	// Rate is the median of what the victim took: MiB per second.
	Rate int64 `json:"rateMiBPerSecond"`
	// By counts all crossings by who killed.
	By map[killer]int `json:"by"`
	// Lanes counts those by evictd by what raised the alarm.
	Lanes map[string]int `json:"lanes,omitempty"`
	// Calm is how many pods there were besides the victims, Spared counts the crossings after which all of them lived.
	Calm   int `json:"calmPods,omitempty"`
	Spared int `json:"spared,omitempty"`
	// Bystanders counts other pods that were killed, victims that waited for their cue among them, OOMKills what the kernel killed meanwhile, Lost victims that were
	// gone before their crossing began, Failed crossings of which nothing is known because something went wrong.
	Bystanders int `json:"bystanders"`
	OOMKills   int `json:"kernelOOMKills"`
	Lost       int `json:"lost"`
	Failed     int `json:"failed,omitempty"`

	rates []int64 // MiB per second
}

// killer is who killed a victim.
type killer string

const (
	byContender killer = "contender"
	byKernel    killer = "kernel"  // its OOM killer
	byWitness   killer = "witness" // the machine came near to its reserve
	byNobody    killer = "nobody"  // in the time that there was
	byEarly     killer = "early"   // the contender, and no sample was below the threshold
)

// idleness is what evictd costs while nothing happens.
type idleness struct {
	origin
	Lanes   string        `json:"lanes"`
	Pods    int           `json:"pods"`
	Cgroups int           `json:"cgroups"` // besides those of the pods
	Over    time.Duration `json:"overNanoseconds"`
	// CPU is the process's time, Timer that of the BPF timer's callbacks, of which there were Ticks, and Programs that of
	// its other BPF programs, which ran Runs times.
	CPU      time.Duration `json:"cpuNanoseconds"`
	Timer    time.Duration `json:"timerNanoseconds"`
	Ticks    int           `json:"ticks"`
	Programs time.Duration `json:"programsNanoseconds"`
	Runs     int           `json:"runs"`
	Resident int64         `json:"residentBytes"`
	Anon     int64         `json:"anonymousBytes"`
	Threads  int           `json:"threads"`
	Files    int           `json:"files"`
	Ready    time.Duration `json:"readyNanoseconds"` // from its start to knowing all pods
}

// share is the part of one core, in percent.
func (i *idleness) share() float64 {
	return 100 * (i.CPU + i.Timer + i.Programs).Seconds() / i.Over.Seconds()
}

// key names what a line is about.
func (r *result) key() string {
	switch {
	case r.Machine != nil:
		return "machine/" + r.Machine.Name
	case r.Crossings != nil:
		return strings.Join([]string{"crossings", r.Crossings.On, r.Crossings.Section, r.Crossings.Case, r.Crossings.Contender}, "/")
	case r.Idle != nil:
		return fmt.Sprintf("idle/%s/%s/%d/%d", r.Idle.On, r.Idle.Lanes, r.Idle.Pods, r.Idle.Cgroups)
	case r.Bombs != nil:
		return "bombs/" + r.Bombs.On + "/" + r.Bombs.Contender
	case r.Timing != nil:
		return "timing/" + r.Timing.On + "/" + r.Timing.What
	case r.Cold != nil:
		return "cold/" + r.Cold.On + "/" + r.Cold.Reclaim
	}
	return ""
}

// on is the name of the machine.
func (r *result) on() string {
	switch {
	case r.Machine != nil:
		return r.Machine.Name
	case r.Crossings != nil:
		return r.Crossings.On
	case r.Idle != nil:
		return r.Idle.On
	case r.Bombs != nil:
		return r.Bombs.On
	case r.Timing != nil:
		return r.Timing.On
	case r.Cold != nil:
		return r.Cold.On
	}
	return ""
}

// resultPrefix begins a result in what the benchmark prints, for a machine whose files nobody gets.
const resultPrefix = "result: "

// book holds results in the order in which they first came.
type book struct {
	results []result
	// out receives each result as it comes, too; nil for none.
	out io.Writer
}

// add puts a result into the place of the one with its key, or at the end. Those of another machine that had the name
// before go.
func (b *book) add(r result) error {
	if m := r.Machine; m != nil && !slices.ContainsFunc(b.results, func(old result) bool { return old.Machine != nil && *old.Machine == *m }) {
		b.results = slices.DeleteFunc(b.results, func(old result) bool { return old.on() == m.Name })
	}
	at := slices.IndexFunc(b.results, func(old result) bool { return old.key() == r.key() })
	if at < 0 {
		b.results = append(b.results, r)
	} else {
		b.results[at] = r
	}
	if b.out == nil {
		return nil
	}
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(b.out, "%s%s\n", resultPrefix, line)
	return err
}

// load adds the results of a file, which need not be there.
func (b *book) load(file string) error {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := b.parse(text, ""); err != nil {
		return fmt.Errorf("parse %s: %w", file, err)
	}
	return nil
}

// merge adds the results that a benchmark printed between other things.
func (b *book) merge(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before := len(b.results)
	if err := b.parse(text, resultPrefix); err != nil {
		return fmt.Errorf("parse %s: %w", file, err)
	}
	if !bytes.Contains(text, []byte(resultPrefix)) && len(b.results) == before {
		return fmt.Errorf("parse %s: there is no line that begins with %q", file, resultPrefix)
	}
	return nil
}

// parse adds a result per line, of those that begin with prefix.
func (b *book) parse(text []byte, prefix string) error {
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, 16*mebibyte)
	for n := 1; lines.Scan(); n++ {
		line, ok := bytes.CutPrefix(lines.Bytes(), []byte(prefix))
		if !ok || len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		var r result
		if err := json.Unmarshal(line, &r); err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
		if r.key() == "" {
			return fmt.Errorf("line %d: it is no result", n)
		}
		if err := b.add(r); err != nil {
			return err
		}
	}
	return lines.Err()
}

// save writes all results, one per line.
func (b *book) save(file string) error {
	var text bytes.Buffer
	lines := json.NewEncoder(&text)
	for _, r := range b.results {
		if err := lines.Encode(r); err != nil {
			return err
		}
	}
	return os.WriteFile(file, text.Bytes(), 0o644)
}

// series finds crossings.
func (b *book) series(on, section, name, contender string) *crossings {
	key := (&result{Crossings: &crossings{origin: origin{On: on}, Section: section, Case: name, Contender: contender}}).key()
	for _, r := range b.results {
		if r.key() == key {
			return r.Crossings
		}
	}
	return nil
}
