package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/evictd/evictd/agent/fence"
)

const (
	// annotationDrill asks for a drill, on a NodeFence: it has the UID of the Node.
	annotationDrill = "evictd.io/fence-drill"
	// drillTimeout is how long evictd-controller may take to begin a drill, and how long its NodeFence may be missing.
	drillTimeout  = time.Minute
	drillInterval = time.Second
	// switchOff is what a person enters to switch the machine off.
	switchOff = "switch off"
)

func newFenceDrillCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "drill NODE",
		Short: "Fence a healthy, empty node, and print how long it took",
		Long: `Drill shows whether the power devices that are configured for a node are its own, and
how long a fence takes, before an outage needs it. evictd-controller switches the
machine of the node OFF, proves that it is off, releases it and switches it on again.
If a device of the configuration is that of another machine, that one is switched off.

The node must be Ready and have no pods but those of DaemonSets and static ones: drain
it first. Drill asks, cordons the node, and asks again. It asks for the drill by the
annotation evictd.io/fence-drill of the NodeFence, for which you need the right to
create and patch NodeFences. It isolates nothing, and needs mode=enforce. The limits of
fencing apply: a drill counts as a fence.

A level of power_management whose methods all have identity=none is used for fences
after a drill of it has passed. The level 1 is drilled, unless its device fails; for
another one name it with --level. What a drill has shown is kept in the ConfigMap
evictd-fence-drills until the devices, plugs or parameters of the level change.

It runs kubectl, with your credentials. If you interrupt it, the drill goes on; see
evictctl fence show NODE. A node that drill has cordoned is uncordoned after a drill
that has passed.

It exits with 0 if the drill has passed.`,
		Example: `  kubectl drain host1 --ignore-daemonsets
  evictctl fence drill host1

  # The second level of power_management
  evictctl fence drill host1 --level 2`,
		Args: cobra.ExactArgs(1),
	}
	k := addKubectlFlags(cmd)
	var level int
	cmd.Flags().IntVar(&level, "level", 0, "drill only this `LEVEL` of power_management, from 1 (0: all, as a fence does)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if level < 0 {
			return fmt.Errorf("--level is %d; write the number of a level, from 1", level)
		}
		d := &drill{kubectl: k, name: args[0], level: level, in: bufio.NewReader(cmd.InOrStdin()), out: cmd.OutOrStdout(),
			interval: drillInterval, timeout: drillTimeout}
		return d.run(cmd.Context())
	}
	return cmd
}

// drill is one call of evictctl fence drill.
type drill struct {
	*kubectl
	name string
	// level is the only level that is drilled, 0 for all.
	level int
	in    *bufio.Reader
	out   io.Writer
	// interval is that of looking at the NodeFence, timeout how long it may be missing, or the drill may not have begun.
	interval, timeout time.Duration
	// earlier is the UID of the NodeFence that asks for the drill.
	earlier string
	began   time.Time
	// seen is when the last entry of the history was made that was printed.
	seen time.Time
}

func (d *drill) run(ctx context.Context) error {
	n, earlier, err := d.drillable(ctx)
	if err != nil {
		return err
	}
	var p page
	p.line("The machine of node %s will be switched off by evictd-controller, and on again after it was read off.", d.name)
	p.line("If a device of its configuration belongs to another machine, that machine is switched off.")
	if err := p.print(d.out); err != nil {
		return err
	}
	if err := ask(d.in, d.out, "Enter the name of the node to cordon it: ", d.name); err != nil {
		return fmt.Errorf("nothing was done: %w", err)
	}
	cordoned := !n.Spec.Unschedulable
	if cordoned {
		if _, err := d.call(ctx, "cordon", d.name); err != nil {
			return err
		}
	}
	if err := d.begin(ctx, n, earlier); err != nil {
		if cordoned {
			_, undo := d.call(context.WithoutCancel(ctx), "uncordon", d.name)
			err = errors.Join(err, undo)
		}
		return err
	}
	f, err := d.follow(ctx)
	if err != nil {
		return err
	}
	if err := drillPage(f).print(d.out); err != nil {
		return err
	}
	if why := drillFailure(f); why != "" {
		return fmt.Errorf("the drill of node %s has failed: %s; see evictctl fence show %[1]s", d.name, why)
	}
	if cordoned && f.State.Result == fence.Recovered {
		_, err = d.call(ctx, "uncordon", d.name)
	}
	return err
}

// drillable returns the Node, and its NodeFence if it has an ended one. The error is why there can be no drill.
func (d *drill) drillable(ctx context.Context) (*corev1.Node, *nodeFence, error) {
	n := &corev1.Node{}
	if err := d.get(ctx, n, "node", d.name); err != nil {
		return nil, nil, err
	}
	if !slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	}) {
		return nil, nil, fmt.Errorf("node %s is not Ready: a drill is for healthy nodes", d.name)
	}
	list, err := listFences(ctx, d.kubectl)
	if err != nil {
		return nil, nil, err
	}
	i := slices.IndexFunc(list, func(f nodeFence) bool { return f.Node == d.name })
	if i < 0 {
		return n, nil, d.empty(ctx)
	}
	if list[i].State.FinishedAt.IsZero() {
		return nil, nil, fmt.Errorf("node %s is being fenced; see evictctl fence show %[1]s", d.name)
	}
	return n, &list[i], d.empty(ctx)
}

// empty returns an error that names pods which a drain would move.
func (d *drill) empty(ctx context.Context) error {
	var list corev1.PodList
	if err := d.get(ctx, &list, "pods", "--all-namespaces", "--field-selector=spec.nodeName="+d.name); err != nil {
		return err
	}
	var names []string
	for i := range list.Items {
		pod := &list.Items[i]
		owner := metav1.GetControllerOf(pod)
		if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; !mirror && (owner == nil || owner.Kind != "DaemonSet") {
			names = append(names, pod.Namespace+"/"+pod.Name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	more := ""
	if len(names) > 5 {
		names, more = names[:5], fmt.Sprintf(" and %d more", len(names)-5)
	}
	return fmt.Errorf("node %s has the pods %s%s; drain it: kubectl drain %[1]s --ignore-daemonsets", d.name, strings.Join(names, ", "), more)
}

// begin asks for the second time, and then asks evictd-controller for the drill.
func (d *drill) begin(ctx context.Context, n *corev1.Node, earlier *nodeFence) error {
	if err := d.empty(ctx); err != nil {
		return err
	}
	if err := ask(d.in, d.out, fmt.Sprintf("Enter %q to switch the machine of node %s off now: ", switchOff, d.name), switchOff); err != nil {
		return fmt.Errorf("nothing was switched off: %w", err)
	}
	d.began = time.Now()
	if earlier != nil {
		d.earlier = string(earlier.Metadata.UID)
		if h := earlier.State.History; len(h) > 0 {
			d.seen = h[len(h)-1].At.Time
		}
		_, err := d.call(ctx, "annotate", nodeFences, earlier.Metadata.Name, annotationDrill+"="+d.request(n), "--overwrite")
		return err
	}
	request, err := json.Marshal(map[string]any{
		"apiVersion": "ha.k8s.io/v1", "kind": "NodeFence",
		"metadata": map[string]any{"name": "node-fence-" + d.name, "annotations": map[string]string{annotationDrill: d.request(n)}},
		"node":     d.name, "step": fence.PowerManagement, "status": fence.New, "retries": 0,
	})
	if err != nil {
		return err
	}
	text, err := d.callWith(ctx, request, "create", "-f", "-", "-o", "json")
	if err != nil {
		return err
	}
	var created nodeFence
	if err := json.Unmarshal(text, &created); err != nil {
		return fmt.Errorf("read what %s create printed: %w", d.program, err)
	}
	d.earlier = string(created.Metadata.UID)
	return nil
}

// request returns the value of the annotation.
func (d *drill) request(n *corev1.Node) string {
	if d.level == 0 {
		return string(n.UID)
	}
	return fmt.Sprintf("%s/%d", n.UID, d.level)
}

// follow prints what happens until the drill has ended or waits for a person.
func (d *drill) follow(ctx context.Context) (*nodeFence, error) {
	var failed error
	for found := time.Now(); ; {
		list, err := listFences(ctx, d.kubectl)
		failed = err
		if i := slices.IndexFunc(list, func(f nodeFence) bool { return f.Node == d.name }); i >= 0 {
			f := &list[i]
			found = time.Now()
			if string(f.Metadata.UID) != d.earlier {
				d.earlier, d.seen = string(f.Metadata.UID), time.Time{}
			}
			if err := d.printHistory(f); err != nil {
				return nil, err
			}
			if f.Metadata.Annotations[annotationDrill] == "" && drillOver(f) {
				return f, nil
			}
			if f.Metadata.Annotations[annotationDrill] != "" && time.Since(d.began) > d.timeout {
				return nil, fmt.Errorf("evictd-controller has not begun the drill within %s; check that it runs; the drill begins when "+
					"it does: to prevent that, run %s annotate %s %s %s-", d.timeout, d.program, nodeFences, f.Metadata.Name, annotationDrill)
			}
		}
		if time.Since(found) > d.timeout {
			return nil, errors.Join(fmt.Errorf("the NodeFence of node %s was not seen for %s; look whether the machine is on", d.name, d.timeout), failed)
		}
		select {
		case <-time.After(d.interval):
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("interrupted; the drill goes on, see evictctl fence show %s", d.name), failed)
		}
	}
}

// printHistory prints the entries of the history that are new.
func (d *drill) printHistory(f *nodeFence) error {
	var p page
	seen := d.seen // entries of one step have the same time
	for _, e := range f.State.History {
		if e.At.After(seen) {
			p.line("%s: %s", e.Reason, e.Message)
			d.seen = e.At.Time
		}
	}
	return p.print(d.out)
}

// drillOver reports whether a drill has ended, or a person must decide how it goes on.
func drillOver(f *nodeFence) bool {
	if !f.State.FinishedAt.IsZero() || f.State.Result == fence.Fenced {
		return true
	}
	waiting := meta.FindStatusCondition(f.State.Conditions, fence.ConditionWaiting)
	return waiting != nil && waiting.Status == metav1.ConditionTrue && waiting.Reason == fence.ReasonDeviceReadsOff ||
		slices.ContainsFunc([]string{fence.ConditionGaveUp, fence.ConditionVerificationFailed, fence.ConditionNodeDidNotReturn},
			func(c string) bool { return meta.IsStatusConditionTrue(f.State.Conditions, c) })
}

// drillFailure returns why a drill has failed, empty if it has passed: readings have proven that the machine was off,
// and the node is back if the plan switches it on.
func drillFailure(f *nodeFence) string {
	s := &f.State
	if h := s.History; len(h) > 0 && h[len(h)-1].Reason == fence.ReasonDrillRefused {
		return "it was refused"
	}
	proven := s.Proof != nil && s.Proof.How == fence.ByReadings && s.Phase == fence.Released
	switch {
	case slices.ContainsFunc(s.History, func(e fence.Entry) bool { return e.Reason == fence.ReasonDrillShowedNothing }):
		return "the node was not seen to go down with its device, or did not come back with a new boot ID"
	case s.Drill && proven && (s.Result == fence.Recovered || s.Result == fence.Fenced):
		return ""
	case len(f.holds()) > 0:
		return strings.Join(f.holds(), ", ")
	case s.Proof == nil:
		return "the machine was not proven off: its device ignored the command, or is not its own"
	}
	return "it ended with " + f.stage()
}

// drillSteps are the entries of the history whose times are reported.
var drillSteps = []struct{ reason, what string }{
	{fence.ReasonActStarted, "switching off began"},
	{fence.ReasonProving, "the device has answered"},
	{fence.ReasonOffProven, "proven off"},
	{fence.ReasonReleased, "released"},
	{fence.ReasonSwitchedOn, "switched on"},
	{fence.ReasonRecovered, "Ready again"},
}

// drillPage has the times of a drill, from the first switch-off.
func drillPage(f *nodeFence) *page {
	p := &page{}
	var rows [][]string
	var began time.Time
	for _, step := range drillSteps {
		i := slices.IndexFunc(f.State.History, func(e fence.Entry) bool { return e.Reason == step.reason })
		if i < 0 {
			continue
		}
		if at := f.State.History[i].At.Time; began.IsZero() {
			began = at
			rows = append(rows, []string{step.what, "0s"})
		} else {
			rows = append(rows, []string{step.what, between(began, at)})
		}
	}
	p.table([]string{"STEP", "AFTER"}, rows)
	return p
}
