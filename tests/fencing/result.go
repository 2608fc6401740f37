package fencing

// Releases are losses of a node, one after the other, until its volume is released, by one contender. Lists have one
// value for each loss that ended with a release, in microseconds.
type Releases struct {
	Contender string `json:"contender"`
	// From is the event that Released begins with.
	From string `json:"from"`
	// Noticed is the time from the loss of the node to that event.
	Noticed []int64 `json:"noticedMicroseconds"`
	// Released is the time from that event until the VolumeAttachment of the lost node is gone, Replaced that from the
	// loss of the node until the API server has received that the replacement of the pod runs.
	Released []int64 `json:"releasedMicroseconds"`
	Replaced []int64 `json:"replacedMicroseconds"`
	// Kept is for how long after the event the VolumeAttachment was observed, of losses without a release.
	Kept []int64 `json:"keptMicroseconds,omitempty"`
	// Early counts releases while the machine was on, Shared those after which two machines used the volume.
	Early  int `json:"early"`
	Shared int `json:"shared"`
}

// The environment variables of TestMeasure…: the file that gets a line of JSON with the [Releases] of each contender,
// how many losses are measured with evictd-controller and by hand, and whether the releases that take minutes are
// measured.
const (
	ResultsEnv = "EVICTD_BENCH_FENCE_RESULTS"
	LossesEnv  = "EVICTD_BENCH_FENCES"
	DetachEnv  = "EVICTD_BENCH_FORCED_DETACH"
)

// Idle is the cost of evictd-controller in a cluster whose nodes are all ready and do not change.
type Idle struct {
	Nodes int `json:"nodes"`
	Pods  int `json:"pods,omitempty"`
	// Seconds is how long Requests were counted.
	Seconds float64 `json:"seconds"`
	// Requests counts the controller's requests by verb and resource, without those of leader election, which are
	// Elections.
	Requests  map[string]int `json:"requests"`
	Elections int            `json:"elections"`
	// Resident and Peak are the process's resident memory at the end, and the most that it had, in bytes.
	Resident int64 `json:"residentBytes"`
	Peak     int64 `json:"peakBytes"`
}

// Total returns the number of Requests.
func (i *Idle) Total() (n int) {
	for _, r := range i.Requests {
		n += r
	}
	return n
}
