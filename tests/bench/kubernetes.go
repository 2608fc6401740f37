package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/evictd/evictd/tests/cluster"
)

// podEvictions are the evictions of one contender on a node of a cluster.
type podEvictions struct {
	origin
	cluster.Evictions
}

// clusterTimeout bounds the step cluster. The kubelet takes a quarter of a minute for each eviction.
const clusterTimeout = time.Hour

// sourceVersion returns the version of the source tree, or "" if git does not know it.
func sourceVersion(ctx context.Context) string {
	version, err := exec.CommandContext(ctx, "git", "describe", "--tags", "--always", "--dirty").Output()
	if err != nil {
		return ""
	}
	return string(bytes.TrimSpace(version))
}

// measureByTests runs the measurements of a package whose names match a pattern, so many at once, with an environment. It
// returns the lines that they wrote into the file of a variable.
func measureByTests(ctx context.Context, of, pattern string, timeout time.Duration, variable string, parallel int, env ...string) ([]byte, error) {
	dir, err := os.MkdirTemp("", "evictd-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "results")
	cmd := exec.CommandContext(ctx, "go", "test", "-tags", "bench", "-count", "1", "-parallel", strconv.Itoa(parallel), "-timeout", timeout.String(),
		"-v", "-run", pattern, of)
	cmd.Env = append(os.Environ(), append(env, variable+"="+file)...)
	text, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("go test: %w: %s", err, text)
	}
	lines, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, text) // the tests were skipped
	}
	return lines, nil
}

// measureLines runs the measurements of a package like [measureByTests], one at a time, and returns where they were
// measured and the lines.
func measureLines(ctx context.Context, o options, b *resultSet, of, pattern string, timeout time.Duration, variable string, env ...string) (origin, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	machine, err := thisMachine(&o)
	if err != nil {
		return origin{}, nil, err
	}
	from := (&testbed{machine: machine, version: sourceVersion(ctx)}).origin()
	if err := b.add(result{Machine: &machine}); err != nil {
		return origin{}, nil, err
	}
	lines, err := measureByTests(ctx, of, pattern, timeout, variable, 1, env...)
	return from, lines, err
}

// parseLines decodes each line of JSON, and passes it to add.
func parseLines[T any](lines []byte, add func(T) error) error {
	for line := range bytes.Lines(lines) {
		var value T
		if err := json.Unmarshal(line, &value); err != nil {
			return fmt.Errorf("parse %q: %w", line, err)
		}
		if err := add(value); err != nil {
			return err
		}
	}
	return nil
}

// measureLine runs the measurement of a package that writes one line of JSON, decodes that into value, and returns where
// it was measured.
func measureLine(ctx context.Context, o options, b *resultSet, of, pattern string, timeout time.Duration, variable string, value any) (origin, error) {
	from, line, err := measureLines(ctx, o, b, of, pattern, timeout, variable)
	if err != nil {
		return origin{}, err
	}
	if err := json.Unmarshal(bytes.TrimSpace(line), value); err != nil {
		return origin{}, fmt.Errorf("parse %q: %w", line, err)
	}
	return from, nil
}

// onCluster is the step cluster: it runs the measurements of tests/cluster.
func onCluster(ctx context.Context, o options, b *resultSet, out io.Writer) error {
	from, lines, err := measureLines(ctx, o, b, "./tests/cluster", "^TestMeasure", clusterTimeout, cluster.ResultsEnv, cluster.EvictionsEnv+"="+strconv.Itoa(o.evictions))
	if err != nil {
		return err
	}
	var all []*podEvictions
	err = parseLines(lines, func(e cluster.Evictions) error {
		all = append(all, &podEvictions{from, e})
		return b.add(result{Cluster: all[len(all)-1]})
	})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "\nEvictions on a node of a cluster:\n%s", clusterTable(all).text())
	return err
}

const clusterAbout = "A cluster of one node with a real API server, controllers, scheduler, kubelet and containerd. A pod of a Deployment " +
	"allocates 640 MiB at full speed at a random time, next to three calm pods of 32 MiB. The threshold of the memory of all pods " +
	"(allocatableMemory.available, of 1 GiB) is 512 MiB, as no other threshold is near. All pods tolerate all taints, so that the replacement comes to the " +
	"same node; everything else has its default configuration. Since 28 November 2026 evictd-kube has the nice value of its unit (-20), before " +
	"it had 0. The first signal is a SIGTERM or a SIGKILL. What follows the end of the last " +
	"process is as a client of the API server sees it, but \"report sent\" is when evictd-kube gave its report to the connection " +
	"(its log; not measured before 28 November 2026), and \"received\" when the API server received it (its audit log)."

// clusterTable returns a table with a row per contender.
func clusterTable(all []*podEvictions) *table {
	t := &table{head: []string{
		"", "n", "crossing → first signal: median", "max", "overshoot: median", "max", "last process gone → report sent: median (goal 2 ms)", "p99 (goal 20 ms)", "received: median", "p99",
		"→ Failed, Evicted: median", "max", "→ replacement runs: median", "max", "victims restarted", "other pods evicted", "other events",
	}}
	figure := func(values []int64, q float64, format func(int64) string) string {
		if len(values) == 0 {
			return "–"
		}
		return format(quantile(values, q))
	}
	for _, e := range all {
		t.add(e.Contender, fmt.Sprint(len(e.Replaced)+e.NotEvicted),
			figure(e.Signalled, 0.5, milliseconds), figure(e.Signalled, 1, milliseconds),
			figure(e.Overshoot, 0.5, size), figure(e.Overshoot, 1, size),
			figure(e.Sent, 0.5, milliseconds), figure(e.Sent, 0.99, milliseconds),
			figure(e.Received, 0.5, milliseconds), figure(e.Received, 0.99, milliseconds),
			figure(e.Reported, 0.5, milliseconds), figure(e.Reported, 1, milliseconds),
			figure(e.Replaced, 0.5, milliseconds), figure(e.Replaced, 1, milliseconds),
			fmt.Sprint(e.Restarts), fmt.Sprint(e.Bystanders), e.others())
	}
	return t
}

// others lists what is not in the columns.
func (e *podEvictions) others() string {
	return joinCounts([]count{{"before a sample was below", e.Early}, {"not evicted", e.NotEvicted}, {"never shown as evicted", e.Unreported}})
}

// clusterEvictions returns the evictions on the clusters of a machine.
func (b *resultSet) clusterEvictions(on string) (all []*podEvictions) {
	for _, r := range b.results {
		if e := r.Cluster; e != nil && e.On == on {
			all = append(all, e)
		}
	}
	return all
}
