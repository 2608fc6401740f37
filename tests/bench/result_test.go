package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/evictd/evictd/tests/affinity"
	"github.com/evictd/evictd/tests/fencing"
)

// seriesOf returns a series of n crossings with the same times.
func seriesOf(section, name, contender string, n int, us int64) *crossings {
	c := &crossings{origin: origin{On: native, Version: "v1", Load: 0.5}, Section: section, Case: name, Contender: contender}
	for range n {
		d := time.Duration(us) * time.Microsecond
		c.add(crossing{by: byContender, killed: d, back: 3 * d, overshoot: us * kibibyte, uncertainty: time.Microsecond, rate: gibibyte, times: recordTimes{lane: "bpf"}})
	}
	return c
}

func TestCrossingsAdd(t *testing.T) {
	c := seriesOf("bursts", caseWithCache(fullSpeed, largeCache), allLanes, 2, 500)
	c.add(crossing{by: byNone})
	c.add(crossing{by: byKernel, killed: time.Hour, bystandersKilled: 2})
	c.add(crossing{by: byEarly, times: recordTimes{lane: "bpf"}})
	want := &crossings{
		origin: c.origin, Section: "bursts", Case: caseWithCache(fullSpeed, largeCache), Contender: allLanes,
		Killed: []int64{500, 500}, Parts: [][]int64{nil, nil}, Back: []int64{1500, 1500}, Uncertainty: []int64{1, 1}, Overshoot: []int64{500, 500}, Rate: 1024,
		By: map[killSource]int{byContender: 2, byNone: 1, byKernel: 1, byEarly: 1}, Lanes: map[string]int{"bpf": 2}, BystandersKilled: 2,
	}
	if diff := cmp.Diff(want, c, cmp.AllowUnexported(crossings{}), cmpopts.IgnoreFields(crossings{}, "rates")); diff != "" {
		t.Errorf("crossings (-want +got):\n%s", diff)
	}
	if c.n() != 5 {
		t.Errorf("n() = %d; want 5", c.n())
	}
}

func TestResultSet(t *testing.T) {
	var printed strings.Builder
	b := resultSet{out: &printed}
	here := machine{Name: native, Kernel: "6.1", CPUs: 2}
	for _, r := range []result{
		{Machine: &here},
		{Crossings: seriesOf("bursts", caseWithCache(fullSpeed, largeCache), allLanes, 1, 700)},
		{Idle: &idleCost{origin: origin{On: native}, Lanes: allLanes, Pods: 100}},
		{Crossings: seriesOf("bursts", caseWithCache(fullSpeed, largeCache), earlyoom, 1, 90000)},
		{Bombs: &bombs{origin: origin{On: native}, Contender: allLanes, Killed: []int64{900}, Gone: []int64{9000}, Left: []int64{4990}, Room: bombRoom}},
		{Crossings: seriesOf("bursts", caseWithCache(fullSpeed, largeCache), allLanes, 1, 400)}, // instead of the first
		{Machine: &here},
	} {
		if err := b.add(r); err != nil {
			t.Fatal(err)
		}
	}
	if c := b.series(native, "bursts", caseWithCache(fullSpeed, largeCache), allLanes); len(b.results) != 5 || c == nil || c.Killed[0] != 400 {
		t.Errorf("after seven results: %d, evictd's %+v; want 5, and 400 µs", len(b.results), c)
	}

	dir := t.TempDir()
	if err := b.save(filepath.Join(dir, resultsFile)); err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(dir, "log")
	if err := os.WriteFile(log, []byte("first line\n"+printed.String()+"last line\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var loaded, merged resultSet
	if err := errors.Join(loaded.load(filepath.Join(dir, resultsFile)), merged.merge(log)); err != nil {
		t.Fatal(err)
	}
	unexported := cmp.AllowUnexported(crossings{}, idleCost{}, bombs{})
	for name, got := range map[string]resultSet{"load": loaded, "merge": merged} {
		if diff := cmp.Diff(b.results, got.results, unexported, cmpopts.IgnoreFields(crossings{}, "rates")); diff != "" {
			t.Errorf("%s (-saved +got):\n%s", name, diff)
		}
	}

	if err := loaded.add(result{Machine: &machine{Name: native, Kernel: "6.12", CPUs: 2}}); err != nil || len(loaded.results) != 1 {
		t.Errorf("add of another machine with the same name: %v, %d results; want that machine only", err, len(loaded.results))
	}
	if err := new(resultSet).load(filepath.Join(dir, "none")); err != nil {
		t.Errorf("load of a file that does not exist = %v; want nil", err)
	}
	if err := new(resultSet).merge(filepath.Join(dir, resultsFile)); err == nil {
		t.Error("merge of a file without printed results = nil; want an error")
	}
	for _, bad := range []string{"{", "{}", `{"crossings":1}`} {
		if err := new(resultSet).parse([]byte(bad), ""); err == nil {
			t.Errorf("parse(%q) = nil; want an error", bad)
		}
	}
}

func TestPublish(t *testing.T) {
	var b resultSet
	vm := seriesOf("vm", vmCase, allLanes, 2, 2000)
	calm := &crossings{origin: origin{On: "VM"}, Section: "vm", Case: vmCase, Contender: oomdDefault}
	calm.add(crossing{by: byKernel})
	calm.OOMKills = 1
	slow := seriesOf("vm", vmCase, earlyoom, 2, 50000)
	vm.On, slow.On = "VM", "VM"
	beside := seriesOf("survival", survivalCase, allLanes, 4, 500)
	beside.BystanderPods, beside.Survived, beside.Parts[0] = 3, 3, []int64{100, 50, 200, 50, 100, 210, 30}
	for _, r := range []result{
		{Machine: &machine{Name: native, Kernel: "6.18", CPU: "a  <b>", CPUs: 2, Memory: 24 * gibibyte, Cgroup: "v1"}},
		{Crossings: seriesOf("bursts", caseWithCache(fullSpeed, largeCache), allLanes, 3, 400)},
		{Crossings: seriesOf("bursts", caseWithCache(fullSpeed, largeCache), earlyoom, 3, 90000)},
		{Crossings: seriesOf("percentiles", smallCase, allLanes, 3, 900)},
		{Crossings: seriesOf("conditions", "huge pages", allLanes, 3, 400)},
		{Idle: &idleCost{origin: origin{On: native}, Lanes: allLanes, Pods: 100, Duration: time.Second, CPU: 400 * time.Microsecond, Timer: 100 * time.Microsecond, Ticks: 20, Resident: 30 * mebibyte}},
		{Machine: &machine{Name: "VM", Kernel: "6.1", CPUs: 2, Cgroup: "v2"}},
		{Crossings: beside},
		{Timing: &timing{origin: origin{On: native}, What: "Step, no threshold crossed, 110 pods", Runs: 1492, Nanoseconds: 15788, Bytes: 13200, Allocations: 4}},
		{Crossings: vm}, {Crossings: slow}, {Crossings: calm},
		{Bombs: &bombs{origin: origin{On: native}, Contender: allLanes, Killed: []int64{900, 1500}, Gone: []int64{9000, 9500}, Left: []int64{4990, 4980}, Room: bombRoom, Rate: 8000}},
		{Bombs: &bombs{origin: origin{On: native}, Contender: "a look every 10s", Room: bombRoom, NotEnded: 2}},
		{Fence: &nodeReleases{origin: origin{On: native}, Releases: fencing.Releases{Contender: "evictd-controller", From: "NodeFence created",
			Noticed: []int64{9e6, 11e6}, Released: []int64{11e6, 12e6}, Replaced: []int64{20e6, 21e6}}}},
		{Fence: &nodeReleases{origin: origin{On: native}, Releases: fencing.Releases{Contender: "nobody", From: "pod deleted",
			Noticed: []int64{9e6}, Kept: []int64{420e6}, Shared: 1}}},
		{Control: &controllerCost{origin: origin{On: native}, Idle: fencing.Idle{Nodes: 1000, Seconds: 120, Elections: 60,
			Requests: map[string]int{"get nodes": 100, "watch nodes": 40}, Resident: 64 * mebibyte, Peak: 80 * mebibyte}}},
		{Delay: &affinityDelays{origin: origin{On: native}, Delays: affinity.Delays{Debounce: 1e6, Accepted: []int64{1.2e6, 1.25e6, 2.5e6}}}},
	} {
		if err := b.add(r); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, causesFile), []byte("Because.\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := b.publish(dir); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, tableFile))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| small victim, 4 GiB of active file cache | 3 | **0.90** | 0.90 | 2.70 | 0.88 | 0.88 | – |",
		"| small victim, 4 GiB of active file cache: evictd, BPF alone | 0 | – | – | – | – | – | – |",
		"| full speed, 4 GiB of active file cache | 3 | 0.40 | 0.40 | 1.20 |",
		"| " + survivalCase + " | 4 | 0.50 | 0.50 | 1.50 | 0.49 | 0.49 | **3 of 4** |",
		"Idle with 100 pods: 0.05 % of a CPU (goal 0.1), **30.00** MiB resident (goal 28).",
		"Because.", "(results.svg)",
		"## Under load: huge pages (native)",
		"| earlyoom | 25.0 | 25.0 | 25.0 |",
		"| systemd-oomd | – | – | – |",
		"killed by the kernel: 1; kernel OOM kills: 1",
		"| native | 6.18 | 2 × a <b> | 24.0 GiB | v1 |",
		"| evictd, all lanes | 2 | 4980 | 4980 | 0.90 ms | 1.50 ms | 9.00 ms | 9.50 ms | 0 | 8000 |",
		"| a look every 10s | 2 | – | – | – | – | – | – | 2 | – |",
		"| evictd-controller | 2 | NodeFence created | 9.0 s | 11.0 s | 12.0 s | 20.0 s | 21.0 s | – | 0 | 0 |",
		"| nobody | 1 | pod deleted | 9.0 s | never | never | never | never | all of the 420.0 s observed | 0 | 1 |",
		"NodeFence created → VolumeAttachment gone: median 11.0 s (goal 10s: **missed**).",
		"| 1000 | 0 | 120 s | **70.00** | get nodes 100, watch nodes 40 | 30.0 | 64.00 | 80.0 MiB |",
		"| 1.0 s | 3 | 1.25 s | 2.50 s | 250.00 | **1500.00** |",
		"| Step, no threshold crossed, 110 pods | 15.8µs | – | 13200 | 4 | 1492 |",
		"| evictd, all lanes | p99 | 1 | 0.50 ms | 0.10 ms | 0.05 ms | 0.20 ms | 0.05 ms | 0.10 ms | 0.21 ms | 0.03 ms | 0.00 ms |",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the document does not contain %q:\n%s", want, text)
		}
	}
	chart, err := os.ReadFile(filepath.Join(dir, chartFile))
	if err != nil {
		t.Fatal(err)
	}
	bars := 0
	for d := xml.NewDecoder(strings.NewReader(string(chart))); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("the chart is not valid XML: %v", err)
		}
		if e, ok := token.(xml.StartElement); ok && e.Name.Local == "rect" {
			bars++
		}
	}
	if bars != 4 {
		t.Errorf("the chart has %d bars; want 4", bars)
	}
}

func TestChartX(t *testing.T) {
	for _, tt := range []struct{ us, want int64 }{
		{-1, chartLeft}, {0, chartLeft}, {10, chartLeft}, {100, chartLeft}, {10_000, (chartLeft + chartRight) / 2},
		{1_000_000, chartRight}, {5_000_000, chartRight},
	} {
		if got := chartX(tt.us, 1_000_000); int64(got) != tt.want {
			t.Errorf("chartX(%d µs of 1 s) = %d; want %d", tt.us, got, tt.want)
		}
	}
}
