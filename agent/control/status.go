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
	At      time.Time          `json:"at"`
	Mode    Mode               `json:"mode"`
	Node    Node               `json:"node"`
	Signals List[SignalStatus] `json:"signals"`
	// Conditions are those that the node is in, sorted.
	Conditions List[signal.Condition] `json:"conditions"`
	Runtime    Runtime                `json:"runtime"`
	Lanes      List[Lane]             `json:"lanes"`
	Pods       Pods                   `json:"pods"`
	// Victims are the pods on their way out.
	Victims List[evict.Victim] `json:"victims"`
	// Futile lists the signals that stay low whatever is evicted.
	Futile List[evict.Futility] `json:"futile"`
	// Records are the last evictions, the oldest first.
	Records  List[evict.Record] `json:"records"`
	Config   Config             `json:"config"`
	Warnings List[string]       `json:"warnings"`
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
	// Why says what is missing where the lane is down, or degraded.
	Why string `json:"why,omitempty"`
	// PeriodSeconds is how often a lane that samples does so now; null for one
	// that is notified.
	PeriodSeconds *float64 `json:"periodSeconds"`
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
}

// Records is the answer to /v1/records.
type Records struct {
	// Records are the last evictions, the oldest first.
	Records List[evict.Record] `json:"records"`
}
