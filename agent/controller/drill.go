package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/agent/fence/nodefence"
)

// drillRequested reports whether a person asked for a drill: by the annotation of a NodeFence that has ended or has no
// state. In one that has not ended, the annotation has no effect until then.
func drillRequested(nf *nodefence.NodeFence) bool {
	return nf.Annotations[annotationDrill] != "" && (finished(nf) || nf.State.Target.UID == "")
}

// drill begins a drill in place of the NodeFence that asks for it, or refuses it.
func (p *pass) drill(ctx context.Context, nf *nodefence.NodeFence) error {
	if err := p.sweep(ctx); err != nil {
		return err
	}
	state, events, err := p.openDrill(ctx, nf.Annotations[annotationDrill])
	switch {
	case errors.Is(err, errNotKnown):
		p.until(time.Now().Add(longestWait))
		return nil
	case err != nil:
		return p.refuseDrill(ctx, nf, err.Error())
	}
	return p.create(ctx, state, events, nf)
}

// errNotKnown is the error of a drill that can't be decided on now.
var errNotKnown = errors.New("an object could not be read")

// openDrill returns the state of a drill and what is reported of it. The request is the UID of the Node, for a drill of
// the whole plan, or UID/LEVEL for one level of power management. The error is why there is none.
func (p *pass) openDrill(ctx context.Context, request string) (*fence.State, []fence.Event, error) {
	plan, planned := p.config.Plans[p.name]
	uid, text, one := strings.Cut(request, "/")
	switch {
	case p.node == nil:
		return nil, nil, fmt.Errorf("there is no Node %s", p.name)
	case string(p.node.UID) != uid:
		return nil, nil, fmt.Errorf("the annotation %s has %q, the UID of the Node is %q", annotationDrill, uid, p.node.UID)
	case !planned:
		return nil, nil, fmt.Errorf("the node has no valid configuration of fencing, ConfigMap fence-config-%s", p.name)
	case !p.config.Policy.Enforce:
		return nil, nil, errors.New("evictd-controller is in dry run; set mode=enforce in cluster-fence-config")
	}
	if one {
		level, err := strconv.Atoi(text)
		if err != nil || level < 1 || level > len(plan.PowerManagement) {
			return nil, nil, fmt.Errorf("the annotation %s has %q: power_management has the levels 1 to %d", annotationDrill, request, len(plan.PowerManagement))
		}
		plan.PowerManagement = plan.PowerManagement[level-1 : level]
	}
	if g := p.withheld(p.node, true); !g.Open {
		return nil, nil, errors.New(g.Message)
	}
	other, err := p.sameUUID(ctx, p.node)
	switch {
	case err != nil:
		return nil, nil, errNotKnown
	case other != "" && compares(&plan):
		// What is not compared can be drilled, and must be: a fence of this node uses nothing else.
		return nil, nil, fmt.Errorf("another Node, %s, has the same systemUUID, which then identifies no machine; delete the one that is "+
			"out of date, or drill a level of power management whose methods all have identity=none, with --level", other)
	}
	lease := p.observer.lease(ctx, p.name)
	if !lease.Known {
		return nil, nil, errNotKnown
	}
	state, orders := fence.OpenDrill(nodeFacts(p.node), lease, plan, time.Now())
	return &state, orders.Events, nil
}

// compares reports whether a method of power management compares the UUID of its device with that of the node.
func compares(pl *fence.Plan) bool {
	return slices.ContainsFunc(pl.PowerManagement, func(l fence.Level) bool {
		return slices.ContainsFunc(l.Methods, func(m fence.Method) bool { return m.Identity != fence.CheckNone })
	})
}

// refuseDrill removes the request from the NodeFence, and adds the reason to its history. One that had no state ends.
func (p *pass) refuseDrill(ctx context.Context, nf *nodefence.NodeFence, why string) error {
	next := nf.DeepCopy()
	delete(next.Annotations, annotationDrill)
	message := "the drill is refused, nothing was switched off: " + why
	now := metav1.NowMicro()
	if !finished(nf) {
		next.Progress = fence.Progress{Step: fence.PowerManagement, Status: fence.Done}
		next.State = fence.Detail{
			Target: fence.Target{UID: nf.Annotations[annotationDrill]}, Drill: true,
			Since: now, FinishedAt: now, Result: fence.DrillRefused,
		}
	}
	next.State.Note(fence.Entry{At: now, Step: next.Step, Status: next.Status, Phase: next.State.Phase, Reason: fence.ReasonDrillRefused, Message: message})
	if err := p.writer.Update(ctx, next, strict); err != nil {
		return fmt.Errorf("save NodeFence %s: %w", nf.Name, err)
	}
	p.report(next, []fence.Event{{Warning: true, Reason: fence.ReasonDrillRefused, Message: message}})
	p.wake = time.Now()
	return nil
}

// checkDrill returns why the machine of a healthy node must not be switched off for a drill.
func (r *reconciler) checkDrill(ctx context.Context, node *corev1.Node, o *order) error {
	if err := r.checkUUID(ctx, node, o); err != nil {
		return err
	}
	// Only the first method of the first level acts on a node that is known to run: what follows, such as a second level
	// after the device of the first has become silent, finds one that may be off.
	first := o.intent.Level == 0 && o.intent.Index == 0
	if why := fence.Undrillable(nodeFacts(node), r.observer.load(ctx, o.node), !first); why != "" {
		return errors.New(why)
	}
	return nil
}
