package evict

import "time"

// Record describes one eviction: the readings, the decision and the result. Times are
// wall-clock times, zero if unknown. Amounts are in the signal's unit, bytes for
// memory.
type Record struct {
	Pod         string            `json:"pod"`
	UID         string            `json:"uid"`
	Cause       string            `json:"cause"` // the signal, or the limit that the pod exceeded
	Hard        bool              `json:"hard"`
	DryRun      bool              `json:"dryRun"`
	Reason      string            `json:"reason"`
	Message     string            `json:"message"`
	Annotations map[string]string `json:"annotations,omitempty"`
	// DisruptionTarget is set if the pod's status would get that condition.
	DisruptionTarget bool `json:"disruptionTarget"`

	// Lane is the lane that raised the alarm. Confirm is the source of the reading that
	// confirmed it.
	Lane    string `json:"lane"`
	Confirm string `json:"confirm,omitempty"`

	LastAbove    time.Time `json:"lastAbove,omitzero"`    // last reading that was not below the threshold
	CrossingSeen time.Time `json:"crossingSeen,omitzero"` // first reading that was
	Decided      time.Time `json:"decided"`
	Confirmed    time.Time `json:"confirmed,omitzero"`  // time of the hot path's confirming reading
	Chosen       time.Time `json:"chosen,omitzero"`     // the hot path had ranked and referenced its victims
	SignalSent   time.Time `json:"signalSent,omitzero"` // the first SIGKILL, or the request to stop
	FirstGone    time.Time `json:"firstGone,omitzero"`  // exit of the first process
	LastGone     time.Time `json:"lastGone,omitzero"`   // exit of the last process
	Escalated    time.Time `json:"hardened,omitzero"`   // a soft eviction's grace period was ended early
	Reported     time.Time `json:"reported,omitzero"`   // ReportAnswer came
	// RankingAge is the age of the usage that the ranking is based on.
	RankingAge time.Duration `json:"rankingAgeNanoseconds"`

	Available int64 `json:"available"`
	Threshold int64 `json:"threshold"`
	Deficit   int64 `json:"deficit"`
	Expected  int64 `json:"expected"`
	// Freed is what was freed until the last process exited, in the signal's unit. It
	// is 0 for a disk signal, because disk space is freed when the pod's remains are
	// removed.
	Freed int64 `json:"freed"`
	// Overshoot is how far below the threshold the lowest reading was until the signal
	// was above it again.
	Overshoot int64 `json:"overshoot"`
	Processes int   `json:"processes"`

	// Candidates are the first ten pods of the ranking, including the victim.
	Candidates []Ranked `json:"candidates,omitempty"`
	Futile     bool     `json:"futile,omitempty"`
	// SystemCgroups are the largest cgroups outside the pods, if the signal was futile.
	SystemCgroups []CgroupUsage `json:"outside,omitempty"`
	// SystemDirectories are the largest directories outside the pods, if a disk signal
	// was futile and they were known.
	SystemDirectories []DirectoryUsage `json:"outsideDirectories,omitempty"`

	// ReportAnswer is what became of the report to the API server, as evictd-kube answered:
	// reported, deleted, gone, terminating, forbidden, or an answer that is not final. It is
	// empty before the first answer and if the eviction is not reported.
	ReportAnswer string `json:"reportAnswer,omitempty"`

	// Result is one of the Result constants. Error is why the eviction failed.
	Result string `json:"result"`
	Error  string `json:"error,omitempty"`
}

// The results of an eviction.
const (
	ResultKilled  = "killed"  // no process is left
	ResultStopped = "stopped" // by the runtime, within the grace period
	ResultStuck   = "stuck"   // processes are left that do not exit
	ResultFailed  = "failed"  // the order could not be carried out
	ResultEnded   = "ended"   // nothing was killed: the containers had ended by themselves
	ResultDryRun  = "dry-run" // nothing was done
	ResultPending = "pending" // not finished
	ResultUnknown = "unknown" // evictd was restarted before it finished
	ResultRefused = "refused" // not started: only its end was reported to the API server
	ResultKernel  = "kernel"  // no eviction: the kernel's OOM killer killed a process
)

// CauseKernelOOM is the cause of a record about a kill by the kernel's OOM killer.
const CauseKernelOOM = "kernel.oom"

// CauseShutdown is the cause of an eviction because the node shuts down.
const CauseShutdown = "node.shutdown"

// CauseAdmission is the cause of an eviction because the pod arrived under memory pressure.
const CauseAdmission = "node.admission"

// DirectoryUsage is a directory outside the pods and its disk usage.
type DirectoryUsage struct {
	Path   string `json:"path"`
	Bytes  int64  `json:"bytes"`
	Inodes int64  `json:"inodes"`
}

// CgroupUsage is a cgroup and its memory usage in bytes.
type CgroupUsage struct {
	Cgroup string `json:"cgroup"`
	Memory int64  `json:"memory"`
}
