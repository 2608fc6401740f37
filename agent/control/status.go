package control

import (
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
)

// Status is what the daemon knows of itself and its node at one instant.
type Status struct {
	Version string    `json:"version"`
	PID     int       `json:"pid"`
	Started time.Time `json:"started"`
	// At is when the status was taken; every age in it ends there.
	At time.Time `json:"at"`
	// Ready reports whether evictd reads everything that it decides by, as /readyz
	// does; Missing lists in words what it lacks.
	Ready   bool               `json:"ready"`
	Missing List[string]       `json:"missing"`
	Mode    Mode               `json:"mode"`
	Node    Node               `json:"node"`
	Signals List[SignalStatus] `json:"signals"`
	// Conditions are those that the node is in, sorted.
	Conditions List[signal.Condition] `json:"conditions"`
	Runtime    Runtime                `json:"runtime"`
	Lanes      List[Lane]             `json:"lanes"`
	// Layout is the layout of the filesystems: single, imagefs or split; empty
	// while it is not known.
	Layout      string           `json:"layout"`
	Filesystems List[Filesystem] `json:"filesystems"`
	Pods        Pods             `json:"pods"`
	// Victims are the pods on their way out.
	Victims List[evict.Victim] `json:"victims"`
	// WouldBeVictims are the pods that dry run counts as gone.
	WouldBeVictims List[WouldBeVictim] `json:"wouldBeVictims"`
	// Futile lists the signals that stay low whatever is evicted.
	Futile List[evict.Futility] `json:"futile"`
	// Records are the last evictions, the oldest first.
	Records List[evict.Record] `json:"records"`
	// Reclaims are the last node-level reclaims that have ended, the oldest first.
	// Those for disks survive a restart.
	Reclaims List[Reclaim] `json:"reclaims"`
	// Shutdown is how evictd stands to a shutdown of the node, without its pods.
	Shutdown Shutdown     `json:"shutdown"`
	Config   Config       `json:"config"`
	Warnings List[string] `json:"warnings"`
}

// Mode tells whether the daemon acts on what it decides.
type Mode struct {
	DryRun bool `json:"dryRun"`
	// Why lists every reason for dry run in words; empty where it acts.
	Why List[string] `json:"why"`
}

// Node is the machine, and where the daemon reads it.
type Node struct {
	Name     string `json:"name"`
	ProcFS   string `json:"procfs"`
	CgroupFS string `json:"cgroupfs"`
	// CgroupVersion is the tree that carries memory: v1, v2 or hybrid.
	CgroupVersion string `json:"cgroupVersion"`
}

// Runtime is the connection to the container runtime.
type Runtime struct {
	Endpoint string `json:"endpoint,omitempty"`
	// DeclaredAbsent tells that the configuration says that there is none.
	DeclaredAbsent bool   `json:"declaredAbsent"`
	Connected      bool   `json:"connected"`
	Name           string `json:"name,omitempty"`
	Version        string `json:"version,omitempty"`
	// Error is why it is not connected, or what went wrong last.
	Error string `json:"error,omitempty"`
	// LastSync is when the list of pods was last complete; absent for never.
	LastSync time.Time `json:"lastSync,omitzero"`
}

// Lane is one of the ways in which the daemon learns of pressure.
type Lane struct {
	Name string `json:"name"`
	Up   bool   `json:"up"`
	// State is starting, up, degraded, off or unavailable.
	State string `json:"state"`
	// Why says what is missing where the lane is not up.
	Why string `json:"why,omitempty"`
	// Since is when it came into its state; absent where that is not known.
	Since time.Time `json:"since,omitzero"`
	// PeriodSeconds is how often a lane that samples does so now; null for one
	// that is notified.
	PeriodSeconds *float64 `json:"periodSeconds"`
	// Raised counts its alarms, Missed those that should have come and did not,
	// Reopened how often it was closed for a fault and tried again.
	Raised   uint64 `json:"raised"`
	Missed   uint64 `json:"missed"`
	Reopened uint64 `json:"reopened"`
}

// Filesystem is one of those that signals are about. What is not known is null
// or absent.
type Filesystem struct {
	Name string `json:"name"` // nodefs, imagefs or containerfs
	// Path is the directory on it that is asked. Mountpoint is where it is
	// mounted, Type what it is, and Device tells one from another.
	Path       string `json:"path,omitempty"`
	Mountpoint string `json:"mountpoint,omitempty"`
	Type       string `json:"type,omitempty"`
	Device     string `json:"device,omitempty"`
	ReadOnly   bool   `json:"readOnly"`
	// AvailableBytes and SizeBytes are of the last reading that succeeded, as are
	// InodesFree and Inodes, which are null where a filesystem counts none.
	AvailableBytes *int64 `json:"availableBytes"`
	SizeBytes      *int64 `json:"sizeBytes"`
	InodesFree     *int64 `json:"inodesFree"`
	Inodes         *int64 `json:"inodes"`
	// AgeSeconds is how old that reading is, PeriodSeconds how long after it the
	// next was to follow.
	AgeSeconds    *float64 `json:"ageSeconds"`
	PeriodSeconds float64  `json:"periodSeconds"`
	// Error is why its signals can't be read now, or why it may have moved.
	Error string `json:"error,omitempty"`
}

// Reclaim is what was removed from the node before a pod had to go, or to keep a
// filesystem from running full.
type Reclaim struct {
	At time.Time `json:"at"`
	// Kind is containers, images or memory, Reason pressure, threshold or age.
	Kind   evict.ReclaimKind `json:"kind"`
	Reason string            `json:"reason"`
	Signal signal.Signal     `json:"signal"`
	DryRun bool              `json:"dryRun"`
	// Removed names what was removed, or would have been; the pod, of memory.
	Removed List[string] `json:"removed"`
	// Deficit is what was missing when it began, in the signal's unit; 0 where it
	// was for age or of memory. Freed is by how much more the filesystem had left
	// afterwards; how much less the pod used, of memory.
	Deficit     int64   `json:"deficit"`
	Freed       int64   `json:"freed"`
	TookSeconds float64 `json:"tookSeconds"`
	// Note says why nothing was tried, Error what went wrong.
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
	// Files are those that it was read from; none means the defaults.
	Files    List[string] `json:"files"`
	LoadedAt time.Time    `json:"loadedAt"`
	// LastReloadError is why the last reload changed nothing; empty where it
	// went well.
	LastReloadError string `json:"lastReloadError,omitempty"`
	// Changed is what the last reload changed.
	Changed List[ConfigChange] `json:"changed"`
	// NeedsRestart names the fields whose value in the files differs from the
	// one in force, because it is only read when evictd starts.
	NeedsRestart List[string] `json:"needsRestart"`
}

// WouldBeVictim is a pod that evictd would have evicted if it were not in dry
// run. It runs on, and counts as gone until the pressure is over.
type WouldBeVictim struct {
	Pod    string        `json:"pod"`
	UID    string        `json:"uid"`
	Signal signal.Signal `json:"signal"`
}

// Records is the answer to /v1/records.
type Records struct {
	// Records are the last evictions, the oldest first.
	Records List[evict.Record] `json:"records"`
}
