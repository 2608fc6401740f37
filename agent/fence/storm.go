package fence

import (
	"fmt"
	"time"
)

// The reasons for a gate that is closed by [Storm].
const (
	ReasonNodeUnknown      = "NodeUnknown"
	ReasonControlPlane     = "ControlPlane"
	ReasonNoReadyNode      = "NoReadyNode"
	ReasonTooManyUnhealthy = "TooManyUnhealthy"
	ReasonMaxConcurrent    = "MaxConcurrent"
)

// Member is a node as the storm policy sees it.
type Member struct {
	Node  Node
	Lease Lease
}

// Storm returns the verdict of the policy on acts against the node target, from all nodes and all fences. Each check
// is a function of the census, so that one that cannot tell closes the gate.
func Storm(target string, nodes []Member, fences []State, p Policy, now time.Time) Gate {
	c := takeCensus(target, nodes, fences, p, now)
	for _, check := range []func(census, Policy) (reason, message string){controlPlane, unhealthyNodes, concurrentFences} {
		if reason, message := check(c, p); reason != "" {
			return Gate{Reason: reason, Message: message}
		}
	}
	return Gate{Open: true}
}

// census are the numbers that the checks compare.
type census struct {
	// target is the node to be fenced; nil if it is not among the nodes.
	target *Node
	// nodes, ready and unhealthy count nodes; acting counts fences of other nodes.
	nodes, ready, unhealthy, acting int
}

func takeCensus(target string, nodes []Member, fences []State, p Policy, now time.Time) census {
	var c census
	fenced := make(map[string]bool, len(fences))
	for i := range fences {
		f := &fences[i]
		if !f.FinishedAt.IsZero() {
			continue
		}
		fenced[f.Node] = true
		if f.Node != target && f.Acting() {
			c.acting++
		}
	}
	for i := range nodes {
		m := &nodes[i]
		c.nodes++
		if m.Node.Name == target {
			c.target = &m.Node
		}
		if m.Node.Ready == ReadyTrue {
			c.ready++
		}
		if m.Node.Name == target || fenced[m.Node.Name] || unhealthy(*m, p, now) {
			c.unhealthy++
		}
	}
	return c
}

// unhealthy reports whether a node is not Ready, or will be soon: its Lease is older than half of Grace.
func unhealthy(m Member, p Policy, now time.Time) bool {
	if m.Node.Ready != ReadyTrue {
		return true
	}
	return m.Lease.Known && m.Lease.Found && now.Sub(m.Lease.Renewed) > p.Timings.Grace.Duration/2
}

func controlPlane(c census, _ Policy) (reason, message string) {
	switch {
	case c.target == nil:
		return ReasonNodeUnknown, fmt.Sprintf("the node is not among the %d nodes of the cluster", c.nodes)
	case c.target.ControlPlane:
		return ReasonControlPlane, "nodes of the control plane (1 here) are not fenced; " +
			"switch the machine off and confirm it with the annotation evictd.io/confirm-off"
	}
	return "", ""
}

func unhealthyNodes(c census, p Policy) (reason, message string) {
	allowed := c.nodes * int(max(p.Percentage, 0)) / 100
	switch {
	case c.ready == 0:
		return ReasonNoReadyNode, fmt.Sprintf("0 of %d nodes are Ready: the fault may be the controller's own", c.nodes)
	case c.unhealthy > allowed:
		return ReasonTooManyUnhealthy, fmt.Sprintf("%d of %d nodes are unhealthy; %d %% allow %d",
			c.unhealthy, c.nodes, p.Percentage, allowed)
	}
	return "", ""
}

func concurrentFences(c census, p Policy) (reason, message string) {
	if c.acting >= int(p.MaxConcurrent) {
		return ReasonMaxConcurrent, fmt.Sprintf("%d other fences act at this time; at most %d may", c.acting, p.MaxConcurrent)
	}
	return "", ""
}

// Acting reports whether the fence counts in MaxConcurrent: from its first attempt to the end of the release, unless it
// gave up, its release is stuck, or it waits for a person to reboot the node.
func (s *State) Acting() bool {
	if !s.FinishedAt.IsZero() || s.DryRun || s.Attempt == 0 || s.Step == Recovery || s.Phase == Released {
		return false
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
