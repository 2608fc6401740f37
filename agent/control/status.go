package control

import (
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
)

// Status is the state of evictd and its node at one instant. Here and in [Shutdown] some
// JSON names differ from the fields': they are a public interface and stay when a field
// is renamed.
type Status struct {
	Version string    `json:"version"`
	PID     int       `json:"pid"`
	Started time.Time `json:"started"`
	// At is when the status was taken; all ages are relative to it.
	At time.Time `json:"at"`
	// Ready reports whether all checks of /readyz pass; Missing lists those that
	// fail.
	Ready   bool               `json:"ready"`
	Missing List[string]       `json:"missing"`
	Mode    Mode               `json:"mode"`
	Node    Node               `json:"node"`
	Signals List[SignalStatus] `json:"signals"`
	// Conditions are the node's present conditions, sorted.
	Conditions List[signal.Condition] `json:"conditions"`
	Runtime    Runtime                `json:"runtime"`
	// Kubernetes is the connection to evictd-kube; absent if none is configured.
	Kubernetes *Kubernetes `json:"kubernetes,omitempty"`
	// SelfFencing is the watchdog of a node that fences itself; absent if it does not.
	SelfFencing *SelfFencing `json:"selfFencing,omitempty"`
	Lanes       List[Lane]   `json:"lanes"`
	// Layout is the layout of the filesystems: single, imagefs or split, and empty
	// while unknown.
	Layout      string           `json:"layout"`
	Filesystems List[Filesystem] `json:"filesystems"`
	Pods        Pods             `json:"pods"`
	// Victims are the pods whose eviction is in progress.
	Victims List[evict.Victim] `json:"victims"`
	// DryRunVictims are the pods that dry run counts as gone.
	DryRunVictims List[DryRunVictim] `json:"wouldBeVictims"`
	// Futile lists the signals that evictions can't bring above their thresholds.
	Futile List[evict.Futility] `json:"futile"`
	// Records are the last evictions, the oldest first.
	Records List[evict.Record] `json:"records"`
	// Reclaims are the last completed node-level reclaims, the oldest first. Those
	// for disks survive a restart.
	Reclaims List[Reclaim] `json:"reclaims"`
	// Shutdown is the plan or progress of a node shutdown, without its groups.
	Shutdown Shutdown     `json:"shutdown"`
	Config   Config       `json:"config"`
	Warnings List[string] `json:"warnings"`
}

// Mode is whether evictd enforces its decisions.
type Mode struct {
	DryRun bool `json:"dryRun"`
	// Why lists every reason for dry run in words; it is empty if evictd enforces.
	Why List[string] `json:"why"`
	// Reporting is set if evictd enforces next to a kubelet because evictd-kube reports the
	// evictions of its pods to the API server.
	Reporting bool `json:"reporting,omitempty"`
}

// Node is the machine and the filesystems from which evictd reads it.
type Node struct {
	Name     string `json:"name"`
	ProcFS   string `json:"procfs"`
	CgroupFS string `json:"cgroupfs"`
	// CgroupVersion is the hierarchy of the memory controller: v1, v2 or hybrid.
	CgroupVersion string `json:"cgroupVersion"`
}

// Runtime is the connection to the container runtime.
type Runtime struct {
	Endpoint string `json:"endpoint,omitempty"`
	// DeclaredAbsent reports whether the configuration states that the node has no
	// runtime.
	DeclaredAbsent bool   `json:"declaredAbsent"`
	Connected      bool   `json:"connected"`
	Name           string `json:"name,omitempty"`
	Version        string `json:"version,omitempty"`
	// Error is why it is not connected, or the last error.
	Error string `json:"error,omitempty"`
	// LastSync is when the list of pods was last complete; absent if never.
	LastSync time.Time `json:"lastSync,omitzero"`
}

// Lane is the status of one source of alarms.
type Lane struct {
	Name string `json:"name"`
	Up   bool   `json:"up"`
	// State is starting, up, degraded, off or unavailable.
	State string `json:"state"`
	// Why is why the lane is not up or, if it is up, which part of it has failed; empty
	// if all of it works.
	Why string `json:"why,omitempty"`
	// Since is when the lane entered its state; absent if unknown.
	Since time.Time `json:"since,omitzero"`
	// PeriodSeconds is the present sampling period; null for a lane that does not
	// sample.
	PeriodSeconds *float64 `json:"periodSeconds"`
	// Raised counts the lane's alarms, Missed the crossings without its alarm, and
	// Reopened how often it was closed after a fault and opened again.
	Raised   uint64 `json:"raised"`
	Missed   uint64 `json:"missed"`
	Reopened uint64 `json:"reopened"`
}

// Filesystem is a filesystem that signals are about. Unknown values are null or
// absent.
type Filesystem struct {
	Name string `json:"name"` // nodefs, imagefs or containerfs
	// Path is the directory that statfs(2) is called on. Mountpoint, Type and
	// Device are those of its mount.
	Path       string `json:"path,omitempty"`
	Mountpoint string `json:"mountpoint,omitempty"`
	Type       string `json:"type,omitempty"`
	Device     string `json:"device,omitempty"`
	ReadOnly   bool   `json:"readOnly"`
	// AvailableBytes, SizeBytes, InodesFree and Inodes are of the last successful
	// reading. The inodes are null for a filesystem that does not count them.
	AvailableBytes *int64 `json:"availableBytes"`
	SizeBytes      *int64 `json:"sizeBytes"`
	InodesFree     *int64 `json:"inodesFree"`
	Inodes         *int64 `json:"inodes"`
	// AgeSeconds is the age of that reading, PeriodSeconds the planned time between
	// two readings.
	AgeSeconds    *float64 `json:"ageSeconds"`
	PeriodSeconds float64  `json:"periodSeconds"`
	// Error is why its signals can't be read now, or why Path may be outdated.
	Error string `json:"error,omitempty"`
}

// Reclaim is a node-level reclaim: containers, images or memory that evictd
// reclaimed instead of, or before, evicting a pod.
type Reclaim struct {
	// At is when it began.
	At time.Time `json:"at"`
	// Kind is containers, images or memory, Reason pressure, threshold or age.
	Kind   evict.ReclaimKind `json:"kind"`
	Reason string            `json:"reason"`
	Signal signal.Signal     `json:"signal"`
	DryRun bool              `json:"dryRun"`
	// Removed names the removed containers or images, or those that would have been
	// removed. For kind memory it names the pod. Of more than 50 only the first 50
	// are named, and RemovedMore is the number of the others.
	Removed     List[string] `json:"removed"`
	RemovedMore int          `json:"removedMore,omitempty"`
	// Deficit is the amount below the threshold at the start, in the signal's unit;
	// 0 for reason age and for kind memory. Freed is how much more the filesystem
	// had available afterwards, or how much less memory the pod used.
	Deficit     int64   `json:"deficit"`
	Freed       int64   `json:"freed"`
	TookSeconds float64 `json:"tookSeconds"`
	// Note is why nothing was tried, or that this is the rest of an earlier reclaim.
	// Error is what failed.
	Note  string `json:"note,omitempty"`
	Error string `json:"error,omitempty"`
}

// Pods counts the pods on the node.
type Pods struct {
	Count int `json:"count"`
	// Eligible counts those that may be evicted.
	Eligible int `json:"eligible"`
}

// Config is the configuration in force.
type Config struct {
	// Files are the files that it was read from; none means the defaults.
	Files    List[string] `json:"files"`
	LoadedAt time.Time    `json:"loadedAt"`
	// LastReloadError is why the last reload failed; empty if it succeeded.
	LastReloadError string `json:"lastReloadError,omitempty"`
	// Changed lists the fields that the last reload changed.
	Changed List[ConfigChange] `json:"changed"`
	// NeedsRestart lists the fields whose value in the files differs from the one
	// in force, because evictd reads it only at its start.
	NeedsRestart List[string] `json:"needsRestart"`
}

// DryRunVictim is a pod that evictd would have evicted outside dry run. It
// continues to run, and counts as gone until the episode ends.
type DryRunVictim struct {
	Pod   string `json:"pod"`
	UID   string `json:"uid"`
	Cause string `json:"signal"` // the signal, the contention condition, or the limit that the pod exceeded
}

// Records is the response to /v1/records.
type Records struct {
	// Records are the last evictions, the oldest first.
	Records List[evict.Record] `json:"records"`
}
