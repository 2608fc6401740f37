package cluster

// Evictions are evictions of one pod after the other on a node with a real kubelet, by one
// contender. Lists have one value for each eviction, in microseconds if not said otherwise.
type Evictions struct {
	Contender string `json:"contender"`
	// Signalled is the time from the crossing of the threshold to the first SIGTERM or SIGKILL to a
	// process of the victim, and Ended that to the end of its last process.
	Signalled []int64 `json:"signalledMicroseconds"`
	Ended     []int64 `json:"endedMicroseconds"`
	// Sent is the time from the end of the last process until evictd-kube has given its report to
	// the connection (its log), Received that until the API server has received it (its audit log),
	// Reported that until the API server has shown the pod as Failed
	// with the reason Evicted, and Replaced that until it has shown the replacement running.
	Sent     []int64 `json:"sentMicroseconds,omitempty"`
	Received []int64 `json:"receivedMicroseconds,omitempty"`
	Reported []int64 `json:"reportedMicroseconds"`
	Replaced []int64 `json:"replacedMicroseconds"`
	// Overshoot is how far the signal fell below the threshold, in KiB.
	Overshoot []int64 `json:"overshootKiB"`
	// Early counts victims that got a signal before a sample was below the threshold; they are in
	// none of the lists above but Sent, Received, Reported and Replaced.
	Early int `json:"early,omitempty"`
	// Restarts counts victims of which a container ran again, NotEvicted those that lived for two
	// minutes, Unreported those that were never shown as Failed with the reason Evicted, and
	// Bystanders the other pods that were evicted, also replacements of those.
	Restarts   int `json:"restarts"`
	NotEvicted int `json:"notEvicted"`
	Unreported int `json:"unreported"`
	Bystanders int `json:"bystanders"`
}

// The environment variables of TestMeasure…: the file that gets a line of JSON with the
// [Evictions] of each contender, and how many evictions are measured.
const (
	ResultsEnv   = "EVICTD_BENCH_RESULTS"
	EvictionsEnv = "EVICTD_BENCH_EVICTIONS"
)

// Footprint is the size of a program. Resident has the bytes that each of its runs had resident when it was idle, the
// fewest first, and Pods is how many pods of 12 KB the node of the cluster has; 0 without a cluster.
type Footprint struct {
	Program  string `json:"program"`
	Pods     int    `json:"pods,omitempty"`
	Binary   int64  `json:"binaryBytes"`
	Resident []int  `json:"residentBytes"`
}
