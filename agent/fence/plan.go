package fence

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Plan is how a node is fenced: the validated configuration, without secrets.
//
// +kubebuilder:object:generate=true
type Plan struct {
	// Isolation cuts the node off from storage. The levels are alternatives, tried in turn.
	// +listType=atomic
	Isolation []Level `json:"isolation,omitempty"`
	// PowerManagement switches the machine off, and on after the release.
	// +listType=atomic
	PowerManagement []Level `json:"powerManagement,omitempty"`
	// Recovery undoes Isolation.
	// +listType=atomic
	Recovery []Level `json:"recovery,omitempty"`
	// Kdump says what datagrams of the node's dump kernel do. Without it, nothing.
	Kdump KdumpMode `json:"kdump,omitempty"`
	// LeftOut says what of the configuration is not used, because no drill has shown that it is of the node.
	// +listType=atomic
	LeftOut []string `json:"leftOut,omitempty"`
	// Timings are the durations of the flow.
	Timings Timings `json:"timings"`
	// Hash identifies the plan.
	Hash string `json:"hash"`
}

// Level is a list of methods that all must succeed, in order.
//
// +kubebuilder:object:generate=true
type Level struct {
	// Methods are the methods. In PowerManagement each off stands before all others.
	// +listType=atomic
	Methods []Method `json:"methods"`
}

// Method is one action of one device.
//
// +kubebuilder:object:generate=true
type Method struct {
	// Name is the name of the method.
	Name string `json:"name"`
	// Agent is the program or the built-in implementation: ipmi, cordon, uncordon or clean-pods.
	Agent string `json:"agent"`
	// Action is what the method does.
	Action Action `json:"action"`
	// Device identifies device and plug: methods with the same Device switch the same power. It is empty if the method
	// acts on the cluster's objects.
	Device string `json:"device"`
	// MustSuccess says that the step fails with the method.
	MustSuccess bool `json:"mustSuccess"`
	// Identity says how the machine is identified: uuid compares the device's UUID with the node's; none does
	// not.
	Identity IdentityCheck `json:"identity"`
	// Unverified says what is done about a device that neither a UUID nor a drill has shown to be of the node. Without
	// it, it proves nothing.
	Unverified Unverified `json:"unverified,omitempty"`
	// SeparatePower says that the device has power of its own: it answers although the outlets of its machine are off.
	SeparatePower bool `json:"separatePower,omitempty"`
	// Executor says where the agent runs. Without it, as a child process of the controller.
	Executor Executor `json:"executor,omitempty"`
	// Releases are CSI drivers and StorageClasses: the storage that the node is cut off from after the method switched
	// off.
	// +listType=atomic
	Releases []string `json:"releases,omitempty"`
	// Deadline bounds one act.
	Deadline metav1.Duration `json:"deadline"`
	// Parameters are those of the agent, without secrets.
	Parameters map[string]string `json:"parameters,omitempty"`
	// Secrets are the names of the Secrets that have the other parameters; later ones override.
	// +listType=atomic
	Secrets []string `json:"secrets,omitempty"`
	// SecretDigest identifies the values in the Secrets that are no passwords or keys, by a hash with the UIDs of the
	// Secrets as its key: a drill does not count after one of them has changed. Only methods that switch off a device that
	// is not compared with the node have it.
	SecretDigest string `json:"secretDigest,omitempty"`
}

// Action is what a method does.
//
// +kubebuilder:validation:Enum=off;on;cordon;uncordon;clean-pods;watchdog
type Action string

// The actions of devices. There is no reboot, cycle or reset: a reboot is off, proof, release, on.
const (
	Off Action = "off"
	On  Action = "on"
)

// The actions on objects of the cluster.
const (
	Cordon    Action = "cordon"     // makes the Node unschedulable
	Uncordon  Action = "uncordon"   // undoes Cordon of the same fence
	CleanPods Action = "clean-pods" // deletes the pods of a node that was released, without grace
)

// Watchdog is the action of a method that does nothing: it waits until the node's own hardware watchdog must have reset
// the machine.
const Watchdog Action = "watchdog"

// OnObjects reports whether the action is one on objects of the cluster, and not on a device.
func (a Action) OnObjects() bool { return a == Cordon || a == Uncordon || a == CleanPods }

// Executor says where the agent of a method runs.
//
// +kubebuilder:validation:Enum=job
type Executor string

// InJob runs the agent in the pod of a Kubernetes Job.
const InJob Executor = "job"

// IdentityCheck says how a machine is identified.
//
// +kubebuilder:validation:Enum=uuid;none
type IdentityCheck string

// The checks.
const (
	CheckUUID IdentityCheck = "uuid"
	CheckNone IdentityCheck = "none"
)

// Unverified says what is done about a device that nothing has shown to be of the node.
//
// +kubebuilder:validation:Enum=accept
type Unverified string

// Accept takes the configuration's word for it.
const Accept Unverified = "accept"

// KdumpMode says what the datagrams of a dump kernel do.
//
// +kubebuilder:validation:Enum=off;delay;release
type KdumpMode string

// The modes.
const (
	KdumpOff   KdumpMode = "off"
	KdumpDelay KdumpMode = "delay" // the machine is switched off after the dump, or after KdumpMaxWait
	// KdumpRelease delays, and releases the pods of the node, without its volumes, as soon as the session is certain.
	KdumpRelease KdumpMode = "release"
)

// Timings are the durations of a fence. See [DefaultTimings].
//
// +kubebuilder:object:generate=true
type Timings struct {
	// Grace is how long a node is not Ready, and its Lease unchanged, before it is fenced.
	Grace metav1.Duration `json:"grace"`
	// PowerDelay is the time from the end of isolation to switching off.
	PowerDelay metav1.Duration `json:"powerDelay"`
	// KdumpMaxWait bounds the time for which datagrams of a dump kernel delay switching off.
	KdumpMaxWait metav1.Duration `json:"kdumpMaxWait,omitzero"`
	// ProofTimeout bounds the time for reading off twice.
	ProofTimeout metav1.Duration `json:"proofTimeout"`
	// ProofInterval is the least time between the two readings of a proof.
	ProofInterval metav1.Duration `json:"proofInterval"`
	// Settle is how long after a deadline a late act may still take effect.
	Settle metav1.Duration `json:"settle"`
	// ReleaseTimeout is when a release that has not ended is reported.
	ReleaseTimeout metav1.Duration `json:"releaseTimeout"`
	// UntaintDelay is the time from the removal of the out-of-service taint to switching on.
	UntaintDelay metav1.Duration `json:"untaintDelay"`
	// ReturnTimeout bounds the time from switching on to Ready.
	ReturnTimeout metav1.Duration `json:"returnTimeout"`
	// HealthyDelay is how long a node that returned must be Ready.
	HealthyDelay metav1.Duration `json:"healthyDelay"`
	// TotalTimeout bounds all attempts.
	TotalTimeout metav1.Duration `json:"totalTimeout"`
	// Backoff is the time before the first repetition after an error. It doubles each time.
	Backoff metav1.Duration `json:"backoff"`
	// Retries bounds the repetitions.
	Retries int32 `json:"retries"`
}

// backoff returns the time before a repetition after so many before it.
func (t Timings) backoff(retries int32) time.Duration { return t.Backoff.Duration << min(retries, 16) }
