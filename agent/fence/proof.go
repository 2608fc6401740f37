package fence

import (
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// prove reads the devices until they prove that the machine is off, or ProofTimeout is over.
func (r *run) prove() bool {
	s := r.s
	if proof := r.offTwice(); proof != nil {
		r.offProven(proof)
		return true
	}
	fired, wait, why := r.watchdogFired()
	if fired {
		r.resetProven()
		return true
	}
	t := r.timings()
	begun := latest(s.Since.Time, s.LastAct.Time)
	timeout := t.ProofTimeout.Duration
	if wait > 0 {
		timeout = max(timeout, min(r.now.Sub(begun)+wait, timeout+r.in.Watchdog.Bound))
	}
	all := s.DryRun
	for _, d := range s.powerDevices() {
		last := s.last(d)
		all = all && last != nil && last.Started.After(s.Since.Time)
		if last != nil && last.Power == PowerOff && s.away(d) {
			timeout = max(timeout, t.ProofTimeout.Duration+t.Settle.Duration)
		}
	}
	// While the node is not certainly dead, no act may follow: the readings go on.
	if over := begun.Add(timeout); !r.dead() || r.now.Before(over) && !all {
		if r.now.Before(over) {
			r.wake(over)
		}
		r.read(s.powerDevices(), s.LastAct.Time, t.ProofInterval.Duration)
		return false
	}
	if s.DryRun {
		r.wouldRelease("nothing was switched off; " + s.powers())
		return true
	}
	if why != "" {
		why = "; its watchdog proves nothing: " + why
	}
	if r.unpowered != "" {
		why += "; " + answersUnpowered(r.unpowered)
	}
	r.nextLevel(ReasonNotProven, "the machine is not proven off ("+s.powers()+")"+why)
	return true
}

// readOn reads the devices between the attempts, and after they ended. Off proves as it does after an act. One attempt
// follows when a device answers again.
func (r *run) readOn() bool {
	s, t := r.s, r.timings()
	if proof := r.offTwice(); proof != nil {
		r.offProven(proof)
		return true
	}
	if fired, _, _ := r.watchdogFired(); fired {
		r.resetProven()
		return true
	}
	interval := t.ProofInterval.Duration
	if s.is(ConditionGaveUp) {
		interval = t.Settle.Duration
		if len(r.back) > 0 && !s.Resumed && len(r.on) > 0 {
			s.Resumed, s.Deadline = true, metav1.MicroTime{}
			r.clear(ConditionGaveUp)
			r.again(normal(ReasonDeviceAnswersAgain, fmt.Sprintf("device %s answers again; one more attempt follows", r.back[0])))
			return true
		}
	}
	r.read(s.powerDevices(), s.LastAct.Time, interval)
	return false
}

func (r *run) offProven(readings []Reading) {
	s := r.s
	if s.DryRun {
		r.wouldRelease("the machine is off")
		return
	}
	s.Proof = &Proof{How: ByReadings, Readings: readings, LeaseRenewed: microTime(r.in.Lease.Renewed), At: metav1.NewMicroTime(r.now)}
	s.Shows = r.shows()
	s.NextAttempt = metav1.MicroTime{}
	r.clear(ConditionGaveUp, ConditionProofLost)
	r.to(PowerManagement, Running, OffProven, normal(ReasonOffProven, "two readings of each device prove that the machine is off"))
}

// wouldRelease ends a dry run: what would follow needs a machine that is off.
func (r *run) wouldRelease(message string) {
	l := r.in.Load
	r.to(PowerManagement, Done, "", normal(ReasonWouldRelease, fmt.Sprintf(
		"dry run: after the proof that the machine is off, would release %d pods and %d volume attachments; %s",
		len(l.Evicted()), len(l.detached()), message)))
}

// verify reads the devices once more before the release, and asks the gate: the release can't be undone either. While
// the gate is closed the devices are read on, and ProofTimeout does not pass. A storm that begins in Releasing does not
// stop it: pods may be deleted already, and the machine stays proven off.
func (r *run) verify() bool {
	s, t := r.s, r.timings()
	devices := s.powerDevices()
	open := r.gateOpen()
	complete := r.leaseAsProven()
	if !complete {
		r.dead() // reports what is waited for
	}
	bmc, _ := r.outletsOff(s.Proof.Readings)
	over := latest(s.Since.Time, s.heldUntil()).Add(t.ProofTimeout.Duration)
	complete = complete && bmc == "" && r.allConfirm(r.confirms) && (r.allRead() || !r.now.Before(over))
	if !open {
		r.read(devices, s.Proof.At.Time, t.Settle.Duration)
		return false
	}
	if complete {
		r.to(PowerManagement, Running, Releasing, normal(ReasonReleasing, "the node gets the out-of-service taint: its pods and volumes are released"))
		return true
	}
	if s.Proof.How == ByReadings {
		if !r.now.Before(over) {
			why := ""
			if bmc != "" {
				why = "; " + answersUnpowered(bmc)
			}
			r.fail(ReasonNotProven, "the readings of the proof could not be confirmed ("+s.powers()+")"+why)
			return true
		}
		r.wake(over)
	}
	r.read(devices, s.Proof.At.Time, t.ProofInterval.Duration)
	return false
}

// confirming returns the devices whose readings the release needs: those of the proof, and without readings in it all.
func (r *run) confirming() []string {
	s := r.s
	return slices.DeleteFunc(s.powerDevices(), func(d string) bool { return s.Proof.How == ByReadings && !s.Proof.has(d) })
}

// allConfirm reports whether the last reading of each device that the release needs passes a check, and is off if the
// proof is one of readings.
func (r *run) allConfirm(check func(*Reading) bool) bool {
	for _, d := range r.confirming() {
		last := r.s.last(d)
		if last == nil || !check(last) || r.s.Proof.How == ByReadings && last.Power != PowerOff {
			return false
		}
	}
	return true
}

// allRead reports whether a reading of each device, of which some may be no part of the proof, has ended that began after
// the last act, whatever it says. One that says on contradicts the proof: a slow device must not say so only after the
// release has begun.
func (r *run) allRead() bool {
	return !slices.ContainsFunc(r.s.powerDevices(), func(d string) bool {
		last := r.s.last(d)
		return last == nil || !last.Started.After(r.s.LastAct.Time)
	})
}

// confirms reports whether a reading confirms the proof for the release now: it followed the proof, is recent, and began
// after the gate opened or just before. A new controller finds readings in the state that are as old as the outage. A
// reading is as recent as it was when the inputs were asked for: while the API server is slow none would be recent at
// the end.
func (r *run) confirms(x *Reading) bool {
	recent := r.asked().Add(-2*r.timings().ProofInterval.Duration - r.longestOther(x.Device))
	if !x.Started.After(r.s.Proof.At.Time) || x.Ended.Time.Before(recent) {
		return false
	}
	return x.Started.After(r.s.heldUntil()) || !x.Started.Time.Before(recent)
}

// asked returns when the controller began to read the inputs.
func (r *run) asked() time.Time {
	if r.in.Asked.IsZero() || r.in.Asked.After(r.now) {
		return r.now
	}
	return r.in.Asked
}

// longestOther returns how long the last reading of another device took that the release needs, at most ProofTimeout. A
// reading stays recent for that time: two slow devices, such as those that Jobs read, would else never be read recently
// both.
func (r *run) longestOther(device string) time.Duration {
	longest := time.Duration(0)
	for _, d := range r.confirming() {
		last := r.s.last(d)
		if d != device && last != nil && last.Started.After(r.s.Proof.At.Time) {
			longest = max(longest, last.Ended.Sub(last.Started.Time))
		}
	}
	return min(longest, r.timings().ProofTimeout.Duration)
}

// leaseAsProven reports whether the Lease is known not to have been renewed since the proof.
func (r *run) leaseAsProven() bool {
	l := r.in.Lease
	if !l.Known || r.s.Proof == nil {
		return false
	}
	proven := r.s.Proof.LeaseRenewed
	if !l.Found {
		return proven.IsZero()
	}
	return microTime(l.Renewed).Time.Equal(proven.Time)
}

// has reports whether a device is part of the proof.
func (p *Proof) has(device string) bool {
	for _, x := range p.Readings {
		if x.Device == device {
			return true
		}
	}
	return false
}

// proves reports whether a proof of a saved state is one that this plan can have: of readings, two of each device that a
// level switches off, off and of the node's machine. An edited NodeFence may have any.
func (s *State) proves(p *Proof) bool {
	if p.How == ByWatchdog {
		return s.usesWatchdog()
	}
	if p.How != ByReadings {
		return p.How == Confirmed
	}
	count := map[string]int{}
	for i := range p.Readings {
		x := &p.Readings[i]
		if x.Power != PowerOff || s.checked(x.Device) && SameMachine(x.UUID, s.Target.SystemUUID) != Yes {
			return false
		}
		count[x.Device]++
	}
	for i := range s.Plan.PowerManagement {
		level := Plan{PowerManagement: s.Plan.PowerManagement[i : i+1]}
		devices := level.devices(Off, 0)
		if len(devices) > 0 && !slices.ContainsFunc(devices, func(d string) bool { return count[d] < 2 }) {
			return true
		}
	}
	return false
}

// begun returns when the first reading of the proof began.
func (p *Proof) begun() time.Time {
	begun := p.At.Time
	for _, x := range p.Readings {
		if x.Started.Time.Before(begun) {
			begun = x.Started.Time
		}
	}
	return begun
}

// contradicted takes the proof back if a device reads on, or the node shows that it runs, before the release has ended.
func (r *run) contradicted() bool {
	s, n, l := r.s, r.in.Node, r.in.Lease
	if s.Phase != OffProven && s.Phase != Releasing {
		return false
	}
	if s.Proof == nil {
		r.proofLost("the saved state has no proof")
		return true
	}
	if !s.proves(s.Proof) {
		r.proofLost("the saved proof is none of this plan")
		return true
	}
	if bmc, certain := r.outletsOff(s.Proof.Readings); certain {
		r.proofLost(answersUnpowered(bmc))
		return true
	}
	for _, x := range r.on {
		// What is reported after the proof was saved is not compared by a clock, which may have been set back.
		if r.proven || x.Ended.After(s.Proof.begun()) {
			r.proofLost("device " + x.Device + " reads on")
			return true
		}
	}
	renewed := l.Known && l.Found && !microTime(l.Renewed).Time.Equal(s.Proof.LeaseRenewed.Time)
	switch {
	case n.Ready != ReadyTrue && !renewed && !r.advertChanged():
		return false
	case r.rebooted():
		r.proofLost("the node is back with a new boot ID")
	case n.Ready != ReadyTrue && !renewed:
		r.stop("what the node says of its watchdog changed after the proof")
	default:
		r.stop("the node is Ready or renewed its Lease after the proof, with the boot ID that it had before")
	}
	return true
}

// rebooted reports whether the node certainly has another boot ID than the target.
func (r *run) rebooted() bool {
	was, is := r.s.Target.BootID, r.in.Node.BootID
	return was != "" && is != "" && was != is
}

// proofLost takes the proof back. A new attempt follows.
func (r *run) proofLost(message string) {
	s := r.s
	s.Proof = nil
	r.clear(ConditionReleaseStuck)
	message += ": the proof is void, the out-of-service taint is removed"
	r.set(ConditionProofLost, ReasonProofVoid, message)
	if s.Resumed || s.Retries >= r.timings().Retries || !s.Deadline.IsZero() && r.now.After(s.Deadline.Time) {
		r.giveUp(ReasonProofVoid, message)
		return
	}
	r.again(normal(ReasonRetrying, "a new attempt follows"))
}

// stop ends all acts and the release: another machine may have been switched off. A person decides.
func (r *run) stop(message string) {
	s := r.s
	s.Shows = ""
	if s.Phase != Released {
		s.Proof, s.NextAttempt = nil, metav1.MicroTime{}
		r.clear(ConditionReleaseStuck)
		s.Status, s.Phase, s.Since = Error, "", metav1.NewMicroTime(r.now)
	}
	r.set(ConditionVerificationFailed, "SameBootID", message+": another machine may have been switched off; "+
		"check the devices of the fence-method; the quarantine stays")
}

// confirm takes the word of a person that the machine is off. Each value of the annotation counts once: after a proof
// was lost it must be removed and set again.
func (r *run) confirm() bool {
	s, v := r.s, r.in.Node.ConfirmOff
	if v == s.ConfirmOff || s.Intent != nil {
		return false
	}
	if v == s.UID && v != "" && s.Confirmable() {
		if r.in.Node.Ready != ReadyTrue {
			if l := r.in.Lease; !l.Known || l.Found && !stale(l, r.timings(), r.now) {
				r.dead() // reports what is waited for
				return false
			}
		}
		return r.confirmed()
	}
	s.ConfirmOff = v
	if v != "" && v != s.UID {
		r.note(warning(ReasonConfirmOffIgnored, fmt.Sprintf(
			"the annotation evictd.io/confirm-off has %q, the UID of this fence is %q; set it to that", v, s.UID)))
	}
	return false
}

// Confirmable reports whether a person's word that the machine is off can still change the fence: it is no dry run, has
// not ended and is before its release.
func (s *State) Confirmable() bool {
	return s.FinishedAt.IsZero() && !s.DryRun && s.Step != Recovery && s.Phase != Releasing && s.Phase != Released
}

func (r *run) confirmed() bool {
	s := r.s
	s.ConfirmOff = r.in.Node.ConfirmOff
	if r.in.Node.Ready == ReadyTrue {
		r.note(warning(ReasonConfirmOffIgnored, "the node is Ready; its machine is not off"))
		return false
	}
	s.Proof = &Proof{How: Confirmed, At: metav1.NewMicroTime(r.now)}
	if r.in.Lease.Found {
		s.Proof.LeaseRenewed = microTime(r.in.Lease.Renewed)
	}
	s.NextAttempt = metav1.MicroTime{}
	if s.Step == Isolation {
		s.Retries, s.Level, s.Deadline = 0, 0, metav1.MicroTime{} // those of another list
	}
	r.clear(ConditionGaveUp, ConditionProofLost, ConditionVerificationFailed, ConditionStormHold, ConditionWaiting,
		ConditionKdumpWait)
	r.to(PowerManagement, Running, OffProven, warning(ReasonConfirmedOff, "a person confirmed that the machine is off"))
	return true
}
