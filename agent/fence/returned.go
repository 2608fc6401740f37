package fence

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// returned ends the quarantine of a node that is Ready with a new boot ID after the release. With the old one, its
// machine never was off: a person decides.
func (r *run) returned() bool {
	s := r.s
	r.healthy()
	if !r.rebooted() {
		r.stop("the node is Ready after the proof, with the boot ID that it had before (" + r.in.Node.BootID + ")")
		return false
	}
	return r.recoverAt(s.HealthySince.Add(r.timings().HealthyDelay.Duration))
}

// nodeAlive deals with a node that is Ready again before it was proven off. An act may still take effect late: until
// then it stays in quarantine.
func (r *run) nodeAlive() bool {
	s := r.s
	voided := s.is(ConditionVerificationFailed) || s.is(ConditionProofLost)
	if s.dumpReleased() && !r.rebooted() {
		r.dumpForged()
		return false
	}
	if !s.acted() && !voided {
		r.recovered(s.Step, "the node is Ready again; its devices were not used")
		return true
	}
	if s.HealthySince.IsZero() {
		r.note(warning(ReasonNodeReadyUnproven, "the node is Ready again after an act; it stays in quarantine until "+
			s.LateUntil.UTC().Format(time.RFC3339)))
	}
	r.healthy()
	switch {
	case voided && !r.rebooted():
		if !s.is(ConditionVerificationFailed) {
			r.stop("the node is Ready after it was proven off, with the boot ID that it had before")
		}
		return false
	case r.rebootNeeded():
		return r.awaitReboot()
	case voided:
		return r.recoverAt(latest(s.HealthySince.Add(r.timings().HealthyDelay.Duration), s.LateUntil.Time))
	case s.Step == Isolation && s.Status == Done && s.storageReleased():
		return r.recoverAt(s.HealthySince.Add(r.timings().HealthyDelay.Duration))
	case s.Step == Isolation && s.Status == Done:
		return r.recoverAt(r.now)
	}
	return r.lateOff()
}

// lateOff reads the devices after the time in which an act can take effect late. If none is on and one is off, it did.
func (r *run) lateOff() bool {
	s := r.s
	after := latest(s.LateUntil.Time, s.HealthySince.Time)
	on, off, complete := false, "", true
	for _, d := range s.powerDevices() {
		last := s.last(d)
		switch {
		case last == nil || !last.Started.After(after):
			complete = false
		case last.Power == PowerOn:
			on = true
		case last.Power == PowerOff:
			off = d
		}
	}
	if on || complete && off == "" {
		r.clear(ConditionWaiting)
		return r.recoverAt(r.now)
	}
	if off != "" {
		r.set(ConditionWaiting, ReasonDeviceReadsOff, fmt.Sprintf(
			"the node is Ready but device %s reads off; it stays in quarantine: check whether the device is the node's", off))
	}
	r.read(s.powerDevices(), after, r.timings().ProofInterval.Duration)
	return false
}

// healthy notes since when the node is Ready.
func (r *run) healthy() {
	if r.s.HealthySince.IsZero() {
		r.s.HealthySince = metav1.NewMicroTime(r.now)
	}
}

// recoverAt begins Recovery at t.
func (r *run) recoverAt(t time.Time) bool {
	s := r.s
	if r.now.Before(t) {
		r.wake(t)
		return false
	}
	s.Retries, s.Level, s.Acts, s.Resumed = 0, 0, nil, false
	s.Deadline, s.NextAttempt = metav1.MicroTime{}, metav1.MicroTime{}
	r.clear(ConditionNodeDidNotReturn, ConditionGaveUp, ConditionVerificationFailed, ConditionProofLost, ConditionStormHold,
		ConditionWaiting)
	r.to(Recovery, New, s.Phase, normal(ReasonNodeReturned, "the node is Ready again, with the boot ID "+r.in.Node.BootID))
	return true
}

// recover runs the methods of Recovery, and then ends the fence.
func (r *run) recover() bool {
	s := r.s
	if r.rebootNeeded() {
		return r.awaitReboot()
	}
	switch s.Status {
	case New:
		if len(s.Plan.Recovery) == 0 {
			r.recovered(Recovery, "the quarantine is over")
			return false
		}
		s.Attempt++
		s.Level, s.Acts = 0, nil
		if s.Deadline.IsZero() {
			s.Deadline = metav1.NewMicroTime(r.now.Add(r.timings().TotalTimeout.Duration))
		}
		r.to(Recovery, Running, s.Phase, normal(ReasonAttemptStarted, fmt.Sprintf("attempt %d of %s", s.Attempt, s.Step)))
		return true
	case Running:
		switch r.methods(allMethods) {
		case moved:
			return true
		case ended:
			r.recovered(Recovery, "the recovery methods have ended; the quarantine is over")
		}
		return false
	case Error:
		if s.is(ConditionGaveUp) && Suspect(r.in.Node, r.in.Lease, r.timings(), r.now) {
			// Nothing else would end this fence, and the next could not begin.
			r.recovered(Recovery, "the node died again before its isolation was undone")
			return false
		}
		return r.afterError()
	}
	return false
}
