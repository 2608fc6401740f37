package control

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
)

// Explanation is the ranking of the pods for a signal, by the code that evicts:
// which pods would be evicted if a threshold were met now, and why.
type Explanation struct {
	At          time.Time     `json:"at"`
	Signal      signal.Signal `json:"signal"`
	Observation SignalStatus  `json:"observation"`
	// Ranking lists the eligible pods in the order of eviction.
	Ranking List[Candidate] `json:"ranking"`
	// Exempt lists the pods that are never evicted, or not now.
	Exempt List[evict.Exempt] `json:"exempt"`
	// ForeignContainers lists containers on this host that don't belong to the runtime.
	// evictd never kills them.
	ForeignContainers List[ForeignContainer] `json:"notOurs"`
	// Memory is memory outside the two memory signals; absent for other signals.
	Memory *UncountedMemory `json:"memory,omitempty"`
	// OOMScores lists the oom_score_adj of each container, including those of exempt
	// pods, for the memory signals. It is empty if oomScoreAdj is off.
	OOMScores List[OOMScore] `json:"oomScores"`
	// Notes are further facts in words.
	Notes List[string] `json:"notes"`
}

// Candidate is an eligible pod in the ranking. Amounts are in the signal's unit.
type Candidate struct {
	evict.Ranked
	QoS evict.QoS `json:"qos"`
	// RequestOrigin is the source of the request, such as the API, a container's
	// oom_score_adj or its limit.
	RequestOrigin string `json:"requestOrigin,omitempty"`
	// IgnoredAnnotations are evictd's annotations on the pod that evictd does not
	// trust.
	IgnoredAnnotations List[string]    `json:"ignoredAnnotations"`
	Containers         List[Container] `json:"containers"`
	// Reclaim are the stalls of the pod's tasks in direct reclaim; absent if they
	// are not traced.
	Reclaim *ReclaimStalls `json:"reclaim,omitempty"`
	// Facts is the origin of the facts about the pod; absent if there are none.
	Facts *Facts `json:"facts,omitempty"`
	// Disk is how the pod's disk usage was measured; absent for other signals.
	Disk *DiskUsage `json:"disk,omitempty"`
	// Why explains in words the pod's rank.
	Why string `json:"why"`
}

// ReclaimStalls are the stalls in direct reclaim since tracing began.
type ReclaimStalls struct {
	Count          uint64  `json:"count"`
	Seconds        float64 `json:"seconds"`
	LongestSeconds float64 `json:"longestSeconds"`
}

// DiskUsage is how the disk usage of a pod was measured.
type DiskUsage struct {
	// By lists the methods: walk, project quota, runtime.
	By List[string] `json:"by"`
	// AgeSeconds is the age of the oldest measurement; null if there is none.
	AgeSeconds *float64 `json:"ageSeconds"`
	// Incomplete is why the measurement may be too low; empty if it is complete.
	Incomplete string `json:"short,omitempty"`
}

// Container is one container of a candidate.
type Container struct {
	Name   string `json:"name"`
	Cgroup string `json:"cgroup,omitempty"`
	// Usage and Request are null if unknown.
	Usage   *int64 `json:"usage"`
	Request *int64 `json:"request"`
}

// OOMScore is the oom_score_adj of a container's processes.
type OOMScore struct {
	Pod       string `json:"pod"`
	Container string `json:"container"`
	// Wanted is the oom_score_adj that the processes should have, null if unknown,
	// and From is its source.
	Wanted *int   `json:"wanted"`
	From   string `json:"from,omitempty"`
	// Min and Max are the lowest and the highest oom_score_adj of the container's
	// Processes, and Mismatched counts those that differ from Wanted. They are null if
	// they could not be read; Error is then the reason.
	Min        *int   `json:"least"`
	Max        *int   `json:"most"`
	Processes  int    `json:"processes"`
	Mismatched *int   `json:"wrong"`
	Error      string `json:"error,omitempty"`
	// Group is the container's memory.oom.group: whether the OOM killer kills all
	// of its processes together. It is null on cgroup v1.
	Group *bool `json:"group"`
}

// ForeignContainer is a container that does not belong to the runtime.
type ForeignContainer struct {
	Cgroup    string `json:"cgroup"`
	Processes int    `json:"processes"`
	// MemoryBytes is null if it could not be read.
	MemoryBytes *int64 `json:"memoryBytes"`
	// Command is the command of the oldest process.
	Command string `json:"command,omitempty"`
}

// UncountedMemory is memory that the signals don't count.
type UncountedMemory struct {
	// UnaccountedBytes is MemTotal − MemFree − anonymous − file − hugetlb, which is
	// the kernel's own memory. It is null if unknown.
	UnaccountedBytes *int64 `json:"unaccountedBytes"`
	// SwapTotalBytes and SwapFreeBytes are the node's swap, which evictd ignores.
	SwapTotalBytes *int64 `json:"swapTotalBytes"`
	SwapFreeBytes  *int64 `json:"swapFreeBytes"`
}

// RankReason returns in words the rank of the pod at index i: what it uses, and by which
// criterion it follows the one before it. The criteria are those of
// evict.Policy.Rank, in the same order.
func RankReason(s signal.Signal, ranked []evict.Ranked, i int) string {
	r := ranked[i]
	var b strings.Builder
	switch {
	case r.NoStats:
		b.WriteString("its usage is unknown")
	case s == signal.PIDAvailable:
		fmt.Fprintf(&b, "runs %d tasks", r.Usage)
	case s.IsInodes():
		fmt.Fprintf(&b, "uses %d inodes", r.Usage)
	case r.OverRequest && r.Request == 0:
		fmt.Fprintf(&b, "uses %s and has no request", Amount(s, r.Usage))
	case r.OverRequest:
		fmt.Fprintf(&b, "uses %s, %s above its request of %s", Amount(s, r.Usage), Amount(s, r.Usage-r.Request), Amount(s, r.Request))
	default:
		fmt.Fprintf(&b, "uses %s, within its request of %s", Amount(s, r.Usage), Amount(s, r.Request))
	}
	fmt.Fprintf(&b, ", priority %d", r.Priority)
	if i == 0 {
		return b.String()
	}
	previous := ranked[i-1]
	fmt.Fprintf(&b, "; after %s, which ", previous.Pod)
	switch {
	case previous.OverRequest != r.OverRequest && s.IsInodes():
		b.WriteString("uses inodes")
	case previous.OverRequest != r.OverRequest:
		b.WriteString("exceeds its request")
	case previous.Priority != r.Priority:
		b.WriteString("has a lower priority")
	case previous.NoStats != r.NoStats:
		b.WriteString("has a known usage")
	case previous.Usage-previous.Request == r.Usage-r.Request:
		b.WriteString("is equal and has the lower UID")
	case s == signal.PIDAvailable:
		b.WriteString("runs more")
	case s.IsInodes():
		b.WriteString("uses more")
	default:
		b.WriteString("uses more in relation to its request")
	}
	return b.String()
}

// Amount formats n in a signal's unit: bytes with three significant digits and a
// binary suffix, inodes and PIDs in full.
func Amount(s signal.Signal, n int64) string {
	switch s.Resource() {
	case signal.Inodes, signal.PIDs:
		return strconv.FormatInt(n, 10)
	}
	return Bytes(n)
}

// Bytes formats n bytes with three significant digits: 512Mi, 1.5Gi, 20.1Gi.
func Bytes(n int64) string {
	const suffixes = "KMGTPE"
	f := float64(n)
	magnitude := f
	if n < 0 {
		magnitude = -f
	}
	if magnitude < 1024 {
		return strconv.FormatInt(n, 10)
	}
	unit := -1
	for magnitude >= 999.5 && unit < len(suffixes)-1 {
		magnitude /= 1024
		f /= 1024
		unit++
	}
	digits := 2
	switch {
	case magnitude >= 99.95:
		digits = 0
	case magnitude >= 9.995:
		digits = 1
	}
	text := strconv.FormatFloat(f, 'f', digits, 64)
	if digits > 0 {
		text = strings.TrimRight(strings.TrimRight(text, "0"), ".")
	}
	return text + suffixes[unit:unit+1] + "i"
}
