package fence

import "time"

// Inputs are what was observed for a fence, just now and not from a cache.
type Inputs struct {
	// Asked is when the controller began to read them, zero for now. An API server may take seconds for each answer.
	Asked time.Time
	Node  Node
	Lease Lease
	Load  Load
	// Outcomes are those of acts of this controller that have ended.
	Outcomes []Outcome
	// Readings are new readings of the node's devices.
	Readings []Reading
	// InFlight is the id of the intent that this controller is executing now, empty if none.
	InFlight string
	// IntentSince is since when this controller has seen the intent without executing it, counted back from now by a clock
	// that is not set; zero if it is not known.
	IntentSince time.Time
	// Executor identifies this controller.
	Executor string
	// Gate is the verdict on new acts.
	Gate Gate
	// Kdump is what the dump kernel of the node has sent.
	Kdump Kdump
	// Watchdog is what the node has said of its hardware watchdog.
	Watchdog WatchdogFacts
}

// WatchdogFacts are what a node has said of the hardware watchdog that resets it when it is cut off.
type WatchdogFacts struct {
	// Advert is what it said last, empty if it said nothing.
	Advert string
	// Armed says that the advert is one of a hardware watchdog that is armed; Why says why not.
	Armed bool
	Why   string
	// BootID is the boot that the advert is about.
	BootID string
	// Bound is the time after which the watchdog has reset the machine, and Unchanged for how long the controller has seen,
	// by a clock that can't be set, that neither advert nor Lease changed, while it reached the API server and more than
	// half of all nodes kept their Leases fresh.
	Bound, Unchanged time.Duration
}

// Kdump is what a listener received of the datagrams of fence_kdump_send from a node. Anyone can forge them.
type Kdump struct {
	// Since is since when the listener has listened without a gap, zero if none listens.
	Since time.Time
	// First and Last are when the first and the last datagram of a session came, zero if there was none.
	First, Last time.Time
	// Datagrams is how many came in the session.
	Datagrams int
}

// Ready is the status of a node's Ready condition.
type Ready string

// The values of Ready. A Node without the condition is ReadyUnknown.
const (
	ReadyTrue    Ready = "True"
	ReadyFalse   Ready = "False"
	ReadyUnknown Ready = "Unknown"
)

// Node is a Node object.
type Node struct {
	Found bool
	Name  string
	UID   string
	Ready Ready
	// ReadySince is when Ready changed last.
	ReadySince   time.Time
	BootID       string
	SystemUUID   string
	Zone         string
	ControlPlane bool
	// Unschedulable says that the node is cordoned.
	Unschedulable bool
	// ConfirmOff is the value of the annotation evictd.io/confirm-off: the UID of a fence.
	ConfirmOff string
	// Quarantined and OutOfService say that the Node has these taints, and that they are ours.
	Quarantined, OutOfService bool
}

// Lease is the Lease of a node in kube-node-lease.
type Lease struct {
	// Known is false if it could not be read.
	Known bool
	// Found is false if there is none: such a node is never fenced.
	Found   bool
	Renewed time.Time
	// UnchangedSince is when the controller first saw this renewTime, by its own clock.
	UnchangedSince time.Time
}

// Load is what is bound to a node.
type Load struct {
	PodsKnown        bool
	Pods             []Pod
	AttachmentsKnown bool
	Attachments      []Attachment
}

// Pod is a pod that is bound to the node.
type Pod struct {
	UID, Namespace, Name string
	// Tolerates says that the out-of-service taint does not evict it.
	Tolerates                      bool
	Mirror, DaemonSet, StatefulSet bool
	Terminating                    bool
	// Volumes are those that outlive the pod.
	Volumes []Volume
}

// Volume is where a volume is stored. Both are empty if that is not known.
type Volume struct {
	// Driver is the name of its CSI driver, Class that of its StorageClass.
	Driver, Class string
}

// Attachment is a VolumeAttachment of the node.
type Attachment struct {
	UID, Name string
	Volume    Volume
	// Pods are the UIDs of the pods of the node that use the volume.
	Pods []string
	// KeptByPod says that a pod which tolerates the out-of-service taint uses the volume.
	KeptByPod bool
}

// Gate is the verdict on irreversible acts, the release among them: storm policy, control plane, pauses.
type Gate struct {
	Open bool
	// Reason is the reason for a closed gate in one word, Message the numbers.
	Reason, Message string
	// Storm says that the gate is closed because too many nodes are unhealthy.
	Storm bool
	// Withheld says that the gate is closed for any act, also one that switches on: by a person, by another remediator, or
	// because of the place of the controller. A release that has begun is interrupted, and begins again with a reading.
	Withheld bool
	// Overridable says that a person who confirms that the machine is off opens the gate for the release.
	Overridable bool
	// StormUntil and RateFull are what Step records: the end of the cooldown after this storm, and when the rate is full
	// again after the fence has begun. Zero if there is nothing to record.
	StormUntil, RateFull time.Time
}

// Orders are what the controller does after it has saved the state.
type Orders struct {
	// Act is the new intent.
	Act *Intent
	// Read are the devices that are read now, each in a session of its own.
	Read []string
	// Taints are the taints that the Node must have from now on.
	Taints Taints
	// Delete are the pods that are deleted without grace, by UID.
	Delete []Pod
	// Detach are the VolumeAttachments that are deleted, by UID, because the node is cut off from their storage.
	Detach []Attachment
	// Drilled is what a drill that has ended has shown, empty if nothing. It is kept before the state is saved: the state
	// is that of an ended fence, which no Step follows.
	Drilled string
	// Events are reported at the Node and in the log.
	Events []Event
	// Wake is when Step must be called again at the latest; zero if nothing is due.
	Wake time.Time
}

// Taints says which of the controller's taints a Node must have.
type Taints struct {
	// Quarantine is evictd.io/fencing:NoSchedule.
	Quarantine bool
	// OutOfService is node.kubernetes.io/out-of-service=nodeshutdown:NoExecute.
	OutOfService bool
}

// Event is a change that is reported.
type Event struct {
	Warning         bool
	Reason, Message string
}
