package fence

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// kdumpApart is the least time between two datagrams that count as two: a network may deliver one twice.
const kdumpApart = time.Second

// hear records a datagram that came while the node was not Ready and did not renew its Lease: of each session the first
// and the last one. A kernel that dumps does neither, and a node that does is not the one that sends.
func (r *run) hear(at metav1.MicroTime) {
	d, n, l := r.s.Kdump, r.in.Node, r.in.Lease
	if at.Sub(d.Last.Time) >= kdumpSilence {
		d.Heard = nil // of another session
	}
	renewed := latest(l.UnchangedSince, n.ReadySince)
	if len(d.Heard) > 0 && !d.Heard[0].After(renewed) {
		d.Heard = nil
	}
	if n.Ready == ReadyTrue || !l.Known || !l.Found || !at.After(renewed) {
		return
	}
	if len(d.Heard) == 0 {
		d.Heard = []metav1.MicroTime{at}
	} else if at.Sub(d.Heard[0].Time) >= kdumpApart {
		d.Heard = append(d.Heard[:1], at)
	}
}

// dumpReleased reports whether pods were released because the node's kernel was said to dump.
func (s *State) dumpReleased() bool {
	return s.Kdump != nil && !s.Kdump.Released.IsZero() && !s.DryRun
}

// dumpCertain reports whether the session of the dump kernel goes on and may release the pods: the plan says so, at
// least two datagrams of it came since the node ceased to renew its Lease, and nothing was switched off yet.
func (r *run) dumpCertain() bool {
	s := r.s
	d, renewed := s.Kdump, r.in.Lease.UnchangedSince
	switch {
	case s.Plan.Kdump != KdumpRelease, d == nil, r.in.Kdump.Since.IsZero():
		return false
	case d.Phase != KdumpDumping, len(d.Heard) < 2, !d.Heard[0].After(renewed):
		return false
	case r.now.Sub(d.Last.Time) >= kdumpSilence:
		return false
	}
	return s.FinishedAt.IsZero() && s.Step != Recovery && s.Phase == "" && s.FirstOff.IsZero() &&
		!s.is(ConditionVerificationFailed) && !s.is(ConditionProofLost)
}

// releaseDump releases the pods of a node whose kernel dumps, if the plan says so. The node gets no taint: its volumes
// wait for the proof that the machine is off.
func (r *run) releaseDump() {
	s, l := r.s, r.in.Load
	if !r.dumpCertain() {
		return
	}
	pods := l.Evicted()
	if !l.PodsKnown || len(pods) == 0 || !r.mayAct() {
		return
	}
	if s.Kdump.Released.IsZero() {
		s.Kdump.Released = metav1.NewMicroTime(r.now)
		r.note(warning(ReasonKdumpReleased, r.would(fmt.Sprintf("release %d pods, and not their volumes, because the node's "+
			"kernel sends that it dumps, which anyone can send: %s", len(pods), named(pods, nil)))))
	}
	if !s.DryRun {
		r.orders.Delete = pods
	}
}

// dumpForged stops the fence of a node that is Ready with the boot ID that it had before its kernel was said to dump. A
// person decides.
func (r *run) dumpForged() {
	s := r.s
	r.healthy()
	if s.is(ConditionVerificationFailed) {
		return
	}
	s.Proof, s.NextAttempt = nil, metav1.MicroTime{}
	r.clear(ConditionReleaseStuck)
	s.Status, s.Phase, s.Since = Error, "", metav1.NewMicroTime(r.now)
	r.set(ConditionVerificationFailed, "DumpForged", "the node is Ready with the boot ID that it had before its pods were "+
		"released because of datagrams of its dump kernel: its kernel did not dump; the quarantine stays until it has booted again")
}
