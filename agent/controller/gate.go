package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/agent/fence/nodefence"
)

// The reasons of a gate that is closed by the controller itself. Those of the storm policy are in agent/fence.
const (
	reasonOwnNode    = "OwnNode"
	reasonExcluded   = "Excluded"
	reasonPaused     = "Paused"
	reasonDryRun     = "DryRun"
	reasonRemediator = "RemediatorLease"
	reasonTaint      = "RemediatorTaint"
	reasonObject     = "RemediatorObject"
	reasonUnknown    = "FencesUnknown"
)

var gateReasons = append(fence.StormReasons(), reasonOwnNode, reasonExcluded, reasonPaused, reasonDryRun, reasonRemediator,
	reasonTaint, reasonObject, reasonUnknown)

// withheld returns a closed gate if a person, or the place of the controller, forbids acts against a node that was just
// read.
func (r *reconciler) withheld(node *corev1.Node, enforce bool) fence.Gate {
	// An annotation that does not count was reported.
	until, by, _ := pausedUntil(node, time.Now())
	switch {
	case node.Name == r.ownNode:
		return withholding(reasonOwnNode, "the controller runs on the node itself: move it to another node")
	case excluded(node):
		return withholding(reasonExcluded, "the node has the label "+labelExclude)
	case !until.IsZero():
		return withholding(reasonPaused, fmt.Sprintf(
			"fencing of the node is paused until %s by the annotation %s", until.UTC().Format(time.RFC3339), by))
	case remediatorTaint(node) != "":
		return withholding(reasonTaint, fmt.Sprintf("the node has the taint %s of a remediator or of node maintenance, which works "+
			"on it: it is fenced when the taint is gone", remediatorTaint(node)))
	case !enforce:
		return withholding(reasonDryRun, "dry run was switched on after the fence began")
	}
	return fence.Gate{Open: true}
}

// withholding returns a gate that forbids all acts. It also interrupts a release that has begun. Without the storm
// policy's numbers, or with worse ones, that goes on: the machine is off.
func withholding(reason, message string) fence.Gate {
	return fence.Gate{Reason: reason, Message: message, Withheld: true}
}

// gate returns the verdict on new acts of a fence, and on the release. The nodes are those of the cache; the fences are
// read again, so that those that this process has just saved count.
func (p *pass) gate(ctx context.Context, state *fence.State, in *fence.Inputs) fence.Gate {
	policy := p.config.Policy
	if p.node != nil {
		if g := p.withheld(p.node, policy.Enforce || state.DryRun); !g.Open {
			return g
		}
	}
	gate := p.storm(ctx, policy)
	// A gate that a person's word opens is not closed for the Lease either. While it is closed a release goes on, and the
	// machine is switched on after it.
	opens := gate.Open || state.Phase == fence.Releasing || state.Phase == fence.Released ||
		gate.Overridable && confirms(p.node, state)
	if p.node == nil || !opens && !p.remediators.holds(p.name) {
		return gate
	}
	var err error
	if opens && goesOn(state, in) {
		err = p.objects.check(ctx, p.name)
	}
	// No Lease is taken, or renewed, of a node that another remediator has an object for.
	if err == nil {
		err = p.remediators.acquire(ctx, p.node, !state.DryRun && !waitsForPerson(state))
	}
	if err != nil {
		return remediatorGate(err)
	}
	return gate
}

// remediatorGate returns the gate that is closed by another remediator, or because it is unknown whether there is one.
func remediatorGate(err error) fence.Gate {
	if _, held := errors.AsType[*heldError](err); held {
		return withholding(reasonRemediator, err.Error())
	}
	if _, held := errors.AsType[*objectError](err); held {
		return withholding(reasonObject, err.Error())
	}
	return fence.Gate{Reason: reasonUnknown, Message: err.Error()}
}

// confirms reports whether a person has confirmed that the machine of a fence is off.
func confirms(node *corev1.Node, state *fence.State) bool {
	return node != nil && state.UID != "" && node.Annotations[annotationConfirmOff] == state.UID ||
		state.Proof != nil && state.Proof.How == fence.Confirmed
}

// waitsForPerson reports whether a fence acts no more until a person, or the node, changes something. Maintenance may
// then take the node's Lease.
func waitsForPerson(s *fence.State) bool {
	return slices.ContainsFunc([]string{
		fence.ConditionGaveUp, fence.ConditionVerificationFailed, fence.ConditionNodeDidNotReturn,
	}, func(condition string) bool { return meta.IsStatusConditionTrue(s.Conditions, condition) })
}

// goesOn reports whether the next Step of a fence may order an act. One that has given up orders none unless the Step
// ends that, whatever the gate says: without this the objects of other remediators would be listed every 10 s until the
// node is repaired. The Step is made a little earlier than the one that counts. If only that one goes on, the objects
// are still listed before its act, and a release takes more than one Step.
func goesOn(state *fence.State, in *fence.Inputs) bool {
	if !meta.IsStatusConditionTrue(state.Conditions, fence.ConditionGaveUp) {
		return true
	}
	next, _ := fence.Step(*state, *in, time.Now())
	return !meta.IsStatusConditionTrue(next.Conditions, fence.ConditionGaveUp)
}

// storm returns the verdict of the storm policy.
func (p *pass) storm(ctx context.Context, policy fence.Policy) fence.Gate {
	list, err := p.observer.live.nodeFences(ctx)
	if err != nil {
		return fence.Gate{Reason: reasonUnknown, Message: err.Error()}
	}
	nodes := &corev1.NodeList{}
	if err := p.cached.List(ctx, nodes); err != nil {
		return fence.Gate{Reason: reasonUnknown, Message: err.Error()}
	}
	now := time.Now()
	if !p.observer.leases.listedRecently(now) {
		if err := p.observer.listLeases(ctx); err != nil {
			return fence.Gate{Reason: reasonUnknown, Message: err.Error()}
		}
		now = time.Now()
	}
	return fence.Storm(p.name, members(nodes.Items, p.observer.leases, now), states(list), policy, now)
}

// members returns the nodes as the storm policy sees them, with their Leases in the last list.
func members(nodes []corev1.Node, leases *leases, now time.Time) []fence.Member {
	list := make([]fence.Member, 0, len(nodes))
	for i := range nodes {
		n := &nodes[i]
		list = append(list, fence.Member{Node: nodeFacts(n), Lease: leases.lease(n.Name, now), Excluded: excluded(n)})
	}
	return list
}

func states(fences []nodefence.NodeFence) []fence.State {
	list := make([]fence.State, 0, len(fences))
	for i := range fences {
		// With a step that can't be normalized, the fence counts, too.
		_ = fences[i].Normalize()
		list = append(list, stateOf(&fences[i]))
	}
	return list
}

func excluded(n *corev1.Node) bool { return n.Labels[labelExclude] == "true" }

// open returns the state of a new fence and what is reported of it, nil if the node is not fenced now. earlier is the
// finished fence of the node, nil if there is none.
func (p *pass) open(ctx context.Context, earlier *nodefence.NodeFence) (*fence.State, []fence.Event) {
	plan, planned := p.config.Plans[p.name]
	node := nodeFacts(p.node)
	if !planned || node.Ready == fence.ReadyTrue || excluded(p.node) {
		return nil, nil
	}
	if until, _, _ := pausedUntil(p.node, time.Now()); !until.IsZero() {
		p.until(until)
		return nil, nil
	}
	lease := p.observer.lease(ctx, p.name)
	now := time.Now()
	p.until(now.Add(longestWait))
	if !fence.Suspect(node, lease, plan.Timings, now) {
		if lease.Known && lease.Found {
			if stale := lease.UnchangedSince.Add(plan.Timings.Grace.Duration); stale.After(now) {
				p.until(stale)
			}
		}
		return nil, nil
	}
	// After a fence whose plan does not switch the machine on, the node is not Ready and off.
	if earlier != nil && earlier.State.Target.UID == node.UID && earlier.State.Result != fence.DrillRefused &&
		earlier.State.Target.LeaseRenewed.Time.Equal(lease.Renewed.Truncate(time.Microsecond)) {
		return nil, nil
	}
	if scope := p.config.Policy.AppliesTo; scope != fence.All && !scope.Covers(p.observer.load(ctx, p.name)) {
		p.log.Debug("node is dead and outside of applies_to; it is not fenced", "node", p.name, "applies_to", scope)
		return nil, nil
	}
	other, err := p.sameUUID(ctx, p.node)
	if err != nil {
		p.log.Warn("systemUUID could not be compared with that of other Nodes; the node is not fenced yet",
			"node", p.name, "error", err)
		return nil, nil
	}
	plan = plan.Drilled(node, p.reconciler.config.drilled().digests(p.name))
	var shared []fence.Event
	if other != "" {
		shared = []fence.Event{{Warning: true, Reason: "SystemUUIDShared", Message: fmt.Sprintf(
			"Node %s has the same systemUUID %s, which then identifies no machine: only methods with identity=none are used; "+
				"delete the Node that is out of date, or give the machines UUIDs of their own", other, node.SystemUUID)}}
		node.SystemUUID = ""
	}
	state, orders := fence.Open(node, lease, plan, !p.config.Policy.Enforce, now)
	return &state, append(orders.Events, shared...)
}

// sameUUID returns the name of another Node with the systemUUID of a Node, empty if there is none: clones have the UUID
// of their original, some boards all the same, and a machine that was registered again under another name has two
// Nodes.
func (r *reconciler) sameUUID(ctx context.Context, node *corev1.Node) (string, error) {
	nodes := &corev1.NodeList{}
	if err := r.cached.List(ctx, nodes); err != nil {
		return "", fmt.Errorf("list Nodes from the cache: %w", err)
	}
	uuid := node.Status.NodeInfo.SystemUUID
	for i := range nodes.Items {
		n := &nodes.Items[i]
		if n.Name != node.Name && fence.SameMachine(n.Status.NodeInfo.SystemUUID, uuid) == fence.Yes {
			return n.Name, nil
		}
	}
	return "", nil
}
