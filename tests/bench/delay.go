package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/evictd/evictd/tests/affinity"
)

// affinityDelays are the delays of evictions for node affinity.
type affinityDelays struct {
	origin
	affinity.Delays
}

const (
	// delayTimeout bounds the step delay, which takes 2 min.
	delayTimeout = 15 * time.Minute
	// delayGoal is the goal for what a delay has in addition to the debounce.
	delayGoal = time.Second
)

// labelDelays is the step delay: it runs the measurement of tests/affinity.
func labelDelays(ctx context.Context, o options, b *resultSet, out io.Writer) error {
	d := &affinityDelays{}
	var err error
	if d.origin, err = measureLine(ctx, o, b, "./tests/affinity", "^TestMeasureDelay$", delayTimeout, affinity.ResultsEnv, &d.Delays); err != nil {
		return err
	}
	if err := b.add(result{Delay: d}); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "\nFrom a label to the eviction:\n%s", delayTable([]*affinityDelays{d}).text())
	return err
}

const delayAbout = "A real API server, kube-controller-manager and scheduler, and two nodes without kubelets. Each pod is the only one of its Deployment, " +
	"and its node loses the label that its annotation requires, one pod after the other. Measured is the time from before that request until the API " +
	"server has accepted the eviction (its audit log). The debounce is 30 s by default. A descheduler with its default interval looks every " +
	"5 min: after 150 s on average; that was not measured. Missed goals are bold."

// delayTable returns a table with a row per debounce.
func delayTable(all []*affinityDelays) *table {
	t := &table{head: []string{
		"debounce", "n", "label taken → eviction accepted: median", "max", fmt.Sprintf("without the debounce: median, ms (goal %d)", delayGoal.Milliseconds()), "max, ms",
	}}
	for _, d := range all {
		cells := []string{seconds(d.Debounce), fmt.Sprint(len(d.Accepted))}
		middle, most := median(d.Accepted), quantile(d.Accepted, 1)
		for _, us := range []int64{middle, most} {
			cells = append(cells, fmt.Sprintf("%.2f s", (time.Duration(us)*time.Microsecond).Seconds()))
		}
		for _, us := range []int64{middle, most} {
			cells = append(cells, formatFigure(float64(us-d.Debounce)/1000, float64(delayGoal.Milliseconds())))
		}
		t.add(cells...)
	}
	return t
}

// affinityDelays returns the delays on a machine.
func (b *resultSet) affinityDelays(on string) (all []*affinityDelays) {
	for _, r := range b.results {
		if r.Delay != nil && r.Delay.On == on {
			all = append(all, r.Delay)
		}
	}
	return all
}
