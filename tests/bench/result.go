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

// result is one line of the results file: exactly one of its fields is set. A newer line replaces the older one with the
// same key.
type result struct {
	Machine   *machine          `json:"machine,omitempty"`
	Crossings *crossings        `json:"crossings,omitempty"`
	Idle      *idleCost         `json:"idle,omitempty"`
	Bombs     *bombs            `json:"bombs,omitempty"`
	Timing    *timing           `json:"timing,omitempty"`
	Reclaim   *reclaimCrossings `json:"cold,omitempty"`
	Cluster   *podEvictions     `json:"cluster,omitempty"`
	Fence     *nodeReleases     `json:"fence,omitempty"`
	Control   *controllerCost   `json:"controller,omitempty"`
	Delay     *affinityDelays   `json:"delay,omitempty"`
	Footprint *footprint        `json:"footprint,omitempty"`
}

// origin is where and when something was measured.
type origin struct {
	// On is the machine's name.
	On    string    `json:"on"`
	Taken time.Time `json:"taken"`
	// Version is evictd's.
	Version string `json:"version,omitempty"`
	// Load is the machine's load average over the minute before.
	Load float64 `json:"load"`
}

// machine is a machine that results were measured on.
type machine struct {
	Name   string `json:"name"`
	Kernel string `json:"kernel"`
	CPU    string `json:"cpu"`
	CPUs   int    `json:"cpus"`
	Memory int64  `json:"memoryBytes"`
	// Cgroup is v1 or v2: the version of the tree with the memory controller.
	Cgroup string `json:"cgroup"`
}

// crossings are the series of one contender in one case. The lists have one value for each crossing that the contender
// answered, in order.
type crossings struct {
	origin
	Section   string `json:"section"`
	Case      string `json:"case"`
	Contender string `json:"contender"`
	// Killed is the time from the crossing to the first SIGKILL to the victim, Back that until the signal is above the
	// threshold again, Uncertainty that between the two samples around the crossing, in microseconds.
	Killed      []int64 `json:"killedMicroseconds"`
	Back        []int64 `json:"backMicroseconds"`
	Uncertainty []int64 `json:"doubtMicroseconds"`
	// Parts are the parts of Killed by evictd's own record, in the order of partNames and in microseconds. It is null for
	// a crossing whose record lacks a time.
	Parts [][]int64 `json:"partsMicroseconds,omitempty"`
	// Overshoot is how far the signal fell below the threshold, in KiB.
	Overshoot []int64 `json:"overshootKiB"`
	// Rate is the median of the victims' allocation rates, in MiB per second.
	Rate int64 `json:"rateMiBPerSecond"`
	// By counts all crossings by what killed the victim.
	By map[killSource]int `json:"by"`
	// Lanes counts the crossings that evictd answered by the lane that raised the alarm.
	Lanes map[string]int `json:"lanes,omitempty"`
	// BystanderPods is the number of pods besides the victims. Survived counts the crossings after which all of them were
	// alive.
	BystanderPods int `json:"calmPods,omitempty"`
	Survived      int `json:"spared,omitempty"`
	// BystandersKilled counts other pods that were killed, including victims that waited for their start signal. OOMKills
	// counts kills by the kernel, Lost victims that died before their crossing, Failed crossings that ended with an error.
	BystandersKilled int `json:"bystanders"`
	OOMKills         int `json:"kernelOOMKills"`
	Lost             int `json:"lost"`
	Failed           int `json:"failed,omitempty"`

	rates []int64 // MiB per second
}

// killSource is what killed a victim.
type killSource string

const (
	byContender killSource = "contender"
	byKernel    killSource = "kernel"  // the OOM killer
	bySampler   killSource = "witness" // the memory sampler, because the reserve was reached
	byNone      killSource = "nobody"  // the victim was alive at the timeout
	byEarly     killSource = "early"   // the contender, before any sample was below the threshold
)

// idleCost is the cost of an idle evictd.
type idleCost struct {
	origin
	Lanes    string        `json:"lanes"`
	Pods     int           `json:"pods"`
	Cgroups  int           `json:"cgroups"` // besides those of the pods
	Duration time.Duration `json:"overNanoseconds"`
	// CPU is the time of the process, Timer that of its BPF timer's callbacks, of which there were Ticks, and Programs that
	// of its other BPF programs, which ran Runs times.
	CPU      time.Duration `json:"cpuNanoseconds"`
	Timer    time.Duration `json:"timerNanoseconds"`
	Ticks    int           `json:"ticks"`
	Programs time.Duration `json:"programsNanoseconds"`
	Runs     int           `json:"runs"`
	Resident int64         `json:"residentBytes"`
	Anon     int64         `json:"anonymousBytes"`
	Threads  int           `json:"threads"`
	Files    int           `json:"files"`
	Ready    time.Duration `json:"readyNanoseconds"` // from its start until all pods are listed
}

// share returns the CPU usage in percent of one CPU.
func (i *idleCost) share() float64 {
	return 100 * (i.CPU + i.Timer + i.Programs).Seconds() / i.Duration.Seconds()
}

// key identifies what a result is about. It is "" for a result without content.
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
	case r.Reclaim != nil:
		return "cold/" + r.Reclaim.On + "/" + r.Reclaim.Reclaim
	case r.Cluster != nil:
		return "cluster/" + r.Cluster.On + "/" + r.Cluster.Contender
	case r.Fence != nil:
		return "fence/" + r.Fence.On + "/" + r.Fence.Contender
	case r.Control != nil:
		return fmt.Sprintf("controller/%s/%d", r.Control.On, r.Control.Nodes)
	case r.Delay != nil:
		return fmt.Sprintf("delay/%s/%d", r.Delay.On, r.Delay.Debounce)
	case r.Footprint != nil:
		return fmt.Sprintf("footprint/%s/%s", r.Footprint.On, r.Footprint.Program)
	}
	return ""
}

// on returns the name of the machine.
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
	case r.Reclaim != nil:
		return r.Reclaim.On
	case r.Cluster != nil:
		return r.Cluster.On
	case r.Fence != nil:
		return r.Fence.On
	case r.Control != nil:
		return r.Control.On
	case r.Delay != nil:
		return r.Delay.On
	case r.Footprint != nil:
		return r.Footprint.On
	}
	return ""
}

// resultPrefix marks a result in the output of a virtual machine, whose files can't be copied.
const resultPrefix = "result: "

// resultSet has results in the order in which they were first added.
type resultSet struct {
	results []result
	// out, if set, receives each result when it is added.
	out io.Writer
}

// add replaces the result with the same key, or appends one. It removes the results of another machine with the same
// name.
func (b *resultSet) add(r result) error {
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

// load adds the results of a file, if it exists.
func (b *resultSet) load(file string) error {
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

// merge adds the results in the output of a benchmark. It fails if there are none.
func (b *resultSet) merge(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before := len(b.results)
	if err := b.parse(text, resultPrefix); err != nil {
		return fmt.Errorf("parse %s: %w", file, err)
	}
	if !bytes.Contains(text, []byte(resultPrefix)) && len(b.results) == before {
		return fmt.Errorf("parse %s: no line begins with %q", file, resultPrefix)
	}
	return nil
}

// parse adds the results of all lines that begin with prefix.
func (b *resultSet) parse(text []byte, prefix string) error {
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
			return fmt.Errorf("line %d: not a result", n)
		}
		if err := b.add(r); err != nil {
			return err
		}
	}
	return lines.Err()
}

// save writes all results, one per line.
func (b *resultSet) save(file string) error {
	var text bytes.Buffer
	lines := json.NewEncoder(&text)
	for _, r := range b.results {
		if err := lines.Encode(r); err != nil {
			return err
		}
	}
	return os.WriteFile(file, text.Bytes(), 0o644)
}

// series returns the crossings of one contender in one case, or nil.
func (b *resultSet) series(on, section, name, contender string) *crossings {
	key := (&result{Crossings: &crossings{origin: origin{On: on}, Section: section, Case: name, Contender: contender}}).key()
	for _, r := range b.results {
		if r.key() == key {
			return r.Crossings
		}
	}
	return nil
}
