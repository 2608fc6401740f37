package peers

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/selffence"
)

const (
	second     = time.Second
	simTimeout = 90 * second
)

var simSettings = selffence.Settings{FeedGap: 60 * second, Renew: 20 * second, Peers: true}

// simNode is a node with its evictd, evictd-kube, kubelet and watchdog.
type simNode struct {
	name    string
	group   int  // nodes of a group reach each other
	api     bool // evictd-kube reaches the API server
	kubelet bool // and so does the kubelet
	lossy   bool // answers of the API server are lost
	// late is when a write whose answer is lost is carried out, 0 if there is none: of an advert in place of another.
	late                time.Duration
	lateAdvert, lateFor uint64
	settings            selffence.Settings
	timeout             time.Duration // of the watchdog

	service *Service
	state   selffence.State
	opened  bool
	runs    bool // the machine
	fedAt   time.Duration
	contact time.Duration // as cluster.Marks has it
	waiting time.Duration // since when the newest advert is not accepted; 0 if it is
	number  uint64        // of the newest advert
	written uint64        // of the last accepted one
	inputs  []selffence.Inputs
	until   time.Duration
	listed  map[uint64]int // Advert.PeerNodes, by the number of the advert
	deleted bool           // the Node object
	young   bool           // it is not old enough to count

	// What the API server has, and when the controller saw it change.
	advert, lease           uint64
	advertSeen, leaseSeen   uint64
	advertSince, leaseSince time.Duration
}

// sim is a cluster with a controller.
type sim struct {
	t       *testing.T
	now     time.Duration
	nodes   []*simNode
	api     bool
	period  time.Duration // of the controller's lists
	delay   time.Duration // of writes whose answer is lost
	tallies []simTally
}

// simTally is one list of the controller: how many of the nodes reach the API server.
type simTally struct {
	at              time.Duration
	reaching, nodes int
}

// simGap is the time between two lists after which the time of a majority begins again.
const simGap = 15 * second

func newSim(t *testing.T, nodes int) *sim {
	s := &sim{t: t, now: 1000 * second, api: true, period: 10 * second}
	var list []Node
	for i := range nodes {
		list = append(list, Node{fmt.Sprintf("n%d", i), netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)})})
	}
	for i := range list {
		n := &simNode{name: list[i].Name, api: true, kubelet: true, runs: true, listed: map[uint64]int{}, contact: s.now, state: selffence.Restore(nil, s.now)}
		n.settings, n.timeout = simSettings, simTimeout
		n.service = New(Options{
			Node: n.name, StateFile: filepath.Join(t.TempDir(), "nodes"), Log: slog.New(slog.DiscardHandler),
			Uptime: func() (time.Duration, error) { return s.now, nil },
			Reach: func() selffence.Reach {
				r := selffence.Reach{Votes: n.opened && n.runs, Renew: n.settings.Renew, Unanswered: s.now - n.contact}
				if n.waiting > 0 {
					r.Waiting = s.now - n.waiting
				}
				return r
			},
		})
		n.service.keys = [][]byte{testKey}
		n.service.use(&List{At: s.now, Nodes: list})
		s.nodes = append(s.nodes, n)
	}
	return s
}

// writes is evictd-kube: it reads the Node, then writes the advert.
func (s *sim) writes(n *simNode) {
	if n.late > 0 && s.now >= n.late && s.api {
		if n.late = 0; n.advert == n.lateFor {
			n.advert = n.lateAdvert
		}
	}
	if n.waiting == 0 || !n.api || !s.api {
		return
	}
	n.contact = s.now
	if n.lossy {
		n.late, n.lateAdvert, n.lateFor, n.api = s.now+s.delay, n.number, n.advert, false // nor are reads answered
		return
	}
	n.advert, n.written, n.waiting = n.number, n.number, 0
	n.inputs = append(n.inputs, selffence.Inputs{Accepted: n.number})
}

// evictd is evictd and the watchdog.
func (s *sim) evictd(n *simNode) {
	in := append(n.inputs, selffence.Inputs{})
	n.inputs = nil
	c := n.service.Count()
	if c.At > 0 {
		in[len(in)-1].PeersUntil = c.Until(s.now)
	}
	for i := 0; i < len(in); i++ {
		var o selffence.Orders
		in[i].ListNodes = c.Nodes
		n.state, o = selffence.Step(n.state, n.settings, in[i], s.now)
		n.until = o.FeedUntil
		if o.Request {
			n.number, n.listed[o.Number] = o.Number, o.PeerNodes
			if n.waiting == 0 {
				n.waiting = s.now
			}
		}
		if o.Open {
			n.opened, n.fedAt = true, s.now
			in = append(in, selffence.Inputs{Opened: true})
		}
	}
	if n.opened && s.now < n.until && s.now-n.fedAt >= n.timeout/3 {
		n.fedAt = s.now
	}
	if n.opened && s.now-n.fedAt >= n.timeout {
		n.runs = false
	}
}

// ask has a node ask the others.
func (s *sim) ask(n *simNode) {
	if !n.service.o.Reach().Asks() {
		n.service.stopAsking()
		return
	}
	n.service.asking = true
	for _, other := range s.nodes {
		if other == n {
			continue
		}
		q := n.service.question(other.name)
		if other.group != n.group || !other.runs {
			continue
		}
		if answer, _ := other.service.handle(q); answer != nil {
			n.service.handle(answer)
		}
	}
}

// control is the controller's list of Leases and Nodes, each period.
func (s *sim) control() {
	if !s.api {
		return
	}
	tally := simTally{at: s.now}
	for _, n := range s.nodes {
		if n.deleted {
			n.advertSeen, n.leaseSeen = 0, 0 // forgotten
			continue
		}
		tally.nodes++
		if n.leaseSeen != n.lease {
			n.leaseSeen, n.leaseSince = n.lease, s.now
		}
		if n.advertSeen != n.advert {
			n.advertSeen, n.advertSince = n.advert, s.now
		}
		if s.now-n.leaseSince <= 25*second && !n.young && s.now-n.advertSince <= n.says().Fresh() {
			tally.reaching++
		}
	}
	s.tallies = append(s.tallies, tally)
	if len(s.tallies) > 400 { // longer than the bound
		s.tallies = s.tallies[1:]
	}
}

// majority returns since when a majority reaches the API server, as the controller sees it for a node that feeds its
// watchdog by a list of so many nodes; 0 for none.
func (s *sim) majority(listed int) (since time.Duration) {
	later := s.now
	for _, t := range slices.Backward(s.tallies) {
		if later-t.at > simGap || 2*t.reaching <= max(t.nodes, listed) {
			break
		}
		since, later = t.at, t.at
	}
	return since
}

func simAdvert() selffence.Advert {
	return selffence.Advert{RenewSeconds: 20, FeedGapSeconds: 60, TimeoutSeconds: 90, Peers: true}
}

// says is the advert of a node.
func (n *simNode) says() selffence.Advert {
	return selffence.Advert{RenewSeconds: int(n.settings.Renew / second), FeedGapSeconds: int(n.settings.FeedGap / second),
		TimeoutSeconds: int(n.timeout / second), Peers: true}
}

// tick moves the time on by a second.
func (s *sim) tick() {
	s.now += second
	for i, n := range s.nodes {
		if !n.runs {
			continue
		}
		if s.now/second%10 == time.Duration(i%10) && s.api && n.kubelet && !n.deleted {
			n.lease++
		}
		s.writes(n)
		s.evictd(n)
		if s.now/second%5 == time.Duration(i%5) {
			s.ask(n)
		}
	}
	if s.now/second%(s.period/second) == 3 {
		s.control()
	}
}

func (s *sim) pass(d time.Duration) {
	for end := s.now + d; s.now < end; {
		s.tick()
	}
}

// running names the machines that run.
func (s *sim) running() (names []string) {
	for _, n := range s.nodes {
		if n.runs {
			names = append(names, n.name)
		}
	}
	return names
}

// taken returns a node that the controller takes for reset although it runs; "" for none.
func (s *sim) taken() string {
	for _, n := range s.nodes {
		since := s.majority(n.listed[n.advert])
		if since == 0 || n.deleted {
			continue
		}
		unchanged := min(s.now-n.advertSince, s.now-n.leaseSince, s.now-since)
		if n.runs && n.opened && n.advertSeen > 1 && n.advertSeen == n.advert && n.leaseSeen == n.lease && // both are read again
			unchanged >= n.says().Bound() {
			return n.name
		}
	}
	return ""
}

// In an outage of the API server all nodes are fed, while the list is young enough, if they reach a majority.
func TestOutage(t *testing.T) {
	s := newSim(t, 5)
	s.pass(5 * time.Minute)
	s.api = false
	s.pass(selffence.MaxListAge - 10*time.Minute)
	if got := s.running(); len(got) != 5 {
		t.Errorf("after an outage of almost %s there run %v; want all", selffence.MaxListAge, got)
	}
	s.pass(15 * time.Minute)
	if got := s.running(); len(got) != 0 {
		t.Errorf("after an outage of more than %s there run %v; want none", selffence.MaxListAge, got)
	}
}

// Of a cluster of five, two nodes that are cut off are reset, and three are not. So is one that reaches the others, but
// not the API server, and a node in an outage that reaches no majority.
func TestPartition(t *testing.T) {
	bound := simAdvert().Bound()
	for _, test := range []struct {
		name   string
		outage bool
		cut    int // the first nodes: they do not reach the API server
		apart  int // the first nodes do not reach the others either
		want   int // nodes that run
	}{
		{"two cut off, apart", false, 2, 2, 3},
		{"two cut off, not apart", false, 2, 0, 3},
		{"one cut off", false, 1, 0, 4},
		{"three cut off, apart", false, 3, 3, 5},
		{"outage, two apart", true, 5, 2, 3},
		{"outage, all together", true, 5, 0, 5},
	} {
		s := newSim(t, 5)
		s.pass(5 * time.Minute)
		for i, n := range s.nodes {
			if i < test.cut {
				n.api, n.kubelet = false, false
			}
			if i < test.apart {
				n.group = 1
			}
		}
		s.api = !test.outage
		s.pass(bound)
		if got := s.running(); len(got) != test.want {
			t.Errorf("%s: after %s there run %v; want %d", test.name, bound, got, test.want)
		}
	}
}

// Half of the nodes is no majority.
func TestTieIsNoMajority(t *testing.T) {
	s := newSim(t, 4)
	s.pass(5 * time.Minute)
	for _, n := range s.nodes[:2] {
		n.api, n.kubelet = false, false
	}
	s.pass(simAdvert().Bound())
	if got := s.running(); len(got) != 2 {
		t.Errorf("two of four are cut off: there run %v; want the two others", got)
	}
}

// A node is cut off for good, and the others are for a short time, again and again: either they say that they cannot
// reach the API server and the controller sees it, or neither.
func TestShortOutages(t *testing.T) {
	for length := 5; length <= 120; length += 5 {
		s := newSim(t, 5)
		s.pass(5 * time.Minute)
		s.nodes[0].api, s.nodes[0].kubelet = false, false
		for range 20 {
			for i, up := range []bool{false, true} {
				for _, n := range s.nodes[1:] {
					n.api = up
				}
				for range []int{length, 40}[i] {
					if s.tick(); s.taken() != "" {
						t.Fatalf("with outages of %d s node %s is taken for reset at %s and runs", length, s.taken(), s.now)
					}
				}
			}
		}
	}
}

// The machines of three of five nodes are cut off and feed each other. Two of their Nodes are deleted: the two nodes that
// are left are a majority of the Nodes, and not of the list by which the third is fed.
func TestDeletedNodes(t *testing.T) {
	s := newSim(t, 5)
	s.pass(5 * time.Minute)
	for _, n := range s.nodes[:3] {
		n.api, n.kubelet = false, false
	}
	s.pass(5 * time.Minute)
	s.nodes[0].deleted, s.nodes[1].deleted = true, true
	for range time.Hour / second {
		if s.tick(); s.taken() != "" {
			t.Fatalf("node %s is taken for reset and runs, by peers: %t", s.taken(), s.nodes[2].state.ByPeers(simSettings, s.now))
		}
	}
	if got := s.running(); len(got) != 5 {
		t.Errorf("there run %v; want all", got)
	}
}

// change is a random event.
func (s *sim) change(r *rand.Rand) {
	n := s.nodes[r.IntN(len(s.nodes))]
	switch r.IntN(13) {
	case 0:
		s.api = !s.api
	case 1, 2:
		n.group = r.IntN(2)
	case 3, 4, 5:
		n.api = !n.api
	case 6:
		n.kubelet = !n.kubelet
	case 7:
		n.api, n.kubelet = false, false
	case 8: // all but some are cut off, or back
		up := r.IntN(2) == 0
		for _, m := range s.nodes {
			if r.IntN(4) > 0 {
				m.api = up
			}
		}
	case 9:
		n.lossy = !n.lossy
	case 10: // evictd-kube restarts
		n.contact, n.service.tally = s.now, newTally()
	case 11:
		n.deleted, n.young = !n.deleted, true // the next one is another Node
	case 12:
		s.api = true
		for _, m := range s.nodes {
			m.api = true
			m.kubelet = r.IntN(3) > 0
		}
	}
}

// Property: a controller that keeps the rules never takes a machine for reset that runs, also if the kubelets reach the
// API server and evictd-kube does not.
func TestNoRunningMachineIsTaken(t *testing.T) {
	runs, peered, proven := 60, 0, 0
	if testing.Short() {
		runs = 10
	}
	for seed := range uint64(runs) {
		r := rand.New(rand.NewPCG(seed, 10))
		s := newSim(t, 3+r.IntN(4))
		s.pass(2 * time.Minute)
		s.period = time.Duration(8+r.IntN(8)) * second
		s.delay = time.Duration(1+r.IntN(60)) * second
		for _, n := range s.nodes {
			gap := []time.Duration{30, 60, 600}[r.IntN(3)] * second
			n.settings.FeedGap, n.settings.Renew, n.timeout = gap, gap/3, max(30*second, (selffence.MinPeerTimes-gap)/2)
		}
		every := 20 + r.IntN(180)
		for range 3000 {
			if r.IntN(every) == 0 {
				s.change(r)
			}
			s.tick()
			if node := s.taken(); node != "" {
				t.Fatalf("seed %d at %s: node %s is taken for reset and runs", seed, s.now, node)
			}
			for _, n := range s.nodes {
				if n.runs && n.state.ByPeers(simSettings, s.now) {
					peered++
				}
				if !n.runs && s.majority(n.listed[n.advert]) > 0 {
					proven++
				}
			}
		}
	}
	if peered < runs || proven < runs {
		t.Errorf("in %d runs nodes were fed because of others for %d s, and were proven for %d s; the simulation is too friendly", runs, peered, proven)
	}
}
