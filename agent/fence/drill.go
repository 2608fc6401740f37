package fence

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// OpenDrill begins the drill of a node: the fence of a healthy node that runs nothing, which a person asked for. It
// shows that the devices of the plan belong to the node, and how long a fence takes. It has one attempt, and neither
// isolates nor undoes an isolation.
//
// Only switching off differs from another fence: it needs a node that is Ready, cordoned and empty. What follows is the
// same: proof, release and return.
func OpenDrill(n Node, l Lease, p Plan, now time.Time) (State, Orders) {
	p.Isolation, p.Recovery, p.Kdump, p.Timings.Retries = nil, nil, "", 0
	s := newState(n, l, p, now)
	s.Drill = true
	r := run{s: &s, in: &Inputs{Node: n, Lease: l}, now: s.Created.Time}
	r.to(PowerManagement, New, "", warning(ReasonDrillOpened, "drill: the machine of the node is switched off if the node is healthy, cordoned and empty"))
	r.wake(r.now)
	return s, r.finish()
}

// drills reports whether a drill has not yet switched everything off, or waits until the node is seen to be off.
func (r *run) drills() bool {
	s := r.s
	switch {
	case !s.Drill || s.Step != PowerManagement || s.is(ConditionGaveUp) || s.is(ConditionVerificationFailed):
		return false
	case s.Phase == Proving:
		// The Ready condition and the Lease of a machine that was switched off are out of date for a while. A fence begins
		// when they are not.
		return !Suspect(r.in.Node, r.in.Lease, r.timings(), r.now) && r.now.Before(r.lossSeen())
	}
	return s.Phase == "" && (s.Status == New || s.Status == Running)
}

// lossSeen returns when a node that was switched off is not Ready at the latest: an act may take effect until LateUntil,
// and kube-controller-manager needs as long as the Lease to become old. A machine that reads on then is not off.
func (r *run) lossSeen() time.Time {
	late := r.s.LateUntil.Time
	for _, x := range r.s.Readings {
		if x.Power == PowerOn {
			return late
		}
	}
	return late.Add(2 * r.timings().Grace.Duration)
}

// drill begins a drill, switches off, or waits until the node is not Ready. It reports whether more may follow at once.
func (r *run) drill() bool {
	s := r.s
	if s.Phase == Proving {
		r.wake(r.lossSeen())
		r.read(s.powerDevices(), s.LastAct.Time, r.timings().ProofInterval.Duration)
		return false
	}
	if !s.acted() {
		why := Undrillable(r.in.Node, r.in.Load, false)
		if why == "" && !r.gateOpen() {
			why = r.in.Gate.Message
		}
		if why != "" {
			r.refuse(why)
			return false
		}
		if !r.alive() {
			return r.awaitRenewal()
		}
		r.clear(ConditionWaiting)
	}
	if s.Status == New {
		return r.begin()
	}
	return r.powerOff()
}

// awaitRenewal waits until the Lease is renewed, so that the kubelet is known to run.
func (r *run) awaitRenewal() bool {
	over := r.s.Since.Add(r.timings().Grace.Duration)
	if !r.now.Before(over) {
		r.refuse("the Lease of the node is not renewed")
		return false
	}
	r.set(ConditionWaiting, "LeaseNotWatched", "the drill begins when the Lease of the node is renewed")
	r.wake(over)
	return false
}

// Undrillable returns why the machine of a node must not be switched off for a drill, empty if it may be: the node is
// Ready before the first act, cordoned, and runs nothing that a drain would move away.
func Undrillable(n Node, l Load, acted bool) string {
	switch {
	case n.Ready != ReadyTrue && !acted:
		return "the node is not Ready"
	case !n.Unschedulable:
		return "the node is not cordoned"
	case !l.PodsKnown || !l.AttachmentsKnown:
		return "the pods or volume attachments of the node could not be listed"
	}
	if pods := l.movable(); len(pods)+len(l.Attachments) > 0 {
		return "the node is not empty: it has " + named(pods, l.Attachments)
	}
	return ""
}

// movable returns the pods that a drain moves to other nodes: those that are neither of a DaemonSet nor static.
func (l Load) movable() []Pod {
	var pods []Pod
	for _, p := range l.Pods {
		if !p.DaemonSet && !p.Mirror {
			pods = append(pods, p)
		}
	}
	return pods
}

// refuse ends a drill before anything was switched off.
func (r *run) refuse(why string) {
	s := r.s
	s.Result = DrillRefused
	s.FinishedAt = metav1.NewMicroTime(r.now)
	r.clear(ConditionStormHold, ConditionWaiting)
	r.to(s.Step, Done, "", warning(ReasonDrillRefused, fmt.Sprintf("the drill is refused, nothing was switched off: %s", why)))
}
