package fence

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// holdInterval is how often a closed gate is asked again.
	holdInterval = 10 * time.Second
	// holdReport is the least time between two messages of the condition StormHold with the same reason: while nodes
	// come and go, the numbers of each fence that waits would be saved in each step.
	holdReport = time.Minute
)

// mayAct reports whether acts against the node are allowed now: it is still dead or a drill has checked it, and the gate
// is open.
func (r *run) mayAct() bool {
	return (r.drills() || r.dead()) && r.gateOpen()
}

// gateOpen reports whether the gate is open. For a machine that a person confirmed to be off, the policy that closes it
// against a mistaken storm does not apply.
func (r *run) gateOpen() bool {
	g, s := r.in.Gate, r.s
	if g.Open || g.Overridable && s.Proof != nil && s.Proof.How == Confirmed {
		r.endHold(ConditionStormHold)
		return true
	}
	r.wake(r.now.Add(holdInterval))
	reason := g.Reason
	if reason == "" {
		reason = "Closed"
	}
	if s.is(ConditionStormHold) {
		c := meta.FindStatusCondition(s.Conditions, ConditionStormHold)
		since := r.now.Sub(s.Storm.Reported.Time)
		if c.Reason == reason && (c.Message == g.Message || since >= 0 && since < holdReport) {
			return false
		}
	}
	s.Storm.Reported = metav1.NewMicroTime(r.now)
	r.set(ConditionStormHold, reason, g.Message)
	return false
}

// withheld reports whether a person, another remediator or the place of the controller forbids all acts now.
func (r *run) withheld() bool { return r.in.Gate.Withheld && !r.in.Gate.Open }

// unknown reports whether the controller can't tell whether acts are allowed, as it can't list what would forbid them. Only
// the storm policy closes a gate that can be overridden, and that says nothing against a machine that was released.
func (r *run) unknown() bool {
	g := r.in.Gate
	return !g.Open && !g.Withheld && !g.Overridable
}

// endHold ends a condition with which the fence waited before it acts. That time does not count in the time for all
// attempts.
func (r *run) endHold(condition string) {
	s := r.s
	if !s.is(condition) {
		return
	}
	held := r.now.Sub(meta.FindStatusCondition(s.Conditions, condition).LastTransitionTime.Time)
	if held > 0 && !s.Deadline.IsZero() {
		s.Deadline = metav1.NewMicroTime(s.Deadline.Add(held))
	}
	r.clear(condition)
}

// heldUntil returns when the gate opened last after it was closed, to the second; zero if it never was.
func (s *State) heldUntil() time.Time {
	c := meta.FindStatusCondition(s.Conditions, ConditionStormHold)
	if c == nil || c.Status == metav1.ConditionTrue {
		return time.Time{}
	}
	return c.LastTransitionTime.Time
}

// recordStorm notes what the storm policy must remember: a storm that was seen, and a fence that began to act.
func (r *run) recordStorm() {
	s, g := r.s, r.in.Gate
	if g.StormUntil.After(s.Storm.Until.Time) {
		s.Storm.Until = microTime(g.StormUntil)
	}
	if r.acted || !s.Acting() {
		return
	}
	s.Storm.Started = metav1.NewMicroTime(r.now)
	if g.RateFull.After(s.Storm.RateFull.Time) {
		s.Storm.RateFull = microTime(g.RateFull)
	}
}
