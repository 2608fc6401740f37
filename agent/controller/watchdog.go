package controller

import (
	"fmt"
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
	// version is the resourceVersion of the newest Node with this text, 0 if it is not a number.
	version uint64
}

// observeAdvert returns since when what a node says of its watchdog is unchanged, by the controller's own clock. A Node
// of the cache may be older than one that was read from the API server before: what it says does not count.
func (l *leases) observeAdvert(n *corev1.Node, now time.Time) time.Time {
	text := n.Annotations[selffence.AnnotationWatchdog]
	version, err := strconv.ParseUint(n.ResourceVersion, 10, 64)
	if err != nil {
		version = 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s, ok := l.adverts[n.Name]
	switch {
	case ok && version > 0 && version < s.version:
		return s.since
	case !ok || s.text != text:
		s = advertSighting{text, now, version}
	default:
		s.version = max(s.version, version)
	}
	if l.adverts == nil {
		l.adverts = make(map[string]advertSighting)
	}
	l.adverts[n.Name] = s
	return s.since
}

// countMajority notes whether more than half of these nodes, which are all of the cluster, keep their Leases fresh: a
// cut-off node feeds its watchdog on while a majority is cut off, too. A Lease that was not yet seen to be renewed does
// not count. It is called with each list; after a gap the time begins again.
func (l *leases) countMajority(nodes []corev1.Node, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fresh := 0
	for i := range nodes {
		if s, ok := l.seen[nodes[i].Name]; ok && s.moved && now.Sub(s.since) <= freshLease {
			fresh++
		}
	}
	gap := now.Sub(l.counted) > leaseMaxAge
	switch l.counted = now; {
	case 2*fresh <= len(nodes):
		l.majority = time.Time{}
	case l.majority.IsZero() || gap:
		l.majority = now
	}
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
	since := l.observeAdvert(n, now)
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
	if !lease.Known || !lease.Found || lease.UnchangedSince.IsZero() || majority.IsZero() {
		return f
	}
	f.Unchanged = max(0, min(now.Sub(since), now.Sub(lease.UnchangedSince), now.Sub(majority)))
	return f
}
