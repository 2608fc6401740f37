package fence

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// maxNamed bounds the objects that a message names.
const maxNamed = 5

// Evicted returns the pods that the release waits for: those that the taint evicts, without those of a DaemonSet and
// without the mirror objects of static pods.
func (l Load) Evicted() []Pod {
	var pods []Pod
	for _, p := range l.Pods {
		if !p.Tolerates && !p.DaemonSet && !p.Mirror {
			pods = append(pods, p)
		}
	}
	return pods
}

// detached returns the VolumeAttachments that the release waits for.
func (l Load) detached() []Attachment {
	var attachments []Attachment
	for _, a := range l.Attachments {
		if !a.KeptByPod {
			attachments = append(attachments, a)
		}
	}
	return attachments
}

// release deletes pods until those that the taint evicts, and their volumes, are gone. The devices are read on.
func (r *run) release() bool {
	s, t, l := r.s, r.timings(), r.in.Load
	if r.withheld() {
		r.clear(ConditionReleaseStuck)
		r.to(PowerManagement, Running, OffProven, warning(ReasonReleaseInterrupted,
			"the out-of-service taint is removed, and no pod is deleted: "+r.in.Gate.Message))
		return true
	}
	pods, attachments := l.Evicted(), l.detached()
	tainted := r.in.Node.OutOfService
	// No reading that confirms the proof is older.
	oldest := r.now.Add(-t.ProofTimeout.Duration - 2*t.ProofInterval.Duration)
	if !tainted && !r.allConfirm(func(x *Reading) bool { return !x.Ended.Time.Before(oldest) }) {
		// The state was saved and the taint not set: by a controller that ended then, or by hand.
		r.to(PowerManagement, Running, OffProven, warning(ReasonReleaseInterrupted,
			"the node has no out-of-service taint, and its devices were not read recently: they are read before it is set"))
		return true
	}
	if tainted && l.PodsKnown && l.AttachmentsKnown && len(pods) == 0 && len(attachments) == 0 {
		r.clear(ConditionReleaseStuck)
		r.to(PowerManagement, Running, Released, normal(ReasonReleased,
			"the pods and volumes are released; the out-of-service taint is removed"))
		return true
	}
	r.read(s.powerDevices(), s.Proof.At.Time, t.ProofInterval.Duration)
	if tainted && l.PodsKnown && r.leaseAsProven() {
		r.orders.Delete = pods
	}
	if stuck := s.Since.Add(t.ReleaseTimeout.Duration); r.now.Before(stuck) {
		r.wake(stuck)
	} else {
		r.set(ConditionReleaseStuck, "NotGone", left(l, pods, attachments))
	}
	return false
}

// named lists pods and VolumeAttachments.
func named(pods []Pod, attachments []Attachment) string {
	var names []string
	for _, p := range pods {
		names = append(names, "pod "+p.Namespace+"/"+p.Name)
	}
	for _, a := range attachments {
		names = append(names, "volume attachment "+a.Name)
	}
	slices.Sort(names)
	more := ""
	if n := len(names) - maxNamed; n > 0 {
		names, more = names[:maxNamed], fmt.Sprintf(" and %d more", n)
	}
	return strings.Join(names, ", ") + more
}

// left names what a release waits for.
func left(l Load, pods []Pod, attachments []Attachment) string {
	message := "not gone yet: " + named(pods, attachments)
	if len(pods)+len(attachments) == 0 {
		message = "the out-of-service taint is not set yet"
	}
	if !l.PodsKnown || !l.AttachmentsKnown {
		message = "the pods or volume attachments of the node could not be listed"
	}
	return message
}

// afterRelease switches the machine on, and waits for the node to return.
func (r *run) afterRelease() bool {
	s := r.s
	if r.alive() {
		return r.returned()
	}
	s.HealthySince = metav1.MicroTime{}
	switch {
	case s.is(ConditionVerificationFailed) || s.Status == Error || s.Result == Fenced:
		return false // waits for the node or a person
	case s.Status == Running:
		return r.switchOn()
	}
	return r.awaitReturn()
}

// switchOn runs the methods that switch on, after the caches of the controllers have seen that the taint was removed.
func (r *run) switchOn() bool {
	s := r.s
	if r.in.Node.OutOfService {
		s.Untainted = metav1.MicroTime{}
		r.wake(r.now.Add(r.timings().UntaintDelay.Duration))
		return false
	}
	if s.Untainted.IsZero() {
		s.Untainted = metav1.NewMicroTime(r.now)
	}
	if at := s.Untainted.Add(r.timings().UntaintDelay.Duration); r.now.Before(at) {
		r.wake(at)
		return false
	}
	if s.OnRepeats == 0 {
		s.Deadline = metav1.NewMicroTime(r.now.Add(r.timings().ReturnTimeout.Duration))
	}
	switchesOn := len(r.onDevices()) > 0
	if switchesOn && (r.in.Node.Ready == ReadyTrue || !r.leaseAsProven() && r.in.Lease.Known) {
		r.to(PowerManagement, Done, Released, normal(ReasonSwitchedOn, "the machine runs already: the Lease of the node was renewed"))
		return true
	}
	switch r.methods(afterRelease) {
	case waiting:
		return false
	case ended:
		switch {
		case !switchesOn:
			s.Result = Fenced
			r.to(PowerManagement, Done, Released, normal(ReasonFenced, "the plan does not switch the machine on"))
			return true
		case r.offAfterOn(1):
			r.repeatOn()
			return true
		}
		r.to(PowerManagement, Done, Released, normal(ReasonSwitchedOn, "the methods that switch on have ended ("+s.powers()+")"))
	}
	return true
}

// mayClean reports whether the pods that are still bound to the node may be deleted: it was released, nothing was
// switched on since, and neither a device nor the node shows that the machine runs.
func (r *run) mayClean() bool {
	s := r.s
	if s.Step != PowerManagement || s.Phase != Released || s.Proof == nil || s.DryRun || s.OnRepeats > 0 {
		return false
	}
	on := func(a Act) bool { return a.Step == PowerManagement && a.Action == On }
	isOn := func(x Reading) bool { return x.Power == PowerOn }
	if slices.ContainsFunc(s.Acts, on) || slices.ContainsFunc(s.Readings, isOn) {
		return false
	}
	return Suspect(r.in.Node, r.in.Lease, r.timings(), r.now) && r.leaseAsProven() && r.in.Gate.Open
}

// onDevices returns the devices of the level in use that are switched on.
func (r *run) onDevices() []string {
	s := r.s
	if int(s.Level) >= len(s.Plan.PowerManagement) {
		return nil
	}
	level := Plan{PowerManagement: s.Plan.PowerManagement[s.Level : s.Level+1]}
	return level.devices(On, 0)
}

// verifiedOn reports whether the device was read on after it was switched on, or ProofTimeout is over without.
func (r *run) verifiedOn(m Method, a *Act) bool {
	if a.Outcome.Kind == Refused {
		return true
	}
	last := r.s.last(m.Device)
	over := a.Outcome.Ended.Add(r.timings().ProofTimeout.Duration)
	if last != nil && last.Power == PowerOn || !r.now.Before(over) {
		return true
	}
	r.wake(over)
	r.read([]string{m.Device}, r.s.LastAct.Time, r.timings().ProofInterval.Duration)
	return false
}

// offAfterOn reports whether a device reads off after it was switched on, and may be switched on again.
func (r *run) offAfterOn(readings int) bool {
	if r.s.OnRepeats >= r.timings().Retries {
		return false
	}
	for _, d := range r.onDevices() {
		off := 0
		for _, x := range r.s.Readings {
			if x.Device == d && x.Power == PowerOff {
				off++
			}
		}
		if off >= readings {
			return true
		}
	}
	return false
}

// repeatOn switches on again: a switch-off that its client had given up may have taken effect late.
func (r *run) repeatOn() {
	s := r.s
	s.OnRepeats++
	s.Attempt++
	s.Acts, s.Jobs = nil, nil
	r.to(PowerManagement, Running, Released, warning(ReasonSwitchingOn, "a device reads off after it was switched on ("+s.powers()+"); again"))
}

// awaitReturn waits for the node until ReturnTimeout. A device that reads off is switched on again.
func (r *run) awaitReturn() bool {
	s, t := r.s, r.timings()
	over := s.Deadline.Time // repeated acts do not move it
	if r.now.Before(over) && r.offAfterOn(2) && r.leaseAsProven() && r.in.Node.Ready != ReadyTrue {
		r.repeatOn()
		return true
	}
	if !r.now.Before(over) {
		s.Status = Error
		r.set(ConditionNodeDidNotReturn, "Timeout", "the node is not Ready after "+t.ReturnTimeout.Duration.String()+
			" ("+s.powers()+"); it stays fenced: check the machine's console")
		return false
	}
	r.wake(over)
	interval := t.Settle.Duration
	if r.now.Before(s.LateUntil.Time) {
		interval = t.ProofInterval.Duration
	}
	r.read(r.onDevices(), s.LastAct.Time, interval)
	return false
}
