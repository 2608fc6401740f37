package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/evictd/evictd/tests/cluster"
)

// footprint is the size of a program.
type footprint struct {
	origin
	cluster.Footprint
}

// footprintTimeout bounds the step footprint, which takes 4 min.
const footprintTimeout = 15 * time.Minute

// The goals, in bytes: of evictd-kube, and how much larger evictd may be than the earlier version.
const (
	evictdKubeBinary   = 16 << 20
	evictdKubeResident = 20 << 20
	evictdGrowth       = 500_000
)

// footprints is the step footprint: it runs TestFootprint of tests/cluster.
func footprints(ctx context.Context, o options, b *resultSet, out io.Writer) error {
	from, lines, err := measureLines(ctx, o, b, "./tests/cluster", "^TestFootprint$", footprintTimeout, cluster.ResultsEnv)
	if err != nil {
		return err
	}
	var all []*footprint
	err = parseLines(lines, func(f cluster.Footprint) error {
		all = append(all, &footprint{from, f})
		return b.add(result{Footprint: all[len(all)-1]})
	})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "\nSize of evictd and evictd-kube:\n%s", footprintTable(all).text())
	return err
}

const footprintAbout = "Executables as `make build` makes them, and what is resident of an idle process 15 s after its start. " +
	"Without a cluster evictd runs in dry run and without a runtime; each value is the median of five runs, those of the two versions in turns. " +
	"In the cluster a real API server has a node with so many pods of 12 KB, and each value is of one run. " +
	"How many pages of an executable are resident varies from run to run. Between the two versions evictd has got more than its " +
	"part of evictd-kube: the self-fencing of nodes, and the protection of pods by labels. " +
	"Goals: evictd not more than 0.5 MB above the earlier version, evictd-kube at most 16 MiB and 20 MiB resident. Missed goals are bold."

// footprintTable returns a table with a row per program.
func footprintTable(all []*footprint) *table {
	t := &table{head: []string{"", "pods", "executable, bytes", "resident, MiB", "least", "most", "runs"}}
	bold := func(text string, missed bool) string {
		if missed {
			return "**" + text + "**"
		}
		return text
	}
	for _, f := range all {
		n := len(f.Resident)
		median := int64(f.Resident[n/2])
		mostBinary, mostResident := int64(math.MaxInt64), int64(math.MaxInt64)
		switch f.Program {
		case "evictd-kube":
			mostBinary, mostResident = evictdKubeBinary, evictdKubeResident
		case "evictd by itself":
			before := all[0]
			mostBinary, mostResident = before.Binary+evictdGrowth, int64(before.Resident[len(before.Resident)/2])+evictdGrowth
		}
		t.add(f.Program, fmt.Sprint(f.Pods), bold(fmt.Sprint(f.Binary), f.Binary > mostBinary),
			bold(fmt.Sprintf("%.2f", mebibytes(median)), median > mostResident),
			fmt.Sprintf("%.2f", mebibytes(int64(f.Resident[0]))), fmt.Sprintf("%.2f", mebibytes(int64(f.Resident[n-1]))), fmt.Sprint(n))
	}
	return t
}

// footprintsOn returns the sizes that were measured on a machine.
func (b *resultSet) footprintsOn(on string) (all []*footprint) {
	for _, r := range b.results {
		if r.Footprint != nil && r.Footprint.On == on {
			all = append(all, r.Footprint)
		}
	}
	return all
}
