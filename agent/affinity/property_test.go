package affinity

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
)

// flight is an eviction that was ordered in a random cluster.
type flight struct {
	Eviction
	due time.Time
	// lost says that the controller never gets the outcome.
	lost bool
	// process is that which ordered it.
	process int
}

// randomCluster is a scene in which labels flap, nodes fail, the controller restarts, and evictions end at random.
type randomCluster struct {
	*scene
	rnd     *rand.Rand
	flights []flight
	// terminating is when the pods that were evicted are gone.
	terminating map[types.UID]time.Time
	accepted    []time.Time
	process     int
	replaced    int
	evictions   map[OutcomeKind]int
}

func (c *randomCluster) chance(percent int) bool { return c.rnd.IntN(100) < percent }

func newRandomCluster(t *testing.T, seed uint64) *randomCluster {
	c := &randomCluster{
		scene: newScene(t), rnd: rand.New(rand.NewPCG(seed, 15)),
		terminating: map[types.UID]time.Time{}, evictions: map[OutcomeKind]int{},
	}
	c.cfg.PerMinute, c.cfg.StormPercentage = 1+c.rnd.IntN(6), 20+c.rnd.IntN(80)
	c.cfg.EvictUnplaceable, c.cfg.EvictBare = c.chance(20), c.chance(10)
	for i := range 6 {
		for j := range 1 + c.rnd.IntN(3) {
			p := c.pod(fmt.Sprintf("w%d.%d", i, j), fmt.Sprint("node-", c.rnd.IntN(10)))
			c.workloads[p.Workload] = Workload{Budget: i%2 == 0}
		}
	}
	for i := range 5 {
		p := c.pod(fmt.Sprint("exempt", i), fmt.Sprint("node-", c.rnd.IntN(10)))
		p.Mirror, p.DaemonSet, p.Completed = i == 0, i == 1, i == 2
		if i > 2 {
			p.Workload, p.EvictBare = "", i == 4
		}
	}
	return c
}

// change changes the cluster at random.
func (c *randomCluster) change() {
	for _, name := range slices.Sorted(maps.Keys(c.nodes)) {
		n := c.nodes[name]
		switch c.rnd.IntN(200) {
		case 0, 1:
			n.Object.Labels[licence] = "expired"
		case 2:
			delete(n.Object.Labels, licence)
		case 3, 4, 5, 6:
			n.Object.Labels[licence] = "valid"
		case 7:
			n.Ready = !n.Ready
		case 8:
			n.Object.Spec.Unschedulable = !n.Object.Spec.Unschedulable
		case 9:
			n.Stale, n.Fenced = c.chance(20), c.chance(20)
		}
	}
	if c.rnd.IntN(1000) == 0 {
		c.state = State{}
		c.process++
	}
	c.settle()
}

// settle ends terminations, replaces pods, counts replicas and delivers outcomes.
func (c *randomCluster) settle() {
	for _, uid := range slices.Sorted(maps.Keys(c.terminating)) {
		if c.now.Before(c.terminating[uid]) {
			continue
		}
		old := c.pods[uid]
		delete(c.terminating, uid)
		delete(c.pods, uid)
		if old.Workload == "" {
			continue
		}
		c.replaced++
		p := *old
		p.UID = types.UID(fmt.Sprintf("%s-r%d", p.Name, c.replaced))
		p.Terminating, p.Node = false, fmt.Sprint("node-", c.rnd.IntN(10))
		p.Created, p.Bound = c.now, c.now
		c.pods[p.UID] = &p
	}
	for key, w := range c.workloads {
		w.Desired, w.Ready = 0, 0
		for _, p := range c.pods {
			if p.Workload == key {
				w.Desired++
				if !p.Terminating && c.now.Sub(p.Created) > 10*time.Second {
					w.Ready++
				}
			}
		}
		c.workloads[key] = w
	}
	c.flights = slices.DeleteFunc(c.flights, func(f flight) bool {
		if c.now.Before(f.due) {
			return false
		}
		kinds := []OutcomeKind{Accepted, Accepted, Accepted, Budgeted, Throttled, ManyBudgets, Forbidden, RequestError, Changed, NotRenewed}
		kind := kinds[c.rnd.IntN(len(kinds))]
		p := c.pods[f.Pod.UID]
		if p != nil && p.Workload != "" && !p.Terminating && c.chance(5) {
			p.Terminating = true // by another program
			c.terminating[p.UID] = c.now.Add(10 * time.Second)
		}
		if p == nil || p.Terminating {
			kind = Gone
		}
		c.evictions[kind]++
		if kind == Accepted {
			p.Terminating = true
			c.terminating[p.UID] = c.now.Add(time.Duration(c.rnd.IntN(40)) * time.Second)
			c.accepted = append(c.accepted, c.now)
		}
		if f.process == c.process && !f.lost {
			c.outcome(f.Eviction, kind)
		}
		return true
	})
}

// check checks what must hold for the orders of a step.
func (c *randomCluster) check(orders Orders) {
	for _, e := range orders.Evict {
		c.checkPod(c.pods[e.Pod.UID])
		c.checkOthers(c.pods[e.Pod.UID])
		f := flight{Eviction: e, process: c.process, lost: c.rnd.IntN(50) == 0}
		f.due = c.now.Add(time.Duration(1+c.rnd.IntN(8)) * time.Second)
		c.flights = append(c.flights, f)
	}
	if c.process > 0 || len(orders.Evict) == 0 {
		return
	}
	used := 0
	for _, at := range c.accepted {
		if at.After(c.now.Add(-time.Minute)) {
			used++
		}
	}
	for _, f := range c.flights {
		if !f.lost {
			used++
		}
	}
	if used > c.cfg.PerMinute {
		c.t.Fatalf("at %s: %d evictions accepted in a minute or in flight; want at most %d", c.at(), used, c.cfg.PerMinute)
	}
}

// checkPod checks that a pod may be evicted.
func (c *randomCluster) checkPod(p *Pod) {
	bare := p.Workload == "" && !p.EvictBare && !c.cfg.EvictBare
	if p.Mirror || p.DaemonSet || p.Completed || p.Terminating || bare {
		c.t.Fatalf("at %s: eviction of %s, which is exempt", c.at(), p.UID)
	}
	n := c.nodes[p.Node]
	if n == nil || !n.takesPods() || p.Requirement.Matches(n.Object) {
		c.t.Fatalf("at %s: eviction of %s from %+v", c.at(), p.UID, n)
	}
	if w := c.workloads[p.Workload]; !w.Budget && w.Ready < w.Desired {
		c.t.Fatalf("at %s: eviction of %s with %d of %d replicas", c.at(), p.UID, w.Ready, w.Desired)
	}
}

// checkOthers checks that no other eviction of the pod's workload or on its node is in flight.
func (c *randomCluster) checkOthers(p *Pod) {
	for _, f := range c.flights {
		if f.process == c.process && !f.lost && (slot(&f.Pod) == slot(p) || f.Pod.Node == p.Node) {
			c.t.Fatalf("at %s: eviction of %s beside that of %s", c.at(), p.UID, f.Pod.UID)
		}
	}
}

// TestRandomClusters checks the bounds of evictions, and that each steady violation ends in an eviction or is held by
// something that does not end by itself.
func TestRandomClusters(t *testing.T) {
	runs := 120
	if testing.Short() {
		runs = 30
	}
	kinds := map[OutcomeKind]int{}
	ends := map[Hold]int{}
	for seed := range runs {
		c := newRandomCluster(t, uint64(seed))
		for range 900 {
			c.now = c.now.Add(time.Second)
			c.change()
			c.check(c.step())
		}
		if c.process > 0 && len(c.state.Workloads) > 50 {
			t.Fatalf("seed %d: %d workloads remembered", seed, len(c.state.Workloads))
		}
		for kind, n := range c.evictions {
			kinds[kind] += n
		}
		c.rest(ends)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	for _, kind := range []OutcomeKind{Accepted, Gone, Changed, NotRenewed, Budgeted, Throttled, ManyBudgets, Forbidden, RequestError} {
		if kinds[kind] == 0 {
			t.Errorf("no eviction ended as %q: %v", kind, kinds)
		}
	}
	t.Logf("outcomes %v, held in the end %v", kinds, ends)
}

// rest leaves the cluster as it is, with evictions that are accepted, until nothing more can follow by itself.
func (c *randomCluster) rest(ends map[Hold]int) {
	for uid := range c.terminating {
		c.terminating[uid] = c.now
	}
	for range 4000 {
		orders := c.step()
		c.check(orders)
		for _, f := range c.flights {
			if p := c.pods[f.Pod.UID]; p != nil && f.process == c.process {
				// The replacement is placed where it fits, if anywhere.
				c.outcome(f.Eviction, Accepted)
				delete(c.pods, p.UID)
				c.accepted = append(c.accepted, c.now)
			} else {
				c.outcome(f.Eviction, Gone)
			}
		}
		if len(c.flights) > 0 {
			c.flights = nil
			c.now = c.now.Add(time.Second)
			c.settle()
			continue
		}
		if orders.Wake.IsZero() || c.at() > 4*time.Hour {
			break
		}
		c.now = orders.Wake
		c.settle()
	}
	for hold, n := range c.state.Held() {
		ends[hold] += n
		switch hold {
		case HoldDebounce, HoldWorkloadInFlight, HoldNodeInFlight, HoldRate, HoldLoop, HoldRefused, HoldNotCompared,
			HoldWorkloadNotReady, HoldWorkloadUnknown, HoldTerminating, HoldDryRun:
			c.t.Errorf("%d pods are held by %s in the end", n, hold)
		}
	}
	for uid, v := range c.state.Violations {
		if v.Held == "" {
			c.t.Errorf("pod %s is in flight in the end", uid)
		}
	}
}

// TestDeterministic compares the orders and states for shuffled inputs.
func TestDeterministic(t *testing.T) {
	for seed := range uint64(10) {
		c := newRandomCluster(t, seed)
		shuffled := State{}
		process := 0
		for range 300 {
			c.now = c.now.Add(time.Second)
			c.change()
			if c.process != process {
				process, shuffled = c.process, State{}
			}
			in := c.observation()
			other := in
			other.Violating, other.Nodes, other.Outcomes = slices.Clone(in.Violating), slices.Clone(in.Nodes), slices.Clone(in.Outcomes)
			c.rnd.Shuffle(len(other.Violating), func(i, j int) {
				other.Violating[i], other.Violating[j] = other.Violating[j], other.Violating[i]
			})
			c.rnd.Shuffle(len(other.Nodes), func(i, j int) { other.Nodes[i], other.Nodes[j] = other.Nodes[j], other.Nodes[i] })
			slices.Reverse(other.Outcomes)
			before := fmt.Sprint(c.state)
			var orders, others Orders
			shuffled, others = Step(shuffled, other, c.now)
			old := c.state
			orders = c.step()
			if got := fmt.Sprint(old); got != before {
				t.Fatalf("Step changed the state to %s; want %s", got, before)
			}
			if diff := cmp.Diff(c.state, shuffled); diff != "" {
				t.Fatalf("seed %d: states differ (-sorted +shuffled):\n%s", seed, diff)
			}
			if got, want := text(others), text(orders); got != want {
				t.Fatalf("seed %d: orders = %s; want %s", seed, got, want)
			}
			c.check(orders)
		}
	}
}

func text(o Orders) string {
	var b strings.Builder
	for _, e := range o.Evict {
		fmt.Fprintln(&b, e.ID)
	}
	fmt.Fprint(&b, o.Events, o.Wake)
	return b.String()
}
