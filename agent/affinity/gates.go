package affinity

import (
	"slices"
	"time"
)

// gate is a reason not to evict a pod now.
type gate struct {
	hold   Hold
	closed func(*run, *candidate) bool
}

// The gates before and after those of the debounce and the storm, in the order in which they are checked. Those of the
// node begin the debounce again: what was observed before may have been the node's old labels.
var (
	podGates = []gate{
		{HoldStatic, func(_ *run, c *candidate) bool { return c.pod.Mirror }},
		{HoldDaemonSet, func(_ *run, c *candidate) bool { return c.pod.DaemonSet }},
		{HoldCompleted, func(_ *run, c *candidate) bool { return c.pod.Completed }},
		{HoldTerminating, func(_ *run, c *candidate) bool { return c.pod.Terminating }},
		{HoldBare, func(r *run, c *candidate) bool {
			return c.pod.Workload == "" && !c.pod.EvictBare && !r.in.Config.EvictBare
		}},
	}
	nodeGates = []gate{
		{HoldNodeNotReady, func(_ *run, c *candidate) bool { return c.node != nil && !c.node.Ready }},
		{HoldNodeStale, func(r *run, c *candidate) bool { return c.node != nil && (c.node.Stale || r.wasStale(c)) }},
		{HoldNodeFenced, func(_ *run, c *candidate) bool { return c.node != nil && c.node.Fenced }},
		{HoldNodeGone, func(_ *run, c *candidate) bool { return c.node == nil }},
		{HoldNodeDrained, func(_ *run, c *candidate) bool { return c.node.drained() }},
	}
	rateGates = []gate{
		{HoldNotCompared, func(_ *run, c *candidate) bool { return c.fit != nil && c.fit.skipped }},
		{HoldNoNodeFits, func(_ *run, c *candidate) bool { return c.fit != nil && !c.fit.elsewhere(c.pod.Node) }},
		{HoldWorkloadInFlight, func(r *run, c *candidate) bool { return !r.countsAsGone(c) && r.busyWorkloads[slot(c.pod)] }},
		{HoldWorkloadNotReady, (*run).notReadyWorkload},
		{HoldWorkloadUnknown, (*run).unknownWorkload},
		{HoldNodeInFlight, func(r *run, c *candidate) bool { return !r.countsAsGone(c) && r.busyNodes[c.pod.Node] }},
		{HoldRate, (*run).overRate},
		{HoldLoop, func(r *run, c *candidate) bool { return r.loopOf(c) != nil }},
		{HoldRefused, func(r *run, c *candidate) bool {
			return r.waiting(c.v.Next) || c.backoff != nil && r.waiting(c.backoff.RefusedUntil)
		}},
	}
)

// Holds returns all holds, in the order in which they are checked.
func Holds() []Hold {
	var all []Hold
	for _, gates := range [][]gate{podGates, nodeGates, {{hold: HoldDebounce}, {hold: HoldStorm}}, rateGates} {
		for _, g := range gates {
			all = append(all, g.hold)
		}
	}
	return append(all, HoldDryRun)
}

// Held counts the pods that violate by what holds them back. Pods whose eviction is in flight are not among them.
func (s State) Held() map[Hold]int {
	held := map[Hold]int{}
	for _, v := range s.Violations {
		if v.Held != "" {
			held[v.Held]++
		}
	}
	return held
}

// check returns the first gate that is closed, empty if none is.
func (r *run) check(c *candidate, gates []gate) Hold {
	for _, g := range gates {
		if g.closed(r, c) {
			return g.hold
		}
	}
	return ""
}

// wasStale reports whether the last attempt to evict a pod found that its node does not renew the Lease, until the next.
func (r *run) wasStale(c *candidate) bool { return c.v.Refused == NotRenewed && r.waiting(c.v.Next) }

// exempt returns why a pod is never evicted.
func (r *run) exempt(c *candidate) Hold { return r.check(c, podGates) }

// checkPod applies the gates up to the storm. It returns the candidates that passed, in the order of their turns.
func (r *run) checkPod() []*candidate {
	var open []*candidate
	for _, c := range r.candidates {
		previous := c.v.Held
		c.v.InFlight, c.current = "", true
		if r.flying(c) {
			if c.v.Held = ""; !c.backoff.Accepted {
				c.v.InFlight = c.backoff.ID
			}
			continue
		}
		if c.v.Held = r.exempt(c); c.v.Held != "" {
			continue
		}
		c.v.Held = r.check(c, nodeGates)
		if c.v.Held == HoldNodeStale && !c.node.Stale {
			continue // refuse has begun the debounce
		}
		if c.v.Held != "" {
			c.v.Steady, c.current = r.now, false
			continue
		}
		if r.waiting(c.v.Steady.Add(r.in.Config.Debounce)) {
			c.v.Held = HoldDebounce
			continue
		}
		if c.storm != nil {
			c.v.Held = HoldStorm
			continue
		}
		c.v.Held = previous // for compare
		open = append(open, c)
	}
	slices.SortStableFunc(open, func(a, b *candidate) int {
		switch {
		case a.pod.Own && !b.pod.Own: // who may change pods has as many of these as wanted
			return 1
		case b.pod.Own && !a.pod.Own:
			return -1
		}
		return a.turn().Compare(b.turn())
	})
	return open
}

// turn returns since when it is a pod's turn. A pod that is refused for ever must not keep others of its workload, or of
// the rate, from theirs, and new pods must not keep one that was refused from it.
func (c *candidate) turn() time.Time {
	if c.v.Next.After(c.v.Since) {
		return c.v.Next
	}
	return c.v.Since
}

// decide applies the other gates, and orders the eviction if all are open.
func (r *run) decide(c *candidate) {
	if c.v.Held = r.check(c, rateGates); c.v.Held != "" {
		return
	}
	if r.countsAsGone(c) {
		c.v.Held = HoldDryRun
		return
	}
	r.order(c)
}

// countsAsGone reports whether the eviction of a pod was left out in dry run. It takes no part in what bounds others.
func (r *run) countsAsGone(c *candidate) bool { return c.v.WouldEvict && !r.in.Config.Enforce }

// overRate reports whether the rate of the cluster is used up. Evictions without an outcome count as accepted.
func (r *run) overRate(c *candidate) bool {
	if r.countsAsGone(c) {
		return false
	}
	if r.waiting(r.s.PausedUntil) {
		return true
	}
	if len(r.s.Evicted)+r.requests < r.in.Config.PerMinute && r.requests < maxRequests {
		return false
	}
	if len(r.s.Evicted) > 0 {
		r.wake(r.s.Evicted[0].Add(ratePeriod))
	}
	return true
}
