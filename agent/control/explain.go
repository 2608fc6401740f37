package control

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
)

// Explanation is what would happen if a signal's threshold were met now, and
// why: today's ranking by the code that evicts.
type Explanation struct {
	At          time.Time     `json:"at"`
	Signal      signal.Signal `json:"signal"`
	Observation SignalStatus  `json:"observation"`
	// Ranking lists the eligible pods, the first to go first.
	Ranking List[Candidate] `json:"ranking"`
	// Exempt lists the pods that are never evicted, or not now.
	Exempt List[evict.Exempt] `json:"exempt"`
	// NotOurs lists containers on this host that are not the runtime's pods
	// and are never killed.
	NotOurs List[Outsider] `json:"notOurs"`
	// Memory is what the two memory signals leave out; absent elsewhere.
	Memory *LeftOut `json:"memory,omitempty"`
	// OOMScores lists what the kernel's OOM killer is told of each container, of
	// exempt pods too; for the memory signals only, and not where oomScoreAdj is off.
	OOMScores List[OOMScore] `json:"oomScores"`
	// Notes are facts in words that bear on the answer.
	Notes List[string] `json:"notes"`
}

// Candidate is an eligible pod in its place. Amounts are in the signal's unit.
type Candidate struct {
	evict.Ranked
	QoS evict.QoS `json:"qos"`
	// RequestOrigin says where the request is from, such as the API, a
	// container's oom_score_adj or its limit.
	RequestOrigin string `json:"requestOrigin,omitempty"`
	// IgnoredAnnotations are evictd's annotations on the pod that are not
	// believed.
	IgnoredAnnotations List[string]    `json:"ignoredAnnotations"`
	Containers         List[Container] `json:"containers"`
	// Reclaim is how its tasks have stalled where they had to reclaim memory
	// themselves; absent where that is not followed.
	Reclaim *ReclaimStalls `json:"reclaim,omitempty"`
	// Disk is how what it holds on the disks is known; absent for other signals.
	Disk *DiskUsage `json:"disk,omitempty"`
	// Why says in words why the pod stands where it stands.
	Why string `json:"why"`
}

// ReclaimStalls are stalls in direct reclaim, since they are followed.
type ReclaimStalls struct {
	Count          uint64  `json:"count"`
	Seconds        float64 `json:"seconds"`
	LongestSeconds float64 `json:"longestSeconds"`
}

// DiskUsage is how the disk usage of a pod is known.
type DiskUsage struct {
	// By lists the ways in which it was measured: walk, project quota, runtime.
	By List[string] `json:"by"`
	// AgeSeconds is how old the oldest measurement is; null where there is none.
	AgeSeconds *float64 `json:"ageSeconds"`
	// Short says why there may be more; empty where nothing says so.
	Short string `json:"short,omitempty"`
}

// Container is one container of a candidate.
type Container struct {
	Name   string `json:"name"`
	Cgroup string `json:"cgroup,omitempty"`
	// Usage and Request are null where they are not known.
	Usage   *int64 `json:"usage"`
	Request *int64 `json:"request"`
}

// OOMScore is what the kernel's OOM killer is told of a container.
type OOMScore struct {
	Pod       string `json:"pod"`
	Container string `json:"container"`
	// Wanted is what the oom_score_adj of its processes should be, null where
	// nobody tells, and From who does.
	Wanted *int   `json:"wanted"`
	From   string `json:"from,omitempty"`
	// Least and Most are the lowest and the highest that a process has, of so many,
	// and Wrong is how many of them have another one than is wanted; null where
	// that could not be read, for the reason in Error.
	Least     *int   `json:"least"`
	Most      *int   `json:"most"`
	Processes int    `json:"processes"`
	Wrong     *int   `json:"wrong"`
	Error     string `json:"error,omitempty"`
	// Group tells whether the OOM killer takes all processes of the container
	// where it takes one (memory.oom.group); null on cgroup v1.
	Group *bool `json:"group"`
}

// Outsider is a container that is not the runtime's.
type Outsider struct {
	Cgroup    string `json:"cgroup"`
	Processes int    `json:"processes"`
	// MemoryBytes is null where it could not be read.
	MemoryBytes *int64 `json:"memoryBytes"`
	// Command is its oldest process's.
	Command string `json:"command,omitempty"`
}

// LeftOut is memory that no signal sees.
type LeftOut struct {
	// UnaccountedBytes is MemTotal − MemFree − anonymous − file − hugetlb: what
	// the kernel itself uses. Null where it is not known.
	UnaccountedBytes *int64 `json:"unaccountedBytes"`
	// SwapTotalBytes and SwapFreeBytes are shown because nothing here counts
	// them: swap is ignored.
	SwapTotalBytes *int64 `json:"swapTotalBytes"`
	SwapFreeBytes  *int64 `json:"swapFreeBytes"`
}

// Why says why the pod at index i of a signal's ranking stands where it
// stands: what it uses, and what puts it after the one before it. The criteria
// are those of evict.Policy.Rank, in the same order.
func Why(s signal.Signal, ranked []evict.Ranked, i int) string {
	r := ranked[i]
	var b strings.Builder
	switch {
	case r.NoStats:
		b.WriteString("its usage is not known")
	case s == signal.PIDAvailable:
		fmt.Fprintf(&b, "runs %d tasks", r.Usage)
	case s.IsInodes():
		fmt.Fprintf(&b, "uses %d inodes", r.Usage)
	case r.Over && r.Request == 0:
		fmt.Fprintf(&b, "uses %s and requests none", Amount(s, r.Usage))
	case r.Over:
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
	case previous.Over != r.Over && s.IsInodes():
		b.WriteString("uses some")
	case previous.Over != r.Over:
		b.WriteString("exceeds its request")
	case previous.Priority != r.Priority:
		b.WriteString("has the lower priority")
	case previous.NoStats != r.NoStats:
		b.WriteString("is measured")
	case previous.Usage-previous.Request == r.Usage-r.Request:
		b.WriteString("is its equal, by UID")
	case s == signal.PIDAvailable:
		b.WriteString("runs more")
	case s.IsInodes():
		b.WriteString("uses more")
	default:
		b.WriteString("uses more in relation to its request")
	}
	return b.String()
}

// Amount prints n of a signal's unit for people: bytes with three significant
// digits and a binary suffix, inodes and PIDs in full.
func Amount(s signal.Signal, n int64) string {
	switch s.Resource() {
	case signal.Inodes, signal.PIDs:
		return strconv.FormatInt(n, 10)
	}
	return Bytes(n)
}

// Bytes prints n bytes for people, with three significant digits: 512Mi,
// 1.5Gi, 20.1Gi.
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
