package kube

import (
	"errors"
	"fmt"
	"time"
)

// NodeState is what evictd-kube maintains on the Node object: conditions and taints. evictd sends
// it at the beginning of each session and at each change. evictd-kube removes what is not in it, as
// far as it belongs to evictd ([NodeConditions]).
type NodeState struct {
	// Number identifies the state: a later one has a higher number, also after a restart of evictd
	// in the same boot. It is not 0.
	Number uint64 `json:"number"`
	// Conditions are those that evictd maintains; empty in dry run. A condition that was
	// maintained before becomes Unknown, and its taint is removed.
	Conditions []NodeCondition `json:"conditions,omitempty"`
	// Stopped is set in the last state of an evictd that stops.
	Stopped bool `json:"stopped,omitempty"`
}

// NodeCondition is a condition of the node.
type NodeCondition struct {
	// Type is a key of NodeConditions.
	Type string `json:"type"`
	// Status is whether the node has the condition. While it does, it has the taint of the
	// condition, with the effect NoSchedule.
	Status bool `json:"status"`
	// Since is when Status last changed, or when this evictd has first known it. So evictd-kube
	// keeps the condition's lastTransitionTime while the Node has the same status, and else sets it
	// to Since: a restart of either side does not change it.
	Since time.Time `json:"since"`
}

// NodeConditionText describes a type of condition: the key of its taint, and the reasons and
// messages of the condition for either status.
type NodeConditionText struct {
	Taint                     string
	TrueReason, TrueMessage   string
	FalseReason, FalseMessage string
}

// NodeConditions are the conditions that belong to evictd, by their types. The kubelet overwrites
// its own types and taints when others write them.
var NodeConditions = map[string]NodeConditionText{
	"EvictdMemoryPressure": {
		"evictd.io/memory-pressure",
		"EvictdHasInsufficientMemory", "evictd has found insufficient memory available",
		"EvictdHasSufficientMemory", "evictd has found sufficient memory available",
	},
	"EvictdDiskPressure": {
		"evictd.io/disk-pressure",
		"EvictdHasDiskPressure", "evictd has found disk pressure",
		"EvictdHasNoDiskPressure", "evictd has found no disk pressure",
	},
	"EvictdPIDPressure": {
		"evictd.io/pid-pressure",
		"EvictdHasInsufficientPID", "evictd has found insufficient process IDs available",
		"EvictdHasSufficientPID", "evictd has found sufficient process IDs available",
	},
	"EvictdNodeShutdown": {
		"evictd.io/node-shutdown",
		"EvictdShutsDown", "evictd stops the pods because the node shuts down",
		"EvictdDoesNotShutDown", "the node does not shut down",
	},
}

// NodeReport answers a NodeState.
type NodeReport struct {
	// Number is that of the newest NodeState that was written in full; 0 for none.
	Number uint64 `json:"number"`
	// Why is the reason if a newer one is not written, in one line with the remedy.
	Why string `json:"why,omitempty"`
	// Refused is set if it can't be for minutes: a right is missing, or the API server refuses it.
	Refused bool `json:"refused,omitempty"`
}

// ReadKubelet asks for the kubelet's configuration. evictd sends it at the beginning of each
// session, and when a kubelet was started.
type ReadKubelet struct {
	// Certificates are those that the kubelet serves with (PEM), as evictd has read them in the
	// kubelet's directory; empty if it could not. evictd-kube sends its token only to a server that
	// has one of them, or one of the cluster's CA.
	Certificates string `json:"certificates,omitempty"`
}

// KubeletConfiguration is the part of a kubelet's configuration that concerns evictd, as the kubelet
// answers it (/configz). Durations and amounts are as there.
type KubeletConfiguration struct {
	// Error is why it is not known, in one line with the remedy; then nothing else is set.
	Error string `json:"error,omitempty"`

	EvictionHard                     map[string]string        `json:"evictionHard,omitempty"`
	EvictionSoft                     map[string]string        `json:"evictionSoft,omitempty"`
	EvictionSoftGracePeriod          map[string]string        `json:"evictionSoftGracePeriod,omitempty"`
	EvictionMinimumReclaim           map[string]string        `json:"evictionMinimumReclaim,omitempty"`
	EvictionPressureTransitionPeriod string                   `json:"evictionPressureTransitionPeriod,omitempty"`
	EvictionMaxPodGracePeriod        int32                    `json:"evictionMaxPodGracePeriod,omitempty"`
	KubeReserved                     map[string]string        `json:"kubeReserved,omitempty"`
	SystemReserved                   map[string]string        `json:"systemReserved,omitempty"`
	EnforceNodeAllocatable           []string                 `json:"enforceNodeAllocatable,omitempty"`
	ShutdownGracePeriod              string                   `json:"shutdownGracePeriod,omitempty"`
	ShutdownGracePeriodCriticalPods  string                   `json:"shutdownGracePeriodCriticalPods,omitempty"`
	ShutdownGracePeriodByPodPriority []PriorityShutdownPeriod `json:"shutdownGracePeriodByPodPriority,omitempty"`
	CgroupDriver                     string                   `json:"cgroupDriver,omitempty"`
	CgroupRoot                       string                   `json:"cgroupRoot,omitempty"`
	CgroupsPerQOS                    *bool                    `json:"cgroupsPerQOS,omitempty"`
	LocalStorageCapacityIsolation    *bool                    `json:"localStorageCapacityIsolation,omitempty"`
	PodPidsLimit                     int64                    `json:"podPidsLimit,omitempty"`
}

// PriorityShutdownPeriod is how long the kubelet waits for pods of a priority and above.
type PriorityShutdownPeriod struct {
	Priority                   int32 `json:"priority"`
	ShutdownGracePeriodSeconds int64 `json:"shutdownGracePeriodSeconds"`
}

// ShutsDown reports whether the kubelet itself stops the pods when the node shuts down
// (pkg/kubelet/nodeshutdown/nodeshutdown_manager_linux.go).
func (c *KubeletConfiguration) ShutsDown() bool {
	period, err := time.ParseDuration(c.ShutdownGracePeriod)
	return err == nil && period > 0 || len(c.ShutdownGracePeriodByPodPriority) > 0
}

// maxCertificates and maxEntries bound what the peer sends.
const maxCertificates, maxEntries = 16 << 10, 64

// check validates a state from evictd.
func (s *NodeState) check() error {
	if s.Number == 0 {
		return errors.New("node state without a number")
	}
	seen := map[string]bool{}
	for _, c := range s.Conditions {
		if _, known := NodeConditions[c.Type]; !known || seen[c.Type] {
			return fmt.Errorf("node state with the condition %.60q, which is unknown or there twice", c.Type)
		}
		seen[c.Type] = true
	}
	return nil
}

// check validates a report from evictd-kube.
func (r *NodeReport) check() error {
	if !isPrintable(r.Why, maxWhy) {
		return errors.New("node report with a reason that can't be printed or is too long")
	}
	return nil
}
