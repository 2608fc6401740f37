package controller

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/agent/selffence"
)

// freshLease is the age up to which a Lease shows that its node reaches the API server: two renewals, and the time of a
// list.
const freshLease = 2*leasePeriod + 5*time.Second

// advertSighting is when what a node says of its watchdog was seen first.
type advertSighting struct {
	text  string
	since time.Time
	// version is the resourceVersion of the newest Node with this text, cached that of the newest one of the cache; 0 if it
	// is not a number.
	version, cached uint64
	// moved is set if it was seen to change.
	moved bool
	// proves is how it shows that its node reaches the API server.
	proves advertProof
	fresh  time.Duration // for how long after a change, if it must change
	renew  time.Duration // its period, if it must change
}

// advertProof is what of an advert must be seen so that its node reaches the API server.
type advertProof int

const (
	// byLease is for a node that says nothing to its peers: its Lease shows that.
	byLease advertProof = iota
	// byChange is for a node that may say to its peers that it cannot reach the API server: its advert must change,
	// too.
	byChange
	// neverSeen is for an advert that is not valid.
	neverSeen
)

// newAdvertSighting returns a first sighting of what a node says.
func newAdvertSighting(text string, now time.Time) advertSighting {
	s := advertSighting{text: text, since: now}
	if text == "" {
		return s
	}
	switch a, err := selffence.ParseAdvert(text); {
	case err != nil:
		s.proves = neverSeen
	case a.Peers:
		s.proves, s.fresh, s.renew = byChange, a.Fresh(), a.Renew()
	}
	return s
}

// reaches reports whether what a node says does not contradict that it reaches the API server.
func (s *advertSighting) reaches(now time.Time) bool {
	return s.proves == byLease || s.proves == byChange && s.moved && now.Sub(s.since) <= s.fresh
}

// observeAdvert returns since when what a node says of its watchdog is unchanged, by the controller's own clock. A Node
// of the cache may be older than one that was read live, from the API server, before: what it says does not count. If a
// Node is older although it was read live, or although the cache had a newer one, etcd was restored from a backup, after
// which resourceVersions are smaller: what is known of the node begins again.
func (l *leases) observeAdvert(n *corev1.Node, live bool, now time.Time) time.Time {
	text := n.Annotations[selffence.AnnotationWatchdog]
	version, err := strconv.ParseUint(n.ResourceVersion, 10, 64)
	if err != nil {
		version = 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s, ok := l.adverts[n.Name]
	cached, older := s.cached, ok && version > 0 && version < s.version
	switch {
	case older && !live && version >= cached:
		return s.since
	case older || !ok:
		s = newAdvertSighting(text, now)
		s.version = version
	case s.text != text:
		s = newAdvertSighting(text, now)
		s.moved, s.version = true, version
	default:
		s.version = version
	}
	if s.cached = min(cached, s.version); !live {
		s.cached = version
	}
	if l.adverts == nil {
		l.adverts = make(map[string]advertSighting)
	}
	l.adverts[n.Name] = s
	return s.since
}

// peerTally is how many nodes reached the API server when all were listed, for nodes that ask their peers:
// agent/selffence/peers says which count.
type peerTally struct {
	at             time.Time
	reaching, size int
	// renew is the longest period of the adverts of those that reached it.
	renew time.Duration
}

const (
	// tallyGap is the time between two lists after which the time of a majority of peers begins again, tallyKept how
	// long a tally is kept: longer than the longest bound.
	tallyGap  = 15 * time.Second
	tallyKept = time.Hour
)

// countMajority notes whether more than half of these nodes, which are all of the cluster, keep their Leases fresh: a
// cut-off node feeds its watchdog on while a majority is cut off, too. A Lease that was not yet seen to be renewed does
// not count. It is called with each list; after a gap the time begins again.
func (l *leases) countMajority(nodes []corev1.Node, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var fresh []*corev1.Node
	var clocks []time.Time
	for i := range nodes {
		s, ok := l.seen[nodes[i].Name]
		if ok && s.moved && now.Sub(s.since) <= freshLease {
			fresh, clocks = append(fresh, &nodes[i]), append(clocks, s.renewed)
		}
	}
	peers, oldEnough := peerTally{at: now, size: len(nodes)}, oldEnough(clocks, now)
	for _, n := range fresh {
		advert := l.adverts[n.Name]
		// While the controller's clock was stopped a majority may have been cut off.
		jumped := l.seen[n.Name].jumped.After(l.counted)
		if n.CreationTimestamp.Time.Before(oldEnough) && advert.reaches(now) && !jumped {
			peers.reaching++
			peers.renew = max(peers.renew, advert.renew)
		}
	}
	switch gap := now.Sub(l.counted) > leaseMaxAge; {
	case 2*len(fresh) <= len(nodes):
		l.majority = time.Time{}
	case l.majority.IsZero() || gap:
		l.majority = now
	}
	l.counted = now
	l.tallies = slices.DeleteFunc(l.tallies, func(t peerTally) bool { return now.Sub(t.at) > tallyKept })
	l.tallies = append(l.tallies, peers)
}

// oldEnough returns before when a Node was created that has selffence.MinNodeAge, by the controller's clock and by those
// of the nodes that have just renewed their Leases, whichever makes Nodes younger. The creationTimestamp is by the clock
// of the API server, which the controller does not know. If its own is ahead, young Nodes would seem old: nodes that feed
// their watchdogs may not have them in their lists, and a majority with them need have no node in common with the one
// that these count. A clock that is behind only makes Nodes younger. Of the nodes more than half must be ahead to make
// them older. An API server whose clock was behind when it created a Node makes that older: MinNodeAge allows for an
// hour less the longest bound.
func oldEnough(renewed []time.Time, now time.Time) time.Time {
	if len(renewed) > 0 {
		slices.SortFunc(renewed, time.Time.Compare)
		if median := renewed[(len(renewed)-1)/2]; median.Before(now) {
			now = median
		}
	}
	return now.Add(-selffence.MinNodeAge)
}

// majoritySince returns since when more than half of all nodes keep their Leases fresh, zero if they don't or it is not
// known now.
func (l *leases) majoritySince(now time.Time) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.counted) > leaseMaxAge {
		return time.Time{}
	}
	return l.majority
}

// peersSince is the same for a node that feeds its watchdog by a list of so many nodes, as Leases and adverts show. More
// than half of that list must reach the API server, too: Nodes may have been deleted since. renew is the longest period
// of the adverts of those nodes.
func (l *leases) peersSince(now time.Time, listed int) (since time.Time, renew time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	later := now
	for _, t := range slices.Backward(l.tallies) {
		if later.Sub(t.at) > tallyGap || 2*t.reaching <= max(t.size, listed) {
			break
		}
		since, later, renew = t.at, t.at, max(renew, t.renew)
	}
	return since, renew
}

// pruneAdverts forgets nodes that are not present.
func (l *leases) pruneAdverts(present map[string]bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	forget(l.adverts, present)
}

// watchdogFacts returns what a decision needs of the watchdog of a node that was just read, with its Lease. The times are
// differences of the monotonic clock: setting the clock does not end a bound.
func watchdogFacts(n *corev1.Node, lease fence.Lease, l *leases, now time.Time) fence.WatchdogFacts {
	if n == nil {
		return fence.WatchdogFacts{}
	}
	text, said := n.Annotations[selffence.AnnotationWatchdog]
	since := l.observeAdvert(n, true, now)
	if !said {
		return fence.WatchdogFacts{Why: "the node says nothing of a watchdog"}
	}
	f := fence.WatchdogFacts{Advert: text}
	advert, err := selffence.ParseAdvert(text)
	if err != nil {
		f.Why = fmt.Sprintf("the annotation %s is not valid: %v", selffence.AnnotationWatchdog, err)
		return f
	}
	f.Armed, f.Why = advert.Proves()
	f.BootID, f.Bound = advert.BootID, advert.Bound()
	majority := l.majoritySince(now)
	if advert.Peers {
		var renew time.Duration
		majority, renew = l.peersSince(now, advert.PeerNodes)
		f.Bound += max(0, renew-advert.Renew())
	}
	if !lease.Known || !lease.Found || lease.UnchangedSince.IsZero() || majority.IsZero() {
		return f
	}
	f.Unchanged = max(0, min(now.Sub(since), now.Sub(lease.UnchangedSince), now.Sub(majority)))
	return f
}
