package fence

import (
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// progress is how far the methods of a level are.
type progress uint8

const (
	waiting progress = iota // for a reading, the gate or the outcome of an act
	ended                   // all methods have ended
	moved                   // the state changed: there is more to do at once
)

// levels returns the levels of the current step.
func (s *State) levels() []Level {
	switch s.Step {
	case Isolation:
		return s.Plan.Isolation
	case PowerManagement:
		return s.Plan.PowerManagement
	}
	return s.Plan.Recovery
}

// act returns the ended act of a method of the level in use, nil if there is none in this attempt.
func (s *State) act(index int) *Act {
	for i := range s.Acts {
		if a := &s.Acts[i]; a.Attempt == s.Attempt && a.Step == s.Step && a.Level == s.Level && int(a.Index) == index {
			return a
		}
	}
	return nil
}

// group says which methods of a level are run.
type group uint8

const (
	allMethods    group = iota
	beforeRelease       // those that switch off
	afterRelease        // the others
)

// methods runs the methods of the level in use that are in the group, in order. Those that switch off are run whatever
// the ones before said, because only readings tell; without a release between them, they stop at the first that must
// succeed and did not.
func (r *run) methods(which group) progress {
	s := r.s
	levels := s.levels()
	if int(s.Level) >= len(levels) {
		return ended
	}
	for i, m := range levels[s.Level].Methods {
		if m.Action == CleanPods && s.OnRepeats > 0 || m.Action == Watchdog {
			continue // done before the machine was switched on, or nothing to do
		}
		if which != allMethods && (m.Action == Off) != (which == beforeRelease) {
			continue
		}
		a := s.act(i)
		if a == nil {
			return r.next(i, m)
		}
		if which == allMethods && (m.MustSuccess || r.lost(m, a)) && a.Outcome.Kind != Succeeded {
			r.nextLevel(ReasonMethodFailed, fmt.Sprintf("%s by %s: %s: %s", m.Action, m.Name, a.Outcome.Kind, a.Outcome.Message))
			return moved
		}
		if which == afterRelease && m.Action == On && !r.verifiedOn(m, a) {
			return waiting
		}
	}
	return ended
}

// lost reports whether an act of Recovery on an object of the cluster may not have been done: its controller was killed,
// or the API server did not answer. It is repeated also if the step does not fail with it: a Node would stay cordoned for
// ever.
func (r *run) lost(m Method, a *Act) bool {
	return r.s.Step == Recovery && m.Action.OnObjects() && a.Outcome.Kind == Unknown
}

// next issues the act of a method, or orders the reading that tells whether the device belongs to the node.
func (r *run) next(index int, m Method) progress {
	against := m.Action == Off || r.s.Step == Isolation
	if against && (!r.mayAct() || m.Action == Off && r.kdumps()) {
		return waiting
	}
	if r.s.Phase == Released && m.Action == On {
		// It would be refused, and is not repeated without end.
		if r.withheld() || r.unknown() {
			r.gateOpen() // reports it
			return waiting
		}
		r.endHold(ConditionStormHold)
	}
	if m.Action == CleanPods && !r.mayClean() {
		r.skip(index, m, "the machine is not certainly off; no pod is deleted")
		return moved
	}
	match, known := r.identity(m)
	switch {
	case match == Yes:
		r.issue(index, m)
		if r.s.DryRun {
			return moved
		}
		return waiting
	case !known:
		last := lastOf(r.in.Readings, m.Device)
		if r.asks(m, last) {
			return waiting
		}
		r.notSent(index, m, withoutUUID(last), against)
	default:
		r.notSent(index, m, "its device is not known to belong to this node", against)
	}
	return moved
}

// asks orders the reading that tells whether a device belongs to the node, and reports whether it is waited for: until one
// without an answer has come after the deadline of the method. last is the newest reading of this step, nil if there is none.
func (r *run) asks(m Method, last *Reading) bool {
	over := latest(r.s.Since.Time, r.s.LastAct.Time).Add(deadline(m))
	if last != nil && !r.now.Before(over) {
		return false
	}
	// A reading that fails at once is not repeated without a pause, nor in the step after the one that took it.
	tried := last
	if saved := r.s.last(m.Device); tried == nil && saved != nil && saved.nameless() {
		tried = saved
	}
	if tried != nil {
		if due := tried.Started.Add(r.timings().ProofInterval.Duration); r.now.Before(due) {
			r.wake(due)
			return true
		}
	}
	r.orders.Read = append(r.orders.Read, m.Device)
	r.wake(r.now.Add(r.timings().ProofInterval.Duration))
	return true
}

// notSent notes an act that is not done because its device may not be that of the node. Against the machine the level then
// can do nothing more.
func (r *run) notSent(index int, m Method, why string, against bool) {
	r.skip(index, m, why+"; nothing was sent")
	if against {
		r.nextLevel(ReasonActNotSent, fmt.Sprintf("level %d cannot act on the node's machine: %s by %s: %s", r.s.Level+1, m.Action, m.Name, why))
	}
}

// withoutUUID says that a reading has no UUID, and why.
func withoutUUID(last *Reading) string {
	const what = "its device did not tell the UUID of its machine"
	if last.Error == "" {
		return what
	}
	return what + ": " + last.Error
}

// identity compares the machine of a method's device with the node, by a reading of this step. It is not known if the
// device did not answer.
func (r *run) identity(m Method) (match Match, known bool) {
	if m.Identity == CheckNone || m.Action.OnObjects() {
		return Yes, true
	}
	for _, x := range r.in.Readings {
		if x.Device != m.Device || x.nameless() {
			continue
		}
		if r.now.Sub(x.Started.Time) > r.timings().ProofTimeout.Duration {
			continue
		}
		match, known = SameMachine(x.UUID, r.s.Target.SystemUUID), true
		if match != Yes {
			r.mismatch(x, match)
			return match, true
		}
	}
	return match, known
}

// mismatch reports that a device cannot be taken for one of the node.
func (r *run) mismatch(x Reading, match Match) {
	message := fmt.Sprintf("device %s reports UUID %q, the node's systemUUID is %q", x.Device, x.UUID, r.s.Target.SystemUUID)
	if match == NotComparable {
		r.set(ConditionIdentityMismatch, "NotComparable", message+
			"; they cannot be compared: nothing is sent to it; set identity=none only if a drill has shown that it is the right one")
		return
	}
	r.set(ConditionIdentityMismatch, "OtherMachine", message+": nothing is sent to it; correct the node's fence-method")
}

// begin starts an attempt of a step as soon as the node is dead and the gate is open.
func (r *run) begin() bool {
	s := r.s
	if s.Step == Isolation && len(s.Plan.Isolation) == 0 {
		r.beginPower("the plan has no isolation methods")
		return true
	}
	if s.Attempt > 0 && !s.Deadline.IsZero() && r.now.After(s.Deadline.Time) && !s.is(ConditionStormHold) &&
		!s.is(ConditionKdumpWait) {
		r.exhausted(ReasonNotProven, "the time for all attempts is over")
		return true
	}
	if s.Step == PowerManagement && len(s.Plan.PowerManagement) == 0 && len(s.Plan.LeftOut) > 0 {
		r.giveUp(ReasonNotDrilled, strings.Join(s.Plan.LeftOut, "; ")+": nothing is switched off; for the next fence "+whole)
		return true
	}
	if s.Step == PowerManagement && len(s.Plan.PowerManagement) == 0 {
		r.giveUp(ReasonNoMethods, "the plan has no method that switches the node off")
		return true
	}
	if !r.mayAct() || r.kdumps() {
		return false
	}
	s.Attempt++
	s.Level, s.Acts, s.Jobs = 0, nil, nil
	if s.Deadline.IsZero() {
		s.Deadline = metav1.NewMicroTime(r.now.Add(r.timings().TotalTimeout.Duration))
	}
	r.clear(ConditionIdentityMismatch)
	r.to(s.Step, Running, "", normal(ReasonAttemptStarted, fmt.Sprintf("attempt %d of %s", s.Attempt, s.Step)))
	return true
}

// isolate runs the isolation methods. They release nothing but the storage that they are said to, after it is proven:
// for all else the machine must be off.
func (r *run) isolate() bool {
	s := r.s
	if s.Status == Done {
		if r.releaseStorage() {
			return true
		}
		if !s.powerPlanned() {
			return false
		}
		return r.awaitPower()
	}
	switch r.methods(allMethods) {
	case moved:
		return true
	case ended:
		r.isolationEnded()
		r.to(Isolation, Done, "", normal(ReasonIsolated, "the isolation methods have ended; that proves nothing"))
		return true
	}
	return false
}

// awaitPower begins Power-Management when PowerDelay is over.
func (r *run) awaitPower() bool {
	if r.now.Before(r.s.PowerAt.Time) {
		r.wake(r.s.PowerAt.Time)
		return false
	}
	r.beginPower("the delay after isolation is over")
	return true
}

func (r *run) beginPower(message string) {
	s := r.s
	s.Retries, s.Level, s.NextAttempt, s.Deadline = 0, 0, metav1.MicroTime{}, metav1.MicroTime{}
	r.orders.Delete, r.orders.Detach = nil, nil // those of Isolation, which has ended
	r.to(PowerManagement, New, "", normal(ReasonPowerDelayOver, message))
}

// isolationEnded begins PowerDelay at the first end of isolation.
func (r *run) isolationEnded() {
	if r.s.PowerAt.IsZero() {
		r.s.PowerAt = metav1.NewMicroTime(r.now.Add(r.timings().PowerDelay.Duration))
	}
}

// powerOff runs the methods of the level that switch off. When all have ended, whatever they said, the devices are
// read.
func (r *run) powerOff() bool {
	switch r.methods(beforeRelease) {
	case moved:
		return true
	case ended:
		r.to(PowerManagement, Running, Proving, normal(ReasonProving, "the power devices are read in sessions of their own"))
		return true
	}
	return false
}

// nextLevel goes on with the alternative methods of the step, or to the next attempt.
func (r *run) nextLevel(reason, message string) {
	s := r.s
	if int(s.Level)+1 >= len(s.levels()) {
		r.fail(reason, message)
		return
	}
	s.Level++
	s.Proof = nil
	r.to(s.Step, Running, "", warning(ReasonNextLevel, fmt.Sprintf("%s; level %d of %d follows", message, s.Level+1, len(s.levels()))))
}

// fail ends an attempt. The next follows after a back-off that doubles, within the total time.
func (r *run) fail(reason, message string) {
	s, t := r.s, r.timings()
	if s.Step == Isolation {
		r.isolationEnded()
	}
	next := r.now.Add(t.backoff(s.Retries))
	if s.Resumed || s.Retries >= t.Retries || next.After(s.Deadline.Time) {
		r.exhausted(reason, message)
		return
	}
	s.Proof = nil
	s.NextAttempt = metav1.NewMicroTime(next)
	r.to(s.Step, Error, "", warning(reason, fmt.Sprintf("%s; next attempt at %s", message, next.UTC().Format(time.RFC3339))))
}

// exhausted ends the attempts of a step. Isolation that failed does not keep Power-Management from beginning.
func (r *run) exhausted(reason, message string) {
	s := r.s
	if s.Step != Isolation || !s.powerPlanned() {
		r.giveUp(reason, message)
		return
	}
	r.isolationEnded()
	s.NextAttempt = metav1.MicroTime{}
	r.to(Isolation, Error, "", warning(reason, message+"; Power-Management follows"))
}

// giveUp ends the attempts. The devices are still read.
func (r *run) giveUp(reason, message string) {
	s := r.s
	s.Proof, s.NextAttempt = nil, metav1.MicroTime{}
	s.Phase = ""
	s.Status = Error
	s.Since = metav1.NewMicroTime(r.now)
	remedy := "; nothing is released: switch the machine off and set the annotation evictd.io/confirm-off to the UID of " +
		"the NodeFence, or repair its devices"
	if s.Step == Recovery {
		remedy = "; the quarantine stays: undo the isolation by hand, and then delete the NodeFence"
	}
	r.set(ConditionGaveUp, reason, message+remedy)
}

// again begins the step again.
func (r *run) again(e Event) {
	s := r.s
	s.Retries++
	s.Level, s.Acts, s.Proof, s.NextAttempt = 0, nil, nil, metav1.MicroTime{}
	r.to(s.Step, New, "", e)
}

// afterError waits for the next attempt. The devices of Power-Management are read on: an act may take effect late.
func (r *run) afterError() bool {
	s := r.s
	if s.Step == PowerManagement && r.readOn() {
		return true
	}
	if s.Step == Isolation && s.powerPlanned() {
		if !r.now.Before(s.PowerAt.Time) {
			return r.awaitPower()
		}
		r.wake(s.PowerAt.Time)
	}
	if s.NextAttempt.IsZero() {
		if s.Step == Isolation || s.is(ConditionGaveUp) {
			return false
		}
		r.again(warning(ReasonRetrying, "the saved state does not tell when the next attempt begins"))
		return true
	}
	if r.now.Before(s.NextAttempt.Time) {
		r.wake(s.NextAttempt.Time)
		return false
	}
	r.again(normal(ReasonRetrying, "the back-off is over"))
	return true
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
