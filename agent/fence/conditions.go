package fence

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The types of conditions.
const (
	// ConditionStormHold: the gate is closed.
	ConditionStormHold = "StormHold"
	// ConditionWaiting: the node is not certainly dead at this time.
	ConditionWaiting = "Waiting"
	// ConditionKdumpWait: the node's dump kernel is not finished.
	ConditionKdumpWait = "KdumpWait"
	// ConditionIdentityMismatch: a device belongs to another machine, or its UUID does not show to which.
	ConditionIdentityMismatch = "IdentityMismatch"
	// ConditionProofLost: a device reads on, or the node is back, after the proof.
	ConditionProofLost = "ProofLost"
	// ConditionVerificationFailed: the node runs with the boot ID that it had before it was proven off.
	ConditionVerificationFailed = "FenceVerificationFailed"
	// ConditionReleaseStuck: pods or volumes are not gone after ReleaseTimeout.
	ConditionReleaseStuck = "ReleaseStuck"
	// ConditionNodeDidNotReturn: the node is not Ready after ReturnTimeout.
	ConditionNodeDidNotReturn = "NodeDidNotReturn"
	// ConditionNotDrilled: parts of the configuration are not used, because no drill has shown that they are of the node.
	ConditionNotDrilled = "NotDrilled"
	// ConditionGaveUp: attempts or time are used up.
	ConditionGaveUp = "GaveUp"
)

// The reasons of events and of the history.
const (
	ReasonFenceOpened        = "FenceOpened"
	ReasonDrillOpened        = "DrillOpened"
	ReasonDrillRefused       = "DrillRefused"
	ReasonDrillShowed        = "DrillShowed"
	ReasonDrillShowedNothing = "DrillShowedNothing"
	ReasonAttemptStarted     = "AttemptStarted"
	ReasonPowerDelayOver     = "PowerDelayOver"
	ReasonActStarted         = "ActStarted"
	ReasonActEnded           = "ActEnded"
	ReasonActNotSent         = "ActNotSent"
	ReasonRetrying           = "Retrying"
	ReasonNextLevel          = "NextLevel"
	ReasonIsolated           = "Isolated"
	ReasonStorageProven      = "StorageProven"
	ReasonStorageReleased    = "StorageReleased"
	ReasonRebootNeeded       = "RebootNeeded"
	ReasonKdumpStarted       = "KdumpStarted"
	ReasonKdumpFinished      = "KdumpFinished"
	ReasonKdumpReleased      = "KdumpReleased"
	ReasonProving            = "Proving"
	ReasonNotProven          = "NotProven"
	ReasonOffProven          = "OffProven"
	ReasonResetProven        = "ResetProven"
	ReasonConfirmedOff       = "ConfirmedOff"
	ReasonConfirmOffIgnored  = "ConfirmOffIgnored"
	ReasonProofVoid          = "ProofVoid"
	ReasonReleasing          = "Releasing"
	ReasonReleaseInterrupted = "ReleaseInterrupted"
	ReasonReleased           = "Released"
	ReasonWouldRelease       = "WouldRelease"
	ReasonFenced             = "Fenced"
	ReasonSwitchedOn         = "SwitchedOn"
	ReasonSwitchingOn        = "SwitchingOn"
	ReasonNodeReadyUnproven  = "NodeReadyUnproven"
	ReasonNodeReturned       = "NodeReturned"
	ReasonRecovered          = "Recovered"
	ReasonNodeGone           = "NodeGone"
	ReasonMethodFailed       = "MethodFailed"
	ReasonNoMethods          = "NoMethods"
	ReasonNotDrilled         = "NotDrilled"
	ReasonDeviceAnswersAgain = "DeviceAnswersAgain"
	// ReasonDeviceReadsOff is that of ConditionWaiting if a node is Ready whose device reads off.
	ReasonDeviceReadsOff = "DeviceReadsOff"
)

// maxHistory bounds the history of a fence.
const maxHistory = 32

func warning(reason, message string) Event {
	return Event{Warning: true, Reason: reason, Message: message}
}

func normal(reason, message string) Event { return Event{Reason: reason, Message: message} }

// is reports whether a condition is true.
func (s *State) is(condition string) bool {
	return meta.IsStatusConditionTrue(s.Conditions, condition)
}

// set makes a condition true. It reports the event once: when the condition becomes true, or its reason changes.
func (r *run) set(condition, reason, message string) {
	old := meta.FindStatusCondition(r.s.Conditions, condition)
	report := old == nil || old.Status != metav1.ConditionTrue || old.Reason != reason
	r.put(condition, metav1.ConditionTrue, reason, message)
	if report {
		r.note(warning(condition, reason+": "+message))
	}
}

// clear makes a condition that is true false.
func (r *run) clear(conditions ...string) {
	for _, c := range conditions {
		if r.s.is(c) {
			r.put(c, metav1.ConditionFalse, "Ended", "")
		}
	}
}

func (r *run) put(condition string, status metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&r.s.Conditions, metav1.Condition{
		Type: condition, Status: status, Reason: reason, Message: message,
		// Condition times have a precision of a second in JSON.
		LastTransitionTime: metav1.NewTime(r.now.Truncate(time.Second)),
	})
}

// note reports an event and adds it to the history.
func (r *run) note(e Event) {
	if e.Reason == "" {
		return
	}
	s := r.s
	r.orders.Events = append(r.orders.Events, e)
	s.Note(Entry{
		At: metav1.NewMicroTime(r.now), Step: s.Step, Status: s.Status, Phase: s.Phase, Reason: e.Reason, Message: e.Message,
	})
}

// Note adds an entry to the history, in place of the oldest one if there are too many.
func (d *Detail) Note(e Entry) {
	d.History = append(d.History, e)
	if n := len(d.History); n > maxHistory {
		d.History = append([]Entry(nil), d.History[n-maxHistory:]...)
	}
}

// to changes step, status and phase, and reports the change.
func (r *run) to(step StepName, status Status, phase Phase, e Event) {
	if r.s.Step != step {
		r.s.Jobs = nil
	}
	r.s.Step, r.s.Status, r.s.Phase = step, status, phase
	r.s.Since = metav1.NewMicroTime(r.now)
	r.note(e)
}

// would returns what is done now, in the infinitive, or in dry run what would be done.
func (r *run) would(do string) string {
	if r.s.DryRun {
		return "dry run: would " + do
	}
	return do
}
