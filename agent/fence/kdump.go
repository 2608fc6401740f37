package fence

import (
	"fmt"
	"math"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// kdumpSilence ends the session of a dump kernel: fence_kdump_send sends every 10 s.
const kdumpSilence = 30 * time.Second

// takeKdump records what the dump kernel of the node has sent. A session begins before Power-Management switches off
// first: what comes later can't be forged to keep a fence from going on.
func (r *run) takeKdump() {
	s, k := r.s, r.in.Kdump
	if s.Kdump == nil {
		r.beginKdump()
	}
	if s.Kdump == nil || s.Kdump.Phase == KdumpFinished {
		return
	}
	d := s.Kdump
	// The clock was set back, or that of the controller before was ahead.
	if d.Started.After(r.now) {
		d.Started = metav1.NewMicroTime(r.now)
	}
	if d.Last.After(r.now) {
		d.Last = metav1.NewMicroTime(r.now)
	}
	if last := microTime(k.Last); last.After(d.Last.Time) && !last.After(r.now) {
		r.hear(last)
		d.Last, d.Datagrams = last, max(d.Datagrams+1, r.datagrams())
	}
	if d.Datagrams > 1 {
		d.Phase = KdumpDumping
	}
	switch over := d.Started.Add(r.timings().KdumpMaxWait.Duration); {
	case r.in.Node.Ready == ReadyTrue:
		r.endKdump("the node is Ready")
	case !s.FirstOff.IsZero():
		r.endKdump("the machine is being switched off")
	case !r.now.Before(over):
		r.endKdump("kdump_max_wait is over")
	case !k.Since.IsZero() && !r.now.Before(r.kdumpSilent()):
		r.endKdump(fmt.Sprintf("no datagram came for %s", kdumpSilence))
	}
}

// beginKdump begins the session if one goes on.
func (r *run) beginKdump() {
	s, k, n := r.s, r.in.Kdump, r.in.Node
	first, last := microTime(k.First), microTime(k.Last)
	switch {
	case s.Plan.Kdump == KdumpOff, s.Plan.Kdump == "", k.Since.IsZero(), k.Datagrams == 0, n.Ready == ReadyTrue, !s.FirstOff.IsZero():
		return
	case r.now.Sub(last.Time) >= kdumpSilence:
		return // it is over
	}
	// What came while the node was Ready does not count: a kernel that dumps renews no Lease.
	if n.ReadySince.After(first.Time) {
		first = microTime(n.ReadySince)
	}
	s.Kdump = &KdumpSession{Phase: KdumpStarted, Started: first, Last: last, Datagrams: r.datagrams()}
	r.hear(last)
	r.note(normal(ReasonKdumpStarted, r.would("wait with switching off: the node's kernel sends that it dumps")))
}

// endKdump ends the session. There is no other one in this fence.
func (r *run) endKdump(why string) {
	s := r.s
	s.Kdump.Phase, s.Kdump.Finished = KdumpFinished, metav1.NewMicroTime(r.now)
	r.endHold(ConditionKdumpWait)
	r.note(normal(ReasonKdumpFinished,
		fmt.Sprintf("%s, after %d datagrams of the node's dump kernel", why, s.Kdump.Datagrams)))
}

// datagrams returns how many the listener received.
func (r *run) datagrams() int32 { return int32(min(r.in.Kdump.Datagrams, math.MaxInt32)) }

// kdumpSilent returns when the session is over without another datagram. What came before the listener began is not
// known.
func (r *run) kdumpSilent() time.Time {
	return latest(r.s.Kdump.Last.Time, r.in.Kdump.Since).Add(kdumpSilence)
}

// kdumps reports whether switching off waits for the node's dump kernel. Only a listener that listens may delay it.
func (r *run) kdumps() bool {
	s := r.s
	if s.Step != PowerManagement || s.Kdump == nil || s.Kdump.Phase == KdumpFinished || r.in.Kdump.Since.IsZero() {
		r.endHold(ConditionKdumpWait)
		return false
	}
	over := s.Kdump.Started.Add(r.timings().KdumpMaxWait.Duration)
	r.set(ConditionKdumpWait, "Dumping", r.would(fmt.Sprintf(
		"wait for the node's dump kernel, at most until %s: %d datagrams came", over.UTC().Format(time.RFC3339), s.Kdump.Datagrams)))
	r.wake(over)
	r.wake(r.kdumpSilent())
	return true
}
