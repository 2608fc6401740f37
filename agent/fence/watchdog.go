package fence

import (
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// usesWatchdog reports whether a level in use takes the node's watchdog for proof.
func (s *State) usesWatchdog() bool {
	for i, l := range s.Plan.PowerManagement {
		if i <= int(s.Level) && slices.ContainsFunc(l.Methods, func(m Method) bool { return m.Action == Watchdog }) {
			return true
		}
	}
	return false
}

// watchdogFired reports whether the node's hardware watchdog must have reset the machine, so that the boot that the
// target has is over. If it will have by then, wait is how long that takes; else why says why it proves nothing. Both
// are zero if no level in use takes it for proof.
func (r *run) watchdogFired() (fired bool, wait time.Duration, why string) {
	s, w, n := r.s, r.in.Watchdog, r.in.Node
	on := func(x Reading) bool { return x.Power == PowerOn }
	switch {
	case !s.usesWatchdog():
		return false, 0, ""
	case !w.Armed:
		return false, 0, w.Why
	case s.Target.BootID == "" || w.BootID != s.Target.BootID || n.BootID != s.Target.BootID:
		return false, 0, fmt.Sprintf("it is that of the boot %q, the fence is of the boot %q", w.BootID, s.Target.BootID)
	case n.Ready == ReadyTrue || !stale(r.in.Lease, r.timings(), r.now):
		return false, 0, "the node is not certainly dead"
	case slices.ContainsFunc(s.Readings, on):
		return false, 0, "a device of the node reads on"
	case w.Bound <= 0:
		return false, 0, "it has no bound"
	case w.Unchanged < w.Bound:
		wait = w.Bound - w.Unchanged
		r.wake(r.now.Add(wait))
		return false, wait, fmt.Sprintf("its bound of %s is not over", w.Bound)
	}
	return true, 0, ""
}

// resetProven takes the node's watchdog for proof.
func (r *run) resetProven() {
	s := r.s
	if s.DryRun {
		r.wouldRelease("the bound of the node's watchdog is over")
		return
	}
	s.Proof = &Proof{How: ByWatchdog, Watchdog: r.in.Watchdog.Advert, LeaseRenewed: microTime(r.in.Lease.Renewed), At: metav1.NewMicroTime(r.now)}
	s.NextAttempt = metav1.MicroTime{}
	r.clear(ConditionGaveUp, ConditionProofLost)
	r.to(PowerManagement, Running, OffProven, warning(ReasonResetProven, fmt.Sprintf("no reading shows that the machine is "+
		"off: its watchdog must have reset it, %s after it was renewed last", r.in.Watchdog.Bound)))
}

// advertChanged reports whether a proof by the node's watchdog is void, because the node has said something since.
func (r *run) advertChanged() bool {
	p := r.s.Proof
	return p.How == ByWatchdog && p.Watchdog != r.in.Watchdog.Advert
}
