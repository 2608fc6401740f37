package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"
)

// timing is the result of one benchmark of a package.
type timing struct {
	origin
	What        string  `json:"what"`
	Runs        int     `json:"runs"`
	Nanoseconds float64 `json:"nanoseconds"`
	// P99 is the 99th percentile in nanoseconds, of a benchmark that reports it.
	P99         float64 `json:"p99Nanoseconds,omitempty"`
	Bytes       int64   `json:"bytes"`       // allocated by each run
	Allocations int64   `json:"allocations"` // of each run
}

// benchmark is the name of a benchmark, without its number of objects, that in the results, and what the objects are.
type benchmark struct{ name, what, objects string }

// decisionBenchmarks are those of the step decision.
var decisionBenchmarks = []benchmark{
	{"BenchmarkStep/idle", "Step, no threshold crossed", "pods"},
	{"BenchmarkStep/evicting", "Step, a victim to be chosen", "pods"},
	{"BenchmarkObservation/walk", "observation, by a BPF walk", "pods"},
	{"BenchmarkObservation/files", "observation, by files", "pods"},
}

// affinityBenchmarks are those of the step affinity.
var affinityBenchmarks = []benchmark{
	{"BenchmarkMatches/annotation", "node affinity: an annotation compared with all nodes", "nodes"},
	{"BenchmarkMatches/all", "node affinity: nodeSelector, affinity and annotation compared with all nodes", "nodes"},
	{"BenchmarkLabelGone", "node affinity: from a label that 5,000 nodes lose to all violations", "pods"},
	{"BenchmarkFilter/unrestricted", "scheduler extender: a pod without annotation (goal 200µs)", "nodes"},
	{"BenchmarkFilter/annotation", "scheduler extender: a third of the nodes does not match (goal for p99 5ms)", "nodes"},
	{"BenchmarkFilter/no_node", "scheduler extender: no node matches", "nodes"},
	{"BenchmarkFilter/invalid", "scheduler extender: the annotation does not parse", "nodes"},
	{"BenchmarkStep/storm", "node affinity: Step in a storm, 5,000 nodes", "violating pods"},
	{"BenchmarkStep/rates", "node affinity: Step within the rates, 5,000 nodes", "violating pods"},
	{"BenchmarkStep/no_node_fits", "node affinity: Step where no node fits, 5,000 nodes", "violating pods"},
}

// goBenchmarks returns a step that runs the benchmarks of packages.
func goBenchmarks(title string, known []benchmark, pattern string, packages ...string) func(context.Context, options, *resultSet, io.Writer) error {
	return func(ctx context.Context, o options, b *resultSet, out io.Writer) error {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
		defer cancel()
		machine, err := thisMachine(&o)
		if err != nil {
			return err
		}
		from := (&testbed{machine: machine, version: sourceVersion(ctx)}).origin()
		if err := b.add(result{Machine: &machine}); err != nil {
			return err
		}
		fmt.Fprintf(out, "\n%s:\n", title)
		return runBenchmarks(ctx, known, from, b, out, pattern, packages...)
	}
}

// runBenchmarks runs the benchmarks of packages by go test, and adds and prints their results.
func runBenchmarks(ctx context.Context, known []benchmark, from origin, b *resultSet, out io.Writer, pattern string, packages ...string) error {
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-run", "^$", "-bench", pattern, "-benchmem"}, packages...)...)
	text, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("go test: %w: %s", err, text)
	}
	all, err := parseBenchmarks(text, known)
	if err != nil {
		return err
	}
	for _, t := range all {
		t.origin = from
		if err := b.add(result{Timing: t}); err != nil {
			return err
		}
	}
	_, err = fmt.Fprint(out, timingTable(all).text())
	return err
}

// parseBenchmarks parses the output of go test. It skips other benchmarks, and fails if a known one is missing:
//
//	BenchmarkStep/idle/110-2    1492    15788 ns/op    13200 B/op    4 allocs/op
//	BenchmarkFilter/annotation/5000-2    1065    972406 ns/op    3301546 p99-ns    267029 B/op    5176 allocs/op
func parseBenchmarks(text []byte, benchmarks []benchmark) (all []*timing, err error) {
	for line := range bytes.Lines(text) {
		f := strings.Fields(string(line))
		p99 := "0"
		if len(f) == 10 && f[5] == "p99-ns" {
			p99 = f[4]
			f = slices.Delete(f, 4, 6)
		}
		if len(f) != 8 || f[3] != "ns/op" || f[5] != "B/op" || f[7] != "allocs/op" {
			continue
		}
		full, _, _ := strings.Cut(f[0], "-") // GOMAXPROCS
		for _, known := range benchmarks {
			count, ok := strings.CutPrefix(full, known.name+"/")
			if !ok {
				continue
			}
			t := &timing{What: known.what + ", " + count + " " + known.objects}
			var errs [5]error
			t.Runs, errs[0] = strconv.Atoi(f[1])
			t.Nanoseconds, errs[1] = strconv.ParseFloat(f[2], 64)
			t.Bytes, errs[2] = strconv.ParseInt(f[4], 10, 64)
			t.Allocations, errs[3] = strconv.ParseInt(f[6], 10, 64)
			t.P99, errs[4] = strconv.ParseFloat(p99, 64)
			if err := errors.Join(errs[:]...); err != nil {
				return nil, fmt.Errorf("parse %q: %w", line, err)
			}
			all = append(all, t)
		}
	}
	for _, known := range benchmarks {
		if !bytes.Contains(text, []byte(known.name+"/")) {
			return nil, fmt.Errorf("no result of %s: %s", known.name, text)
		}
	}
	return all, nil
}

// timingTable returns a table with a row per benchmark.
func timingTable(all []*timing) *table {
	t := &table{head: []string{"", "time", "p99", "bytes allocated", "allocations", "runs"}}
	for _, m := range all {
		p99 := "–"
		if m.P99 > 0 {
			p99 = rounded(m.P99)
		}
		t.add(m.What, rounded(m.Nanoseconds), p99, fmt.Sprint(m.Bytes), fmt.Sprint(m.Allocations), fmt.Sprint(m.Runs))
	}
	return t
}

// rounded formats nanoseconds.
func rounded(nanoseconds float64) string {
	return time.Duration(nanoseconds).Round(100 * time.Nanosecond).String()
}
