package fence

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Suspect reports whether a node is taken for dead: it is not Ready, and its Lease has not changed for Grace, by the
// renewTime and by the controller's own clock since it first saw that renewTime. A node without a Lease, one whose
// Lease could not be read, and one that is not Ready but renews its Lease are not.
func Suspect(n Node, l Lease, t Timings, now time.Time) bool {
	return n.Found && n.Ready != ReadyTrue && stale(l, t, now)
}

// stale reports whether a Lease is known, and unchanged for Grace.
func stale(l Lease, t Timings, now time.Time) bool {
	return l.Known && l.Found && !l.UnchangedSince.IsZero() && !now.Before(staleAt(l, t))
}

// staleAt returns when a Lease has been unchanged for Grace.
func staleAt(l Lease, t Timings) time.Time {
	at := l.Renewed
	if l.UnchangedSince.After(at) {
		at = l.UnchangedSince
	}
	return at.Add(t.Grace.Duration)
}

// Open begins the fence of a node that is [Suspect]. The state has no UID yet: it is the UID of the object that the
// controller creates from it.
func Open(n Node, l Lease, p Plan, dryRun bool, now time.Time) (State, Orders) {
	s := newState(n, l, p, now)
	s.DryRun = dryRun
	r := run{s: &s, in: &Inputs{Node: n, Lease: l}, now: s.Created.Time}
	r.to(Isolation, New, "", warning(ReasonFenceOpened, fmt.Sprintf(
		"node is not Ready (%s) and its Lease has not changed since %s; %s", n.Ready, l.Renewed.UTC().Format(time.RFC3339),
		r.would("set the taint evictd.io/fencing:NoSchedule"))))
	r.reportLeftOut()
	r.wake(r.now)
	return s, r.finish()
}

// newState returns the state of a fence that begins now.
func newState(n Node, l Lease, p Plan, now time.Time) State {
	return State{
		Node:    n.Name,
		Created: microTime(now),
		Detail: Detail{
			Target: Target{
				UID: n.UID, SystemUUID: n.SystemUUID, BootID: n.BootID, Zone: n.Zone, ControlPlane: n.ControlPlane,
				LeaseRenewed: microTime(l.Renewed),
			},
			Plan: p,
		},
	}
}

// microTime returns t with the precision that survives JSON.
func microTime(t time.Time) metav1.MicroTime {
	return metav1.NewMicroTime(t.Truncate(time.Microsecond))
}
