package fence

import (
	"cmp"
	"time"
)

// Member is a node as the storm policy sees it.
type Member struct {
	Node  Node
	Lease Lease
	// Excluded says that the node is in repair: it counts neither as a node nor as an unhealthy one. Only the majority
	// of the control plane is one of all its nodes.
	Excluded bool
}

// tally counts the nodes of a zone or of the cluster.
type tally struct{ nodes, ready, unhealthy int }

// disrupted reports whether so many nodes are not Ready that the fault may be one of the network.
func (t *tally) disrupted() bool {
	notReady := t.nodes - t.ready
	return notReady > maxNotReady && notReady*100 >= disruptedPercentage*t.nodes
}

// census are the numbers that the checks of [Storm] compare.
type census struct {
	now time.Time
	// target is the node to be fenced; nil if it is not among the nodes. own is its fence; nil if it has none.
	target *Member
	own    *State
	all    tally
	zones  map[string]*tally
	// acting counts the fences of other nodes that act, and go first.
	acting int
	// members are the nodes of the control plane. membersReady are those of them that are healthy, without the target;
	// memberActing is one whose fence acts, and goes first.
	members, membersReady int
	memberActing          string
	// zoneStarted is when a fence began last in the zone of the target, full when the rate allows Burst fences again,
	// and until when the cooldown ends. They may lie in the future of a clock that was set back: then they count as
	// they are.
	zoneStarted, full, until time.Time
}

func takeCensus(target string, nodes []Member, fences []State, p Policy, now time.Time) *census {
	c := &census{now: now, zones: make(map[string]*tally)}
	for i := range nodes {
		if nodes[i].Node.Name == target {
			c.target = &nodes[i]
		}
	}
	for i := range fences {
		if fences[i].Node == target && fences[i].FinishedAt.IsZero() {
			c.own = &fences[i]
		}
	}
	fenced := make(map[string]bool, len(fences))
	for i := range fences {
		c.addFence(&fences[i])
		if f := &fences[i]; f.FinishedAt.IsZero() {
			fenced[f.Node] = true
		}
	}
	for i := range nodes {
		m := &nodes[i]
		c.addNode(m, fenced[m.Node.Name] || m == c.target || unhealthy(m, p, now))
	}
	return c
}

func (c *census) addNode(m *Member, unhealthy bool) {
	if m.Node.ControlPlane || m == c.target && c.own != nil && c.own.Target.ControlPlane {
		c.members++
		if !unhealthy {
			c.membersReady++
		}
	}
	if m.Excluded && m != c.target {
		return
	}
	z := c.zones[m.Node.Zone]
	if z == nil {
		z = new(tally)
		c.zones[m.Node.Zone] = z
	}
	for _, t := range []*tally{&c.all, z} {
		t.nodes++
		if m.Node.Ready == ReadyTrue {
			t.ready++
		}
		if unhealthy {
			t.unhealthy++
		}
	}
}

func (c *census) addFence(f *State) {
	c.full, c.until = latest(c.full, f.Storm.RateFull.Time), latest(c.until, f.Storm.Until.Time)
	if c.target != nil && f.Target.Zone == c.target.Node.Zone {
		c.zoneStarted = latest(c.zoneStarted, f.Storm.Started.Time)
	}
	if f == c.own || !f.Acting() || !c.precedes(f) {
		return
	}
	c.acting++
	if f.Target.ControlPlane {
		c.memberActing = f.Node
	}
}

// precedes reports whether the fence of another node that acts goes before that of the target. Without an order, two
// fences that act, as after a device answered again, would wait for each other before the release.
func (c *census) precedes(f *State) bool {
	if c.own == nil || !c.own.Acting() {
		return true
	}
	started := f.Storm.Started.Compare(c.own.Storm.Started.Time)
	return cmp.Or(started, cmp.Compare(f.UID, c.own.UID), cmp.Compare(f.Node, c.own.Node)) < 0
}

// begun reports whether the fence of the target has begun to act. The rates limit how fast fences begin; they do not
// keep one from going on.
func (c *census) begun() bool {
	return c.own != nil && !c.own.DryRun && c.own.Attempt > 0
}

// otherHealthyZone reports whether a zone other than the target's has a Ready node and is not disrupted.
func (c *census) otherHealthyZone() bool {
	for name, z := range c.zones {
		if name != c.target.Node.Zone && z.ready > 0 && !z.disrupted() {
			return true
		}
	}
	return false
}

// inZone names the zone of the target, unless there is only one.
func (c *census) inZone() string {
	switch {
	case len(c.zones) == 1:
		return ""
	case c.target.Node.Zone == "":
		return " without a zone"
	}
	return " of zone " + c.target.Node.Zone
}

// unhealthy reports whether a node is not Ready, or will be soon: its Lease is older than half of Grace, by its renewTime
// or by the controller's own clock. A Lease that could not be read counts as old: the controller reads all Leases at
// once, so that this ends with its next list. A Ready node that has no Lease yet is healthy.
func unhealthy(m *Member, p Policy, now time.Time) bool {
	l := &m.Lease
	if m.Node.Ready != ReadyTrue || !l.Known {
		return true
	}
	if !l.Found {
		return false
	}
	half := p.Timings.Grace.Duration / 2
	return now.Sub(l.Renewed) > half || !l.UnchangedSince.IsZero() && now.Sub(l.UnchangedSince) > half
}
