package fence

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// StepName is a step of a fence.
type StepName string

// The steps, in order.
const (
	Isolation       StepName = "Isolation"
	PowerManagement StepName = "Power-Management"
	Recovery        StepName = "Recovery"
)

// Status is how far a step is.
type Status string

// The statuses of a step.
const (
	New     Status = "New"
	Running Status = "Running"
	Done    Status = "Done"
	Error   Status = "Error"
)

// Phase is how far the release of a node's pods and volumes is. It is empty before the acts of the step
// Power-Management have ended.
//
// +kubebuilder:validation:Enum=Proving;OffProven;Releasing;Released
type Phase string

// The phases, in order. In Proving the devices are read; in OffProven they are read once more; in Releasing the Node
// has the out-of-service taint; in Released the pods and volumes are gone and the taint is removed.
const (
	Proving   Phase = "Proving"
	OffProven Phase = "OffProven"
	Releasing Phase = "Releasing"
	Released  Phase = "Released"
)

// State is one fence. The controller saves Progress and Detail in a NodeFence object.
type State struct {
	UID     string // of the NodeFence object; identifies the fence
	Node    string
	Created metav1.MicroTime
	Progress
	Detail
}

// Progress is the part of a fence that lies at the top level of a NodeFence.
//
// +kubebuilder:object:generate=true
type Progress struct {
	// Step is the current step: Isolation, Power-Management or Recovery.
	Step StepName `json:"step"`
	// Status is the status of the step: New, Running, Done or Error.
	Status Status `json:"status"`
	// Retries is how often a step was begun again after an error.
	Retries int32 `json:"retries"`
	// Jobs are the names of the jobs that execute the methods of the step.
	// +listType=atomic
	Jobs []string `json:"jobs,omitempty"`
}

// Detail is the part of a fence that lies in the field state of a NodeFence.
//
// +kubebuilder:object:generate=true
type Detail struct {
	// Target is the node as it was when the fence was created.
	Target Target `json:"target"`
	// Plan has the methods as they were configured when the fence was created.
	Plan Plan `json:"plan"`
	// DryRun says that the fence was decided on without any act.
	DryRun bool `json:"dryRun,omitempty"`
	// Drill says that a person asked to fence a healthy node.
	Drill bool `json:"drill,omitempty"`
	// Shows identifies what the drill shows once the node is back with a new boot ID. See [DrillDigest].
	Shows string `json:"shows,omitempty"`
	// Phase is how far the release of pods and volumes is.
	Phase Phase `json:"phase,omitempty"`
	// Since is when step, status or phase changed last.
	Since metav1.MicroTime `json:"since"`
	// Attempt counts the attempts, from 1; 0 before the first act.
	Attempt int32 `json:"attempt,omitempty"`
	// Level is the index of the level of methods in use.
	Level int32 `json:"level,omitempty"`
	// Intent is the act in flight: saved before it begins, removed with its outcome.
	Intent *Intent `json:"intent,omitempty"`
	// Acts are the ended acts of this attempt.
	// +listType=atomic
	Acts []Act `json:"acts,omitempty"`
	// IntentSeen is when the controller IntentSeenBy first found the intent without an executor: its own clock, because
	// that of the controller which issued the intent may differ.
	IntentSeen   metav1.MicroTime `json:"intentSeen,omitzero"`
	IntentSeenBy string           `json:"intentSeenBy,omitempty"`
	// LastAct is when the last act on a device ended, or the deadline of one whose outcome is unknown.
	LastAct metav1.MicroTime `json:"lastAct,omitzero"`
	// LateUntil is until when an act may still take effect: the last deadline and Settle.
	LateUntil metav1.MicroTime `json:"lateUntil,omitzero"`
	// LastOn is when a device was read on last.
	LastOn metav1.MicroTime `json:"lastOn,omitzero"`
	// Readings are the readings that can become part of the proof.
	// +listType=atomic
	Readings []Reading `json:"readings,omitempty"`
	// Proof is why the machine is known to be off.
	Proof *Proof `json:"proof,omitempty"`
	// Storage is what is known of the storage that Isolation cuts the node off from.
	Storage *StorageFence `json:"storage,omitempty"`
	// ConfirmOff is the value of the annotation evictd.io/confirm-off that was dealt with: each value counts once.
	ConfirmOff string `json:"confirmOff,omitempty"`
	// Untainted is when the Node was first seen without the out-of-service taint after the release.
	Untainted metav1.MicroTime `json:"untainted,omitzero"`
	// OnRepeats is how often the machine was switched on again.
	OnRepeats int32 `json:"onRepeats,omitempty"`
	// PowerAt is when Power-Management begins: PowerDelay after Isolation ended first.
	PowerAt metav1.MicroTime `json:"powerAt,omitzero"`
	// FirstOff is when Power-Management ordered to switch off first.
	FirstOff metav1.MicroTime `json:"firstOff,omitzero"`
	// Kdump is the session of the node's dump kernel. A fence has one at most.
	Kdump *KdumpSession `json:"kdump,omitempty"`
	// Resumed says that the one attempt after GaveUp, for a device that answers again, was begun.
	Resumed bool `json:"resumed,omitempty"`
	// Deadline is when the attempts end.
	Deadline metav1.MicroTime `json:"deadline,omitzero"`
	// Storm is what the storm policy must remember.
	Storm StormRecord `json:"storm,omitzero"`
	// NextAttempt is when the step begins again after an error.
	NextAttempt metav1.MicroTime `json:"nextAttempt,omitzero"`
	// HealthySince is since when the node is Ready again.
	HealthySince metav1.MicroTime `json:"healthySince,omitzero"`
	// FinishedAt is when the fence ended.
	FinishedAt metav1.MicroTime `json:"finishedAt,omitzero"`
	// Result is how the fence ended.
	Result Result `json:"result,omitempty"`
	// Conditions tell what the fence waits for and what went wrong.
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// History has the last changes, oldest first, at most 32.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	History []Entry `json:"history,omitempty"`
}

// Result is how a fence ended.
//
// +kubebuilder:validation:Enum=Recovered;Fenced;NodeGone;Refused
type Result string

// The results. A fence that is GaveUp is not finished: a person, or a device that answers again, continues it.
const (
	Recovered Result = "Recovered" // the node is Ready again
	Fenced    Result = "Fenced"    // off and released; the plan does not switch it on
	NodeGone  Result = "NodeGone"  // the Node object was deleted or replaced
	// DrillRefused is a drill that did not begin.
	DrillRefused Result = "Refused"
)

// Target is a node as it was when its fence was created.
//
// +kubebuilder:object:generate=true
type Target struct {
	// UID is the UID of the Node object.
	UID string `json:"uid"`
	// SystemUUID is nodeInfo.systemUUID.
	SystemUUID string `json:"systemUUID,omitempty"`
	// BootID is nodeInfo.bootID.
	BootID string `json:"bootID,omitempty"`
	// Zone is region and zone.
	Zone string `json:"zone,omitempty"`
	// ControlPlane says that the node is one of the control plane.
	ControlPlane bool `json:"controlPlane,omitempty"`
	// LeaseRenewed is the renewTime of the node's Lease.
	LeaseRenewed metav1.MicroTime `json:"leaseRenewed,omitzero"`
}

// Intent is an act that was saved before it began.
//
// +kubebuilder:object:generate=true
type Intent struct {
	// ID is unique for a fence.
	ID string `json:"id"`
	// Attempt is the attempt that the act belongs to.
	Attempt int32 `json:"attempt"`
	// Step is the step that the act belongs to.
	// +kubebuilder:validation:Enum=Isolation;Power-Management;Recovery
	Step StepName `json:"step"`
	// Level is the index of the level.
	Level int32 `json:"level"`
	// Index is the index of the method in its level.
	Index int32 `json:"index"`
	// Method is the name of the method.
	Method string `json:"method"`
	// Action is what is done.
	Action Action `json:"action"`
	// Executor identifies the controller that does it.
	Executor string `json:"executor"`
	// Issued is when the intent was decided on.
	Issued metav1.MicroTime `json:"issued"`
	// Deadline is when the act is killed.
	Deadline metav1.MicroTime `json:"deadline"`
}

// OutcomeKind says how an act ended.
//
// +kubebuilder:validation:Enum=Succeeded;Failed;Unknown;Refused
type OutcomeKind string

// The outcomes. Succeeded is what the device said, and no proof.
const (
	Succeeded OutcomeKind = "Succeeded"
	Failed    OutcomeKind = "Failed"  // the device answered with an error, and did nothing
	Unknown   OutcomeKind = "Unknown" // no answer: it may have been done, or be done later
	Refused   OutcomeKind = "Refused" // evictd did not send it: another machine, or no longer wanted
)

// Outcome is how an act ended.
//
// +kubebuilder:object:generate=true
type Outcome struct {
	// Intent is the id of the intent.
	Intent string `json:"intent"`
	// Kind is how it ended.
	Kind OutcomeKind `json:"kind"`
	// Message says why, without secrets.
	Message string `json:"message,omitempty"`
	// Ended is when it ended.
	Ended metav1.MicroTime `json:"ended"`
}

// Act is an ended act.
//
// +kubebuilder:object:generate=true
type Act struct {
	Intent  `json:",inline"`
	Outcome Outcome `json:"outcome"`
}

// Power is the state of a machine's power, as a device reports it.
//
// +kubebuilder:validation:Enum=On;Off;Unknown
type Power string

// The states of power. A device that does not answer reports PowerUnknown.
const (
	PowerOn      Power = "On"
	PowerOff     Power = "Off"
	PowerUnknown Power = "Unknown"
)

// Reading is a status that was read from a device, in a session of its own.
//
// +kubebuilder:object:generate=true
type Reading struct {
	// Device is [Method.Device].
	Device string `json:"device"`
	// Power is what the device reports.
	Power Power `json:"power"`
	// UUID identifies the machine, as the device reports it; empty if it does not.
	UUID string `json:"uuid,omitempty"`
	// Error says why the power is unknown, without secrets.
	Error string `json:"error,omitempty"`
	// Answered says that the device answered, although its power is unknown.
	Answered bool `json:"answered,omitempty"`
	// Started is when the reading began.
	Started metav1.MicroTime `json:"started"`
	// Ended is when it ended.
	Ended metav1.MicroTime `json:"ended"`
}

// Proof is why a machine is known to be off.
//
// +kubebuilder:object:generate=true
type Proof struct {
	// How is readings, confirmed by a person, or the node's watchdog.
	How ProofKind `json:"how"`
	// By is the person, if it is known.
	By string `json:"by,omitempty"`
	// Readings are two readings of each power device.
	// +listType=atomic
	Readings []Reading `json:"readings,omitempty"`
	// Watchdog is what the node said of its watchdog, if that is the proof.
	Watchdog string `json:"watchdog,omitempty"`
	// LeaseRenewed is the renewTime of the Lease at the time of the proof.
	LeaseRenewed metav1.MicroTime `json:"leaseRenewed,omitzero"`
	// At is when it was proven.
	At metav1.MicroTime `json:"at"`
}

// StorageFence is what is known of the storage that a node was cut off from.
//
// +kubebuilder:object:generate=true
type StorageFence struct {
	// Readings are of each device the first and the last reading off, or the last one if that is not off.
	// +listType=atomic
	Readings []Reading `json:"readings,omitempty"`
	// On is when a device was read on last.
	On metav1.MicroTime `json:"on,omitzero"`
	// Proven is when the readings proved that the node is cut off, zero while they do not.
	Proven metav1.MicroTime `json:"proven,omitzero"`
	// Released is when the first pods were released for it. From then on the isolation may be undone only after the
	// machine has booted again.
	Released metav1.MicroTime `json:"released,omitzero"`
}

// KdumpSession is what the dump kernel of a node has sent. It proves nothing: anyone can send it.
//
// +kubebuilder:object:generate=true
type KdumpSession struct {
	// Phase is how far the session is.
	Phase KdumpPhase `json:"phase"`
	// Started is when the first datagram came, or when the node ceased to be Ready if that was later.
	Started metav1.MicroTime `json:"started"`
	// Last is when the last datagram came that the controller took.
	Last metav1.MicroTime `json:"last"`
	// Datagrams is how many came at least: one controller does not know what another one received.
	Datagrams int32 `json:"datagrams"`
	// Heard are the first and the last datagram of the session that came after the Lease was renewed last, while the node
	// was not Ready. With two of them the pods may be released if the plan says so.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=2
	Heard []metav1.MicroTime `json:"heard,omitempty"`
	// Released is when the first pods were released for it, without a proof.
	Released metav1.MicroTime `json:"released,omitzero"`
	// Finished is when the session ended: after 30 s without a datagram, or when switching off waits no longer for it.
	Finished metav1.MicroTime `json:"finished,omitzero"`
}

// KdumpPhase is how far a session is.
//
// +kubebuilder:validation:Enum=Started;Dumping;Finished
type KdumpPhase string

// The phases, in order.
const (
	KdumpStarted  KdumpPhase = "Started"
	KdumpDumping  KdumpPhase = "Dumping" // more than one datagram came
	KdumpFinished KdumpPhase = "Finished"
)

// ProofKind is the kind of a proof.
//
// +kubebuilder:validation:Enum=Readings;Confirmed;Watchdog
type ProofKind string

// The kinds of proof.
const (
	ByReadings ProofKind = "Readings"
	Confirmed  ProofKind = "Confirmed"
	ByWatchdog ProofKind = "Watchdog" // the boot that the node had has ended
)

// Entry is a change of a fence.
//
// +kubebuilder:object:generate=true
type Entry struct {
	// At is when it changed.
	At metav1.MicroTime `json:"at"`
	// Step is the step after the change.
	// +kubebuilder:validation:Enum=Isolation;Power-Management;Recovery
	Step StepName `json:"step"`
	// Status is the status after the change.
	// +kubebuilder:validation:Enum=New;Running;Done;Error
	Status Status `json:"status"`
	// Phase is the phase after the change.
	Phase Phase `json:"phase,omitempty"`
	// Reason is the reason in one word, as in the event of the change.
	Reason string `json:"reason"`
	// Message says what happened.
	Message string `json:"message,omitempty"`
}
