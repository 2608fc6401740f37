package controller

import (
	"strconv"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/evictd/evictd/agent/fence"
)

const (
	// leasePeriod is the longest time between two lists of the Leases: the kubelet renews its own as often.
	leasePeriod = 10 * time.Second
	// listsPerGrace is how many lists there are in one grace period, so that those who count Leases which are older than
	// half of it count no healthy node.
	listsPerGrace = 6
	// leaseMaxAge is the age at which a list of the Leases no longer tells which nodes are healthy.
	leaseMaxAge = 3 * leasePeriod
)

// leases remembers since when the Leases of the nodes are unchanged, by the controller's own clock: clocks of nodes are
// not compared with it. It starts empty, so that each node has one grace period after a change of the leader.
type leases struct {
	mu     sync.Mutex
	seen   map[string]sighting // by node
	listed time.Time           // when the last list was asked for
	// elapsed is the time that has passed, by a clock that is not set; nil if that of the other times is not either.
	elapsed func() time.Duration
	// read is when a Lease or a list was read last, and readAfter is the same by elapsed.
	read      time.Time
	readAfter time.Duration
	// adverts are what the nodes say of their watchdogs. majority is since when more than half of all nodes keep their
	// Leases fresh, as of the time counted.
	adverts           map[string]advertSighting
	majority, counted time.Time
	tallies           []peerTally // for nodes that ask their peers, the oldest first
}

// renewal is what is read of a Lease.
type renewal struct {
	renewed time.Time
	// version is the resourceVersion, 0 if it is not a number. A cache of the API server may have an older one.
	version uint64
}

// renewalOf returns when a Lease was renewed. ok is false if it never was.
func renewalOf(l *coordinationv1.Lease) (r renewal, ok bool) {
	if l.Spec.RenewTime == nil {
		return renewal{}, false
	}
	version, err := strconv.ParseUint(l.ResourceVersion, 10, 64)
	if err != nil {
		version = 0
	}
	return renewal{l.Spec.RenewTime.Time, version}, true
}

// sighting is when a renewTime was seen first.
type sighting struct {
	renewal
	since time.Time
	// moved says that another renewTime was seen before.
	moved bool
	// jumped is when the renewTime moved on by much more than the controller's clock, zero if it never did.
	jumped time.Time
}

// clockLoss is by how much more than the controller's clock a renewTime moves on if that clock was stopped, with the
// machine or by its hypervisor. Lists that are late make a difference, too.
const clockLoss = 15 * time.Second

// clockStep is by how much the clock is set at least so that what was seen before counts no more.
const clockStep = 5 * time.Second

// checkClock forgets what was seen before the clock was set: set back, no Lease would be unchanged for a grace period
// before it has passed those times again; set forward, each would be at once. l.mu is locked.
func (l *leases) checkClock(now time.Time) {
	if l.elapsed == nil {
		return
	}
	now, after := now.Round(0), l.elapsed()
	if !l.read.IsZero() && (now.Sub(l.read)-(after-l.readAfter)).Abs() > clockStep {
		l.forget()
	}
	l.read, l.readAfter = now, after
}

// renew returns the sighting of another renewTime.
func (s sighting) renew(r renewal, now time.Time) sighting {
	next := sighting{renewal: r, since: now, moved: true, jumped: s.jumped}
	if r.renewed.Sub(s.renewed) > now.Sub(s.since)+clockLoss {
		next.jumped = now
	}
	return next
}

// observe returns since when the renewTime of a node's Lease is unchanged. The Lease was read from the API server and
// not from a cache.
func (l *leases) observe(node string, r renewal, now time.Time) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.checkClock(now)
	s, ok := l.seen[node]
	switch {
	case !ok:
		s = sighting{since: now}
	case !s.renewed.Equal(r.renewed):
		s = s.renew(r, now)
	}
	s.renewal = r
	if l.seen == nil {
		l.seen = make(map[string]sighting)
	}
	l.seen[node] = s
	return s.since
}

// list takes a list of all Leases, by node, with the times when it was asked for and when it was answered. It comes
// from a cache of the API server, so that it may be late: what is older than a Lease that was seen already does not
// count. Nodes that are not in it are forgotten.
func (l *leases) list(all map[string]renewal, asked, answered time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.checkClock(answered)
	seen := make(map[string]sighting, len(all))
	for node, r := range all {
		s, ok := l.seen[node]
		switch {
		case !ok:
			s = sighting{renewal: r, since: answered}
		case !s.renewed.Equal(r.renewed) && r.version >= s.version:
			s = s.renew(r, answered)
		case r.version > s.version:
			s.version = r.version
		}
		seen[node] = s
	}
	l.seen, l.listed = seen, asked
}

// lease returns what the last list says of the Lease of a node: enough to count nodes, and not to fence one.
func (l *leases) lease(node string, now time.Time) fence.Lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.recent(now) {
		return fence.Lease{}
	}
	s, ok := l.seen[node]
	return fence.Lease{Known: true, Found: ok, Renewed: s.renewed, UnchangedSince: s.since}
}

// listedRecently reports whether the last list is recent.
func (l *leases) listedRecently(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.recent(now)
}

func (l *leases) recent(now time.Time) bool {
	return !l.listed.IsZero() && now.Sub(l.listed) <= leaseMaxAge
}

// unchanged reports whether the last list showed that the Lease of a node is unchanged for a time.
func (l *leases) unchanged(node string, d time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, ok := l.seen[node]
	return ok && l.listed.Sub(s.since) >= d
}

// forgetAll is called in an outage of the API server: kubelets can't renew their Leases in it either.
func (l *leases) forgetAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forget()
}

func (l *leases) forget() {
	clear(l.seen)
	clear(l.adverts)
	l.majority, l.tallies = time.Time{}, nil
	l.listed = time.Time{}
}
