package fence

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// cluster returns the nodes and fences of a text: words that each are a node, or N*node for several. The first node, n0,
// is the target. A node is a letter and letters that follow, and /ZONE:
//
//	r Ready   n not Ready   u Unknown   o Ready with a Lease older than Grace/2   s the same by the controller's clock
//	k Ready, Lease not read   l Ready without a Lease
//	c control plane   x in repair   f has a fence   a has one that acts   A one that acts and began earlier
//	d has a dry run   g has one that gave up
func cluster(t *testing.T, text string) (nodes []Member, fences []State) {
	t.Helper()
	for _, word := range strings.Fields(text) {
		count := 1
		if n, rest, ok := strings.Cut(word, "*"); ok {
			var err error
			if count, err = strconv.Atoi(n); err != nil {
				t.Fatal(err)
			}
			word = rest
		}
		letters, zone, _ := strings.Cut(word, "/")
		for range count {
			m := Member{Node: Node{Found: true, Name: fmt.Sprint("n", len(nodes)), Ready: ReadyTrue, Zone: zone},
				Lease: Lease{Known: true, Found: true, Renewed: begin.Add(-10 * time.Second), UnchangedSince: begin.Add(-30 * time.Second)}}
			fences = append(fences, finishedFence(m.Node.Name))
			for _, l := range letters {
				if f := describe(t, &m, l); f != nil {
					fences = append(fences, *f)
				}
			}
			nodes = append(nodes, m)
		}
	}
	return nodes, fences
}

func finishedFence(node string) State {
	s := State{Node: node}
	s.Attempt, s.FinishedAt = 1, micro(begin)
	return s
}

// describe applies a letter of [cluster] to a node, or returns a fence of it.
func describe(t *testing.T, m *Member, letter rune) *State {
	t.Helper()
	f := State{Node: m.Node.Name, UID: "uid-" + m.Node.Name}
	f.Target.Zone, f.Target.ControlPlane = m.Node.Zone, m.Node.ControlPlane
	switch letter {
	case 'r':
		return nil
	case 'n':
		m.Node.Ready = ReadyFalse
		return nil
	case 'u':
		m.Node.Ready = ReadyUnknown
		return nil
	case 'o':
		m.Lease.Renewed = begin.Add(-30*time.Second - 1)
		return nil
	case 's':
		m.Lease.UnchangedSince = begin.Add(-30*time.Second - 1)
		return nil
	case 'k':
		m.Lease = Lease{}
		return nil
	case 'l':
		m.Lease = Lease{Known: true}
		return nil
	case 'c':
		m.Node.ControlPlane = true
		return nil
	case 'x':
		m.Excluded = true
		return nil
	case 'f':
		f.Step, f.Status = Isolation, New
		return &f
	}
	f.Attempt, f.Step, f.Status = 1, PowerManagement, Running
	f.Storm.Started = micro(begin.Add(-time.Hour))
	switch letter {
	case 'a':
	case 'A':
		f.Storm.Started = micro(begin.Add(-2 * time.Hour))
	case 'd':
		f.DryRun = true
	case 'g':
		r := run{s: &f, in: &Inputs{}, now: begin}
		r.giveUp(ReasonNotProven, "")
	default:
		t.Fatalf("letter %c", letter)
	}
	return &f
}

func percentage(n int32) func(*Policy)   { return func(p *Policy) { p.Percentage = n } }
func maxUnhealthy(n int32) func(*Policy) { return func(p *Policy) { p.MaxUnhealthy = &n } }
func defaults(*Policy)                   {}

func TestStorm(t *testing.T) {
	for _, c := range []struct {
		nodes  string
		policy func(*Policy)
		want   string
	}{
		// Percentage, rounded down.
		{"n r", defaults, ""},
		{"n r", percentage(40), "TooManyUnhealthy: 1 of 2 nodes are unhealthy; 40 % allow 0"},
		{"n r r", percentage(33), "TooManyUnhealthy: 1 of 3 nodes are unhealthy; 33 % allow 0"},
		{"n r r", percentage(34), ""},
		{"n r r r r", defaults, ""},
		{"n n r r r", defaults, ""},
		{"n n n r r", defaults, "TooManyUnhealthy: 3 of 5 nodes are unhealthy; 50 % allow 2"},
		{"n r", percentage(0), "TooManyUnhealthy: 1 of 2 nodes are unhealthy; 0 % allow 0"},
		{"n r", percentage(-5), "TooManyUnhealthy: 1 of 2 nodes are unhealthy; -5 % allow 0"},
		{"n", defaults, "NoReadyNode: 0 of 1 nodes are Ready: the fault may be the controller's own"},
		// A number in its place.
		{"n n r r r", maxUnhealthy(1), "TooManyUnhealthy: 2 of 5 nodes are unhealthy; max_unhealthy allows 1"},
		{"n r r r r", maxUnhealthy(1), ""},
		{"n n n r r", func(p *Policy) { maxUnhealthy(3)(p); p.Percentage = 0 }, "ZoneDisrupted: 3 of 5 nodes are not Ready; " +
			"from 55 % on nothing is fenced in a zone of at most 50"},
		{"n r r r r", maxUnhealthy(0), "TooManyUnhealthy: 1 of 5 nodes are unhealthy; max_unhealthy allows 0"},
		// What counts as unhealthy: the target in any case, what is not Ready or unknown, what will be, what is fenced.
		{"r n n r r", defaults, "TooManyUnhealthy: 3 of 5 nodes are unhealthy; 50 % allow 2"},
		{"n u o r r", defaults, "TooManyUnhealthy: 3 of 5 nodes are unhealthy; 50 % allow 2"},
		{"n s o r r", defaults, "TooManyUnhealthy: 3 of 5 nodes are unhealthy; 50 % allow 2"},
		{"n k k r r", defaults, "TooManyUnhealthy: 3 of 5 nodes are unhealthy; 50 % allow 2"},
		{"n l l r r", defaults, ""},
		{"n rf rf r r", defaults, "TooManyUnhealthy: 3 of 5 nodes are unhealthy; 50 % allow 2"},
		{"n nx nx r r", defaults, ""},
		{"n nx rx r", defaults, ""},
		{"nx rx r", defaults, ""},
		{"n rx rx rx rx", defaults, "NoReadyNode: 0 of 1 nodes are Ready: the fault may be the controller's own"},
		// No Ready node.
		{"n n", percentage(100), "NoReadyNode: 0 of 2 nodes are Ready: the fault may be the controller's own"},
		{"n u", maxUnhealthy(9), "NoReadyNode: 0 of 2 nodes are Ready: the fault may be the controller's own"},
		{"", defaults, "NodeUnknown: the node is not among the 0 nodes of the cluster"},

		// Zones have the limit of their own, from three nodes on.
		{"n/a n/a r/a 7*r/b", defaults, "ZoneUnhealthy: 2 of 3 nodes of zone a are unhealthy; 50 % allow 1"},
		{"n/a r/a r/a n/b 6*r/b", defaults, ""},
		{"n/a n/a 8*r/b", defaults, ""},
		{"n/a r/a 8*r/b", percentage(49), ""},
		{"n/a 9*r/b", defaults, ""},
		{"n n r 7*r/b", defaults, "ZoneUnhealthy: 2 of 3 nodes without a zone are unhealthy; 50 % allow 1"},
		{"n/a r/a r/a n/b n/b r/b", defaults, ""}, // the storm is in another zone
		{"n/a r/a r/a n/b n/b n/b", defaults, "TooManyUnhealthy: 4 of 6 nodes are unhealthy; 50 % allow 3"},
		{"n/a n/ax n/ax r/a r/a 7*r/b", defaults, ""},
		// A zone without a Ready node: the limit holds, and another zone must be healthy.
		{"3*n/a 7*r/b", defaults, "ZoneUnhealthy: 3 of 3 nodes of zone a are unhealthy; 50 % allow 1"},
		{"3*n/a 7*r/b", percentage(100), ""},
		{"3*n/a 3*n/b 2*r/b", percentage(100), "ZoneNotReady: 0 of 3 nodes of zone a are Ready, and no other zone is healthy: " +
			"the fault may be the controller's own"},
		{"n/a 3*n/b 2*r/b", percentage(100), "ZoneNotReady: 0 of 1 nodes of zone a are Ready, and no other zone is healthy: " +
			"the fault may be the controller's own"},
		{"3*n/a n/b r/b", percentage(100), ""},
		{"n/a n/b 3*n/c 2*r/c", percentage(100), "ZoneNotReady: 0 of 1 nodes of zone a are Ready, and no other zone is healthy: " +
			"the fault may be the controller's own"},
		{"nx/a r/b", defaults, ""}, // the target counts in any case
		{"n/a r/b r/c", defaults, ""},
		{"n/a r/b", defaults, ""},
		// More than two not Ready, and at least 55 %.
		{"3*n 2*r", percentage(100), "ZoneDisrupted: 3 of 5 nodes are not Ready; from 55 % on nothing is fenced in a zone of at most 50"},
		{"2*n 1*r", percentage(100), ""},
		{"11*n 9*r", percentage(100), "ZoneDisrupted: 11 of 20 nodes are not Ready; from 55 % on nothing is fenced in a zone of at most 50"},
		{"10*n 9*r", percentage(100), ""}, // 52 %
		{"n 10*o 9*r", percentage(100), ""},
		{"28*n 22*r", percentage(100), "ZoneDisrupted: 28 of 50 nodes are not Ready; from 55 % on nothing is fenced in a zone of at most 50"},
		{"27*n 23*r", percentage(100), ""}, // 54 %
		{"29*n 22*r", percentage(100), ""}, // of 51: one each 100 s
		{"29*n 22*r", defaults, "TooManyUnhealthy: 29 of 51 nodes are unhealthy; 50 % allow 25"},

		// Concurrency: a fence does not wait for itself, nor for those that wait for it.
		{"n na r r r", defaults, "MaxConcurrent: 1 other fences act at this time; at most 1 may"},
		{"na f r r r", defaults, ""},
		{"nf na r r r", defaults, "MaxConcurrent: 1 other fences act at this time; at most 1 may"},
		{"na nA r r r", defaults, "MaxConcurrent: 1 other fences act at this time; at most 1 may"},
		{"nA na r r r", defaults, ""},
		{"na na r r r", defaults, ""}, // n0 before n1, by UID
		{"ng nA r r r", defaults, "MaxConcurrent: 1 other fences act at this time; at most 1 may"},
		{"nd nA r r r", defaults, "MaxConcurrent: 1 other fences act at this time; at most 1 may"},
		{"n ng r r r", defaults, ""},
		{"n nd r r r", defaults, ""},
		{"n na na 9*r", func(p *Policy) { p.MaxConcurrent = 3 }, ""},
		{"n na na na 9*r", func(p *Policy) { p.MaxConcurrent = 3 }, "MaxConcurrent: 3 other fences act at this time; at most 3 may"},
		{"n r", func(p *Policy) { p.MaxConcurrent = 0 }, "MaxConcurrent: 0 other fences act at this time; at most 0 may"},

		// Control plane: a majority of all members without the target.
		{"nc 4*r", defaults, noMajority(0, 1)},
		{"nc rc 4*r", defaults, noMajority(1, 2)},
		{"nc rc rc", defaults, ""},
		{"nc nc rc 4*r", defaults, noMajority(1, 3)},
		{"nc oc rc 4*r", defaults, noMajority(1, 3)},
		{"nc kc rc 4*r", defaults, noMajority(1, 3)},
		{"nc rcf rc 4*r", defaults, noMajority(1, 3)},
		{"nc rcx rc 4*r", defaults, ""},
		{"nc ncx rc 4*r", defaults, noMajority(1, 3)},
		{"nc rc rc rc", defaults, ""},
		{"nc nc rc rc", defaults, noMajority(2, 4)},
		{"nc nc rc rc rc", defaults, ""},
		{"nc nc nc rc rc 4*r", defaults, noMajority(2, 5)},
		{"nc nca rc rc rc", func(p *Policy) { p.MaxConcurrent = 9 },
			"ControlPlane: node n1 of the control plane is being fenced; one is at a time"},
		{"nc na rc rc rc 4*r", func(p *Policy) { p.MaxConcurrent = 9 }, ""},
		{"nca ncA rc rc rc", func(p *Policy) { p.MaxConcurrent = 9 },
			"ControlPlane: node n1 of the control plane is being fenced; one is at a time"},
		{"ncA nca rc rc rc", defaults, ""},
		{"nc ncg rc rc rc", defaults, ""},
		{"n nca rc rc rc 4*r", func(p *Policy) { p.MaxConcurrent = 9 }, ""},

		// The rates.
		{"n r", func(p *Policy) { p.Rate = 0 }, "Rate: rate is 0s and burst 2, with which no fence begins"},
		{"n r", func(p *Policy) { p.Burst = 0 }, "Rate: rate is 5m0s and burst 0, with which no fence begins"},
		{"na r", func(p *Policy) { p.Burst = 0 }, ""},
		{"nd r", func(p *Policy) { p.Burst = 0 }, "Rate: rate is 5m0s and burst 0, with which no fence begins"},
	} {
		p := DefaultPolicy()
		c.policy(&p)
		nodes, fences := cluster(t, c.nodes)
		gate := Storm("n0", nodes, fences, p, begin)
		if got := verdict(gate); got != c.want {
			t.Errorf("Storm(%s, %d %%, %+v) = %q; want %q", c.nodes, p.Percentage, p.MaxUnhealthy, got, c.want)
		}
		storm := strings.Contains(c.want, "Unhealthy") || strings.Contains(c.want, "NotReady") ||
			strings.Contains(c.want, "NoReady") || strings.Contains(c.want, "Disrupted")
		if gate.Storm != storm || gate.Overridable != !gate.Open || (gate.StormUntil != time.Time{}) != storm {
			t.Errorf("Storm(%s) = %+v; want a storm: %t, and an override of a closed gate", c.nodes, gate, storm)
		}
	}
}

func noMajority(healthy, members int) string {
	return fmt.Sprintf("ControlPlane: without this node %d of %d nodes of the control plane are healthy, which is no majority; "+
		"if the machine is off, confirm it with the annotation evictd.io/confirm-off", healthy, members)
}

func verdict(g Gate) string {
	if g.Open {
		return ""
	}
	return g.Reason + ": " + g.Message
}

// A node that lost the label of the control plane after its fence began is one of its members still.
func TestStormControlPlaneLabelGone(t *testing.T) {
	nodes, fences := cluster(t, "nca rc 4*r")
	nodes[0].Node.ControlPlane = false
	if got, want := verdict(Storm("n0", nodes, fences, DefaultPolicy(), begin)), noMajority(1, 2); got != want {
		t.Errorf("Storm = %q; want %q", got, want)
	}
}

// TestStormReasons checks that the list has each reason once.
func TestStormReasons(t *testing.T) {
	seen := make(map[string]bool)
	for _, r := range StormReasons() {
		if seen[r] || r == "" {
			t.Errorf("StormReasons has %q twice", r)
		}
		seen[r] = true
	}
	for _, text := range []string{"n", "n n n r r", "n/a n/a r/a 7*r/b", "n na r r r", "nc r r"} {
		nodes, fences := cluster(t, text)
		if r := Storm("n0", nodes, fences, DefaultPolicy(), begin).Reason; !seen[r] {
			t.Errorf("Storm(%s): reason %q is not among StormReasons", text, r)
		}
	}
}

// started returns a fence that acts or has ended, and began at a time, by an open gate as Step records it.
func started(t *testing.T, node string, nodes []Member, fences []State, p Policy, at time.Time) State {
	t.Helper()
	gate := Storm(node, nodes, fences, p, at)
	if !gate.Open {
		t.Fatalf("%s at %v: %+v", node, at.Sub(begin), gate)
	}
	s := State{Node: node, UID: node}
	s.Attempt, s.Step, s.Status = 1, PowerManagement, Running
	r := run{s: &s, in: &Inputs{Gate: gate}, now: at}
	r.recordStorm()
	s.FinishedAt = micro(at.Add(time.Second))
	return s
}

// TestRate counts the fences that begin when there is always another one: two at once, and then one each 5 minutes. Only
// the states are kept between two questions.
func TestRate(t *testing.T) {
	nodes, _ := cluster(t, "40*r")
	p := DefaultPolicy()
	var fences []State
	var got []time.Duration
	for at := time.Duration(0); at <= 31*time.Minute; at += time.Second {
		if at == 6*time.Minute+time.Second {
			at += 11 * time.Minute // none is asked for: two tokens are added, and no more
		}
		now := begin.Add(at)
		for i := range nodes {
			nodes[i].Lease.Renewed, nodes[i].Lease.UnchangedSince = now, now
		}
		target := fmt.Sprint("n", len(got))
		gate := Storm(target, nodes, fences, p, now)
		if !gate.Open {
			if gate.Reason != ReasonRate || gate.Storm || !gate.Overridable {
				t.Fatalf("at %v: %+v; want %s", at, gate, ReasonRate)
			}
			continue
		}
		got = append(got, at)
		fences = append(fences, started(t, target, nodes, fences, p, now))
	}
	m := func(minutes, seconds int) time.Duration {
		return time.Duration(minutes)*time.Minute + time.Duration(seconds)*time.Second
	}
	want := []time.Duration{0, m(0, 1), m(5, 0), m(17, 1), m(17, 2), m(22, 1), m(27, 1)}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("fences began (-want +got):\n%s", diff)
	}
}

// TestRateInherited checks that neither the deletion of a node's earlier fence nor a dry run refills the rate.
func TestRateInherited(t *testing.T) {
	nodes, _ := cluster(t, "20*r")
	p := DefaultPolicy()
	var fences []State
	for range 2 {
		fences = append(fences, started(t, fmt.Sprint("n", len(fences)), nodes, fences, p, begin))
	}
	for i := range fences {
		next := State{Node: fences[i].Node}
		next.DryRun = i == 1
		next.Inherit(&fences[i])
		fences[i] = next
	}
	for target, want := range map[string]string{"n0": ReasonRate, "n1": ReasonRate, "n2": ReasonRate} {
		if gate := Storm(target, nodes, fences, p, begin); gate.Reason != want {
			t.Errorf("Storm(%s) = %+v; want %s", target, gate, want)
		}
	}
	if until := fences[1].NeededUntil(); !until.Equal(begin.Add(10 * time.Minute)) {
		t.Errorf("NeededUntil = %v; want 10 min, when the rate is full", until.Sub(begin))
	}
}

// TestRateClock checks that a clock that was set back opens the gate no earlier: what was recorded lies in its future.
func TestRateClock(t *testing.T) {
	nodes, _ := cluster(t, "20*r")
	p := DefaultPolicy()
	var fences []State
	for range 2 {
		fences = append(fences, started(t, fmt.Sprint("n", len(fences)), nodes, fences, p, begin))
	}
	for _, at := range []time.Duration{-24 * time.Hour, -time.Minute, 0, 5*time.Minute - time.Second} {
		now := begin.Add(at)
		for i := range nodes {
			nodes[i].Lease.Renewed, nodes[i].Lease.UnchangedSince = now, now
		}
		if gate := Storm("n5", nodes, fences, p, now); gate.Reason != ReasonRate {
			t.Errorf("at %v: Storm = %+v; want %s", at, gate, ReasonRate)
		}
	}
	// The clock set forward: the Leases, which the nodes' clocks wrote, are old.
	if gate := Storm("n5", nodes, fences, p, begin.Add(time.Hour)); !gate.Storm {
		t.Errorf("an hour forward: Storm = %+v; want a storm", gate)
	}
}

// TestZoneRate checks that in a large zone, most of whose nodes are not Ready, one fence begins each 100 s.
func TestZoneRate(t *testing.T) {
	nodes, _ := cluster(t, "29*n/a 22*r/a 9*n/b 60*r/b")
	p := DefaultPolicy()
	p.Percentage, p.Burst, p.MaxConcurrent = 100, 100, 100
	first := started(t, "n1", nodes, nil, p, begin)
	first.Target.Zone = "a"
	running := State{Node: "n3"}
	running.Attempt, running.Target.Zone = 1, "a"
	for _, c := range []struct {
		target string
		after  time.Duration
		want   string
	}{
		{"n0", -time.Hour, ReasonZoneRate},
		{"n0", 0, ReasonZoneRate},
		{"n0", 100*time.Second - 1000, ReasonZoneRate},
		{"n0", 100 * time.Second, ""},
		{"n3", time.Second, ""},  // has begun
		{"n55", time.Second, ""}, // of zone b
	} {
		if gate := Storm(c.target, nodes, []State{first, running}, p, begin.Add(c.after)); gate.Reason != c.want {
			t.Errorf("%s after %v: Storm = %+v; want %q", c.target, c.after, gate, c.want)
		}
	}
	if until := first.NeededUntil(); until.Before(begin.Add(100 * time.Second)) {
		t.Errorf("NeededUntil = %v; want at least 100 s", until.Sub(begin))
	}
	slow := State{}
	slow.Storm.Started = micro(begin)
	if until := slow.NeededUntil(); !until.Equal(begin.Add(100 * time.Second)) {
		t.Errorf("NeededUntil after a start = %v; want 100 s", until.Sub(begin))
	}
	// With a full outage of the zone, and another zone that is healthy, the normal rate applies.
	for i := range nodes[:51] {
		nodes[i].Node.Ready = ReadyFalse
	}
	if gate := Storm("n0", nodes, []State{first}, p, begin.Add(time.Second)); !gate.Open {
		t.Errorf("no Ready node in the zone: Storm = %+v; want open", gate)
	}
}

// TestCooldown checks that the gate opens Cooldown after the storm was seen last, or up to a minute later, and how often
// the storm is recorded: by one of the fences, once a minute.
func TestCooldown(t *testing.T) {
	p := DefaultPolicy()
	fences := []State{{Node: "n0"}, {Node: "n1"}, {Node: "n2"}}
	at, writes := begin, 0
	ask := func(text string) (open bool) {
		nodes, _ := cluster(t, text)
		for i := range nodes {
			nodes[i].Lease.Renewed, nodes[i].Lease.UnchangedSince = at, at
		}
		for i := range fences {
			gate := Storm(fences[i].Node, nodes, fences, p, at)
			r := run{s: &fences[i], in: &Inputs{Gate: gate}, now: at}
			before := fences[i].Storm
			r.recordStorm()
			if fences[i].Storm != before {
				writes++
			}
			open = open || gate.Open
		}
		return open
	}
	for ; at.Before(begin.Add(30 * time.Minute)); at = at.Add(10 * time.Second) {
		if ask("n n n r r") {
			t.Fatal("open in a storm")
		}
	}
	if writes < 25 || writes > 31 {
		t.Errorf("%d writes in 30 min of a storm with 3 fences that wait; want one a minute", writes)
	}
	last := at.Add(-10 * time.Second)
	for i := range fences {
		fences[i].FinishedAt = micro(at) // also one that has finished remembers it
	}
	fences = append(fences, State{Node: "n3"})
	for !ask("n n r r r r r r r r") {
		if at = at.Add(10 * time.Second); at.After(last.Add(time.Hour)) {
			t.Fatal("never open")
		}
	}
	if after := at.Sub(last); after < p.Cooldown || after > p.Cooldown+stormSlack {
		t.Errorf("open %v after the storm; want %v, and at most %v more", after, p.Cooldown, stormSlack)
	}
	nodes, _ := cluster(t, "n n r r r r r r r r")
	if gate := Storm("n3", nodes, fences, p, begin); gate.Reason != ReasonCooldown || gate.Storm {
		t.Errorf("clock set back: Storm = %+v; want %s", gate, ReasonCooldown)
	}
	if needed := latest(latest(fences[0].NeededUntil(), fences[1].NeededUntil()), fences[2].NeededUntil()); needed.Before(last.Add(p.Cooldown)) {
		t.Errorf("NeededUntil = %v after the storm; want at least %v", needed.Sub(last), p.Cooldown)
	}
	p.Cooldown = 0
	storm, _ := cluster(t, "n n n r r")
	if gate := Storm("n0", storm, nil, p, begin); !gate.Storm || !gate.StormUntil.IsZero() {
		t.Errorf("without cooldown: Storm = %+v; want nothing to record", gate)
	}
}
