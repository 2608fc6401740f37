package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/evictd/evictd/tests/fencing"
)

// nodeReleases are the losses of a node that one contender released.
type nodeReleases struct {
	origin
	fencing.Releases
}

const (
	// fencesTimeout bounds the step fence: a loss takes half a minute.
	fencesTimeout = time.Hour
	// fencesAtOnce is the most clusters that run at the same time. They wait most of the time.
	fencesAtOnce = 8
)

// fenceBenchmarks are those of the step fence.
var fenceBenchmarks = []benchmark{{"BenchmarkStorm", "storm policy and Step for 50 nodes that fail at once", "nodes"}}

// fences is the step fence: it runs the measurements of tests/fencing and the benchmark of agent/fence.
func fences(ctx context.Context, o options, b *resultSet, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, fencesTimeout)
	defer cancel()
	machine, err := thisMachine(&o)
	if err != nil {
		return err
	}
	from := (&testbed{machine: machine, version: sourceVersion(ctx)}).origin()
	if err := b.add(result{Machine: &machine}); err != nil {
		return err
	}
	fmt.Fprint(out, "\nFencing, one pass of the decision:\n")
	if err := runBenchmarks(ctx, fenceBenchmarks, from, b, out, "Storm", "./agent/fence"); err != nil {
		return err
	}
	env := []string{fencing.LossesEnv + "=" + strconv.Itoa(o.fences)}
	if o.forcedDetach {
		env = append(env, fencing.DetachEnv+"=1")
	}
	lines, err := measureByTests(ctx, "./tests/fencing", "^TestMeasure", fencesTimeout, fencing.ResultsEnv, fencesAtOnce, env...)
	if err != nil {
		return err
	}
	var all []*nodeReleases
	err = parseLines(lines, func(r fencing.Releases) error {
		all = append(all, &nodeReleases{from, r})
		return b.add(result{Fence: all[len(all)-1]})
	})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "\nFencing of lost nodes:\n%s%s", fenceTable(all).text(), fenceGoals(all))
	return err
}

const fenceAbout = "A cluster of two machines with a real API server, kube-controller-manager and scheduler, a stand-in for the kubelet on " +
	"each machine, and a simulated BMC (ipmi_sim) that answers at once. A machine is cut off from the API server while its pod, of a StatefulSet " +
	"with a CSI volume, runs on. Times are those of the API server's audit log. kube-controller-manager has " +
	"--node-monitor-grace-period=10s, and evictd-controller a grace of 8 s: with the defaults of both, 50 s and 60 s, *lost → first event* " +
	"is as much longer. The times of the proof are evictd's defaults: two readings 5 s apart. By hand, a program " +
	"does what a person does, at once: the time of the person is not included, and no second reading proves that the machine is off. " +
	"kube-controller-manager alone deletes the pod 300 s after the taint of an unreachable node (the default toleration); here it is deleted as " +
	"soon as the node is not Ready. The pod of a StatefulSet then stays Terminating and its volume attached. Only if a person force-deletes the pod " +
	"does kube-controller-manager detach the volume by force, 6 min later, and not with --disable-force-detach-on-timeout; " +
	"the machine is on then. evictd-controller and the taint by hand were measured with that flag. " +
	"*Released while the machine was on* counts pods removed and volumes detached so; *used by two machines*: the replacement ran " +
	"with the volume on the other machine while the lost one used it still."

// fenceTable returns a table with a row per contender.
func fenceTable(all []*nodeReleases) *table {
	t := &table{head: []string{
		"", "n", "first event", "lost → first event: median", "first event → VolumeAttachment gone: median", "max",
		"lost → replacement runs: median", "max", "kept attached for", "released while the machine was on", "used by two machines",
	}}
	for _, r := range all {
		cells := []string{r.Contender, fmt.Sprint(len(r.Noticed)), r.From, seconds(median(r.Noticed))}
		if len(r.Released) == 0 {
			cells = append(cells, "never", "never", "never", "never")
		} else {
			cells = append(cells, seconds(median(r.Released)), seconds(quantile(r.Released, 1)), seconds(median(r.Replaced)), seconds(quantile(r.Replaced, 1)))
		}
		kept := "–"
		if len(r.Kept) > 0 {
			kept = "all of the " + seconds(quantile(r.Kept, 0)) + " observed"
		}
		t.add(append(cells, kept, fmt.Sprint(r.Early), fmt.Sprint(r.Shared))...)
	}
	return t
}

// seconds formats microseconds.
func seconds(us int64) string {
	return fmt.Sprintf("%.1f s", (time.Duration(us) * time.Microsecond).Seconds())
}

// fenceGoal is the goal for the median from a NodeFence until the VolumeAttachment is gone.
const fenceGoal = 10 * time.Second

// fenceGoals returns a sentence that compares evictd-controller with its goal.
func fenceGoals(all []*nodeReleases) string {
	for _, r := range all {
		if strings.HasPrefix(r.Contender, "evictd") && len(r.Released) > 0 {
			verdict := "met"
			if median(r.Released) > fenceGoal.Microseconds() {
				verdict = "**missed**"
			}
			return fmt.Sprintf("evictd-controller, %s → VolumeAttachment gone: median %s (goal %v: %s).\n",
				r.From, seconds(median(r.Released)), fenceGoal, verdict)
		}
	}
	return "evictd-controller: not measured.\n"
}

// nodeReleases returns the releases of a machine.
func (b *resultSet) nodeReleases(on string) (all []*nodeReleases) {
	for _, r := range b.results {
		if r.Fence != nil && r.Fence.On == on {
			all = append(all, r.Fence)
		}
	}
	return all
}
