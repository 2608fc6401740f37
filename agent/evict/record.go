package evict

import "time"

// Record is what remains of one eviction: what was seen, what was decided and
// what came of it. Times are of the wall clock; amounts of the signal's unit,
// bytes for memory; a time that is not known is zero.
type Record struct {
	Pod         string            `json:"pod"`
	UID         string            `json:"uid"`
	Cause       string            `json:"cause"` // a signal, or the limit exceeded
	Hard        bool              `json:"hard"`
	DryRun      bool              `json:"dryRun"`
	Reason      string            `json:"reason"`
	Message     string            `json:"message"`
	Annotations map[string]string `json:"annotations,omitempty"`
	// Conditions are those that the pod's status would get.
	DisruptionTarget bool `json:"disruptionTarget"`

	// Lane is what raised the alarm; Confirm what was read to confirm it.
	Lane    string `json:"lane"`
	Confirm string `json:"confirm,omitempty"`

	LastAbove    time.Time `json:"lastAbove,omitzero"`    // the last reading that was not below
	CrossingSeen time.Time `json:"crossingSeen,omitzero"` // the first that was
	Decided      time.Time `json:"decided"`
	Confirmed    time.Time `json:"confirmed,omitzero"`  // the fresh reading of the hot path was taken
	Chosen       time.Time `json:"chosen,omitzero"`     // the hot path had ranked and held its victims
	SignalSent   time.Time `json:"signalSent,omitzero"` // the first SIGKILL, or the request to stop
	FirstGone    time.Time `json:"firstGone,omitzero"`  // the first process
	LastGone     time.Time `json:"lastGone,omitzero"`   // the last process
	Hardened     time.Time `json:"hardened,omitzero"`   // when a soft eviction's grace was cut short
	// RankingAge is how old the usage was that the ranking rests on.
	RankingAge time.Duration `json:"rankingAgeNanoseconds"`

	Available int64 `json:"available"`
	Threshold int64 `json:"threshold"`
	Deficit   int64 `json:"deficit"`
	Expected  int64 `json:"expected"`
	// Freed is what came back with the last process, in the signal's unit; 0 for a
	// disk, where that comes with the removal of what is left of the pod.
	Freed int64 `json:"freed"`
	// Overshoot is how far below the threshold the signal was seen at its
	// lowest until it was back above.
	Overshoot int64 `json:"overshoot"`
	Processes int   `json:"processes"`

	// Candidates are the first ten of the ranking, the victim among them.
	Candidates []Ranked `json:"candidates,omitempty"`
	Futile     bool     `json:"futile,omitempty"`
	// Outside are the largest cgroups outside the pods, where evicting pods
	// was futile.
	Outside []CgroupUsage `json:"outside,omitempty"`
	// OutsideDirectories are the largest directories outside the pods, where that was
	// so for a disk and they were known.
	OutsideDirectories []DirectoryUsage `json:"outsideDirectories,omitempty"`

	// Result is one of the Result constants; Error says why where it failed.
	Result string `json:"result"`
	Error  string `json:"error,omitempty"`
}

// The results of an eviction.
const (
	ResultKilled  = "killed"  // no process is left
	ResultStopped = "stopped" // by the runtime, within its grace
	ResultStuck   = "stuck"   // processes are left that do not go
	ResultFailed  = "failed"  // the order could not be carried out
	ResultDryRun  = "dry-run" // nothing was done
	ResultPending = "pending" // under way
	ResultUnknown = "unknown" // evictd was restarted meanwhile
	ResultKernel  = "kernel"  // no eviction: the kernel's OOM killer took a process
)

// CauseKernelOOM is the cause where the kernel's OOM killer was there first.
const CauseKernelOOM = "kernel.oom"

// CauseShutdown is the cause where the node goes down.
const CauseShutdown = "node.shutdown"

// DirectoryUsage is a directory outside the pods and what it takes up.
type DirectoryUsage struct {
	Path   string `json:"path"`
	Bytes  int64  `json:"bytes"`
	Inodes int64  `json:"inodes"`
}

// CgroupUsage is a cgroup and the memory it uses, in bytes.
type CgroupUsage struct {
	Cgroup string `json:"cgroup"`
	Memory int64  `json:"memory"`
}
