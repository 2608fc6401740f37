package fence

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The reasons for a gate that is closed by [Storm].
const (
	// ReasonNodeUnknown: the node is not among the nodes.
	ReasonNodeUnknown = "NodeUnknown"
	// ReasonNoReadyNode: no node is Ready; the fault may be the controller's own.
	ReasonNoReadyNode = "NoReadyNode"
	// ReasonTooManyUnhealthy: more nodes of the cluster are unhealthy than the policy allows.
	ReasonTooManyUnhealthy = "TooManyUnhealthy"
	// ReasonZoneNotReady: no node of the zone is Ready, and no other zone is healthy.
	ReasonZoneNotReady = "ZoneNotReady"
	// ReasonZoneUnhealthy: more nodes of the zone are unhealthy than the policy allows.
	ReasonZoneUnhealthy = "ZoneUnhealthy"
	// ReasonZoneDisrupted: most nodes of a small zone are not Ready.
	ReasonZoneDisrupted = "ZoneDisrupted"
	// ReasonCooldown: too many nodes were unhealthy until recently.
	ReasonCooldown = "Cooldown"
	// ReasonControlPlane: the control plane would have no majority, or another of its nodes is being fenced.
	ReasonControlPlane = "ControlPlane"
	// ReasonMaxConcurrent: as many other fences act as the policy allows.
	ReasonMaxConcurrent = "MaxConcurrent"
	// ReasonZoneRate: most nodes of a large zone are not Ready, and a fence in it has just begun.
	ReasonZoneRate = "ZoneRate"
	// ReasonRate: the fences that began before have used up the rate.
	ReasonRate = "Rate"
)

// StormReasons returns the reasons for which [Storm] closes the gate.
func StormReasons() []string {
	return []string{
		ReasonNodeUnknown, ReasonNoReadyNode, ReasonTooManyUnhealthy, ReasonZoneNotReady, ReasonZoneUnhealthy,
		ReasonZoneDisrupted, ReasonCooldown, ReasonControlPlane, ReasonMaxConcurrent, ReasonZoneRate, ReasonRate,
	}
}

// The limits of zones are those with which kube-controller-manager limits evictions: node_lifecycle_controller.go.
const (
	// minZone is the least number of nodes of a zone that has limits of its own: half of two nodes, rounded down
	// twice, would allow none.
	minZone = 3
	// A zone is disrupted if more than maxNotReady of its nodes are not Ready, and at least disruptedPercentage.
	maxNotReady         = 2
	disruptedPercentage = 55
	// largeZone is the greatest zone in which nothing is fenced while it is disrupted. In larger ones a fence begins
	// each zoneInterval.
	largeZone    = 50
	zoneInterval = 100 * time.Second
)

// Storm returns the verdict of the policy on acts against the node target, from all nodes and all fences: also those
// that have finished, because the rate and the cooldown are derived from them. It is asked before each irreversible
// act. Each check is a function of the census, so that one that cannot tell closes the gate.
func Storm(target string, nodes []Member, fences []State, p Policy, now time.Time) Gate {
	now = now.Truncate(time.Microsecond)
	c := takeCensus(target, nodes, fences, p, now)
	if c.target == nil {
		return closed(ReasonNodeUnknown, fmt.Sprintf("the node is not among the %d nodes of the cluster", c.all.nodes))
	}
	for _, check := range []func(*census, Policy) (reason, message string){noReadyNode, unhealthyNodes, unhealthyZone} {
		if reason, message := check(c, p); reason != "" {
			g := closed(reason, message)
			g.Storm = true
			g.StormUntil = c.stormUntil(p)
			return g
		}
	}
	for _, check := range []func(*census, Policy) (reason, message string){
		cooldown, controlPlane, concurrentFences, zoneRate, rate,
	} {
		if reason, message := check(c, p); reason != "" {
			return closed(reason, message)
		}
	}
	return Gate{Open: true, RateFull: c.rateFull(p)}
}

// closed returns a gate that is closed by the policy. A person who confirms that the machine is off overrides it.
func closed(reason, message string) Gate {
	return Gate{Reason: reason, Message: message, Overridable: true}
}

func noReadyNode(c *census, _ Policy) (reason, message string) {
	if c.all.ready > 0 {
		return "", ""
	}
	return ReasonNoReadyNode, fmt.Sprintf("0 of %d nodes are Ready: the fault may be the controller's own", c.all.nodes)
}

func unhealthyNodes(c *census, p Policy) (reason, message string) {
	if c.all.unhealthy <= p.allowed(c.all.nodes) {
		return "", ""
	}
	return ReasonTooManyUnhealthy, fmt.Sprintf("%d of %d nodes are unhealthy; %s",
		c.all.unhealthy, c.all.nodes, p.limit(c.all.nodes))
}

// unhealthyZone checks the zone of the target. A zone without a Ready node is a fault of the zone only if another zone
// is healthy. Then it is not disrupted in part, which would mean a fault in the zone's network, but it keeps the limit
// on unhealthy nodes.
func unhealthyZone(c *census, p Policy) (reason, message string) {
	z := c.zones[c.target.Node.Zone]
	switch {
	case z.ready == 0 && !c.otherHealthyZone():
		return ReasonZoneNotReady, fmt.Sprintf("0 of %d nodes%s are Ready, and no other zone is healthy: "+
			"the fault may be the controller's own", z.nodes, c.inZone())
	case z.nodes >= minZone && z.unhealthy > p.allowed(z.nodes):
		return ReasonZoneUnhealthy, fmt.Sprintf("%d of %d nodes%s are unhealthy; %s",
			z.unhealthy, z.nodes, c.inZone(), p.limit(z.nodes))
	case z.ready > 0 && z.disrupted() && z.nodes <= largeZone:
		return ReasonZoneDisrupted, fmt.Sprintf("%d of %d nodes%s are not Ready; from %d %% on nothing is fenced in a zone of at most %d",
			z.nodes-z.ready, z.nodes, c.inZone(), disruptedPercentage, largeZone)
	}
	return "", ""
}

// controlPlane checks a target of the control plane: one at a time, and only if a majority of all members is Ready
// without it.
func controlPlane(c *census, _ Policy) (reason, message string) {
	if !c.target.Node.ControlPlane && (c.own == nil || !c.own.Target.ControlPlane) {
		return "", ""
	}
	switch {
	case c.memberActing != "":
		return ReasonControlPlane, fmt.Sprintf("node %s of the control plane is being fenced; one is at a time", c.memberActing)
	case 2*c.membersReady <= c.members:
		return ReasonControlPlane, fmt.Sprintf("without this node %d of %d nodes of the control plane are healthy, which is no majority; "+
			"if the machine is off, confirm it with the annotation evictd.io/confirm-off", c.membersReady, c.members)
	}
	return "", ""
}

func concurrentFences(c *census, p Policy) (reason, message string) {
	if c.acting < int(p.MaxConcurrent) {
		return "", ""
	}
	return ReasonMaxConcurrent, fmt.Sprintf("%d other fences act at this time; at most %d may", c.acting, p.MaxConcurrent)
}

// zoneRate limits how fast fences begin in a large zone that is disrupted.
func zoneRate(c *census, _ Policy) (reason, message string) {
	z, next := c.zones[c.target.Node.Zone], c.zoneStarted.Add(zoneInterval)
	if c.begun() || z.ready == 0 || !z.disrupted() || c.zoneStarted.IsZero() || !c.now.Before(next) {
		return "", ""
	}
	return ReasonZoneRate, fmt.Sprintf("%d of %d nodes%s are not Ready; the next fence in the zone begins at %s",
		z.nodes-z.ready, z.nodes, c.inZone(), next.UTC().Format(time.RFC3339))
}

// Acting reports whether the fence counts in MaxConcurrent: from its first attempt to the end of the release, unless it
// gave up, its release is stuck, or it waits for a person to reboot the node, or for a node that runs and is not Ready
// to be dead again.
func (s *State) Acting() bool {
	if !s.FinishedAt.IsZero() || s.DryRun || s.Attempt == 0 || s.Step == Recovery || s.Phase == Released {
		return false
	}
	if s.Phase == "" || s.Phase == Proving {
		c := meta.FindStatusCondition(s.Conditions, ConditionWaiting)
		if c != nil && c.Status == metav1.ConditionTrue && c.Reason == reasonLeaseRenewed {
			return false
		}
	}
	return !s.is(ConditionGaveUp) && !s.is(ConditionReleaseStuck) && !s.is(ConditionVerificationFailed) && !s.awaitsReboot()
}

// Covers reports whether the policy fences a node with this load. What is not known does not count, as if it were
// absent: such a node is not fenced until it is known.
func (s Scope) Covers(l Load) bool {
	if s == All {
		return true
	}
	if !l.PodsKnown {
		return false
	}
	for _, p := range l.Pods {
		if p.StatefulSet {
			return true
		}
	}
	return s == Volumes && l.AttachmentsKnown && len(l.Attachments) > 0
}
