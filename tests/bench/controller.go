package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/evictd/evictd/tests/fencing"
)

// controllerCost is the cost of an idle evictd-controller.
type controllerCost struct {
	origin
	fencing.Idle
}

// The goals for an idle evictd-controller: requests per minute without those of leader election, and MiB with 1,000 nodes
// and with more.
const (
	controllerRequests      = 60
	controllerResident      = 128
	largeControllerResident = 256
)

// controllerTimeout bounds each measurement of the step controller. They take 3 and 6 min.
const controllerTimeout = 15 * time.Minute

// idleController is the step controller: it runs the measurements of tests/fencing.
func idleController(ctx context.Context, o options, b *resultSet, out io.Writer) error {
	var all []*controllerCost
	for _, test := range []string{"^TestIdleController$", "^TestIdleLargeCluster$"} {
		c := &controllerCost{}
		var err error
		if c.origin, err = measureLine(ctx, o, b, "./tests/fencing", test, controllerTimeout, fencing.ResultsEnv, &c.Idle); err != nil {
			return err
		}
		if err := b.add(result{Control: c}); err != nil {
			return err
		}
		all = append(all, c)
	}
	_, err := fmt.Fprintf(out, "\nIdle evictd-controller:\n%s", controllerTable(all).text())
	return err
}

const controllerAbout = "A real API server with Node objects as kubelets register them (ready, 50 images each) and pods, which do not change (of ten pods of a node, one has a requirement during execution, which the node matches); no other " +
	"controller and no kubelet runs, and a program renews the Lease of each node every 20 s. evictd-controller has its default times and mode=enforce. Requests are those in the API server's audit log from half a minute after the start, with each watch " +
	"that is begun again, which happens every 5 to 10 min and may fall outside of the measurement; those of leader election are counted apart. Missed goals are bold."

// controllerTable returns a table with a row per number of nodes.
func controllerTable(all []*controllerCost) *table {
	t := &table{head: []string{
		"nodes", "pods", "measured for", fmt.Sprintf("API requests per minute (goal %d)", controllerRequests), "which", "leader election, per minute",
		fmt.Sprintf("resident, MiB (goals %d and %d)", controllerResident, largeControllerResident), "most resident",
	}}
	for _, c := range all {
		minutes := c.Seconds / time.Minute.Seconds()
		goal := float64(controllerResident)
		if c.Nodes > 1000 {
			goal = largeControllerResident
		}
		which := "–"
		if c.Total() > 0 {
			which = counts(c.Requests)
		}
		t.add(fmt.Sprint(c.Nodes), fmt.Sprint(c.Pods), fmt.Sprintf("%.0f s", c.Seconds), formatFigure(float64(c.Total())/minutes, controllerRequests), which,
			fmt.Sprintf("%.1f", float64(c.Elections)/minutes), formatFigure(mebibytes(c.Resident), goal), size(c.Peak>>10))
	}
	return t
}

// controllerCosts returns the costs on a machine.
func (b *resultSet) controllerCosts(on string) (all []*controllerCost) {
	for _, r := range b.results {
		if r.Control != nil && r.Control.On == on {
			all = append(all, r.Control)
		}
	}
	return all
}
