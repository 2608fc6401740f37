package affinity

// ResultsEnv is the environment variable of TestMeasureDelay with the file that gets a line of JSON with the [Delays].
const ResultsEnv = "EVICTD_BENCH_AFFINITY_RESULTS"

// Delays are the times from the change of a Node's label until the API server has accepted the eviction of the pod that
// no longer fits.
type Delays struct {
	// Debounce is the one that evictd-controller is configured with, in microseconds, and part of each of Accepted.
	Debounce int64   `json:"debounceMicroseconds"`
	Accepted []int64 `json:"acceptedMicroseconds"`
}
