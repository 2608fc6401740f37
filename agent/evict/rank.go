package evict

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/evictd/evictd/agent/signal"
)

// Ranked is an eligible pod in its place for one signal, with what put it
// there. Amounts are in the signal's unit.
type Ranked struct {
	Pod      string `json:"pod"` // namespace/name
	UID      string `json:"uid"`
	Over     bool   `json:"overRequest"`
	Priority int32  `json:"priority"`
	NoStats  bool   `json:"noStats,omitempty"`
	Usage    int64  `json:"usage"`
	Request  int64  `json:"request"`
	// Expected is what an eviction is expected to bring back.
	Expected int64 `json:"expected"`

	index int // into the pods that were ranked
}

// Index returns the pod's index in the slice that Rank was given.
func (r Ranked) Index() int { return r.index }

// Exempt is a pod that is not to be evicted, and why.
type Exempt struct {
	Pod string `json:"pod"`
	UID string `json:"uid"`
	// Reason is the first that holds of terminating, mirror, static, critical
	// and protected.
	Reason string `json:"reason"`
	// Detail says more where the reason alone does not, for people.
	Detail string `json:"detail,omitempty"`
}

// The reasons for exemption.
const (
	ReasonTerminating = "terminating"
	ReasonMirror      = "mirror"
	ReasonStatic      = "static"
	ReasonCritical    = "critical"
	ReasonProtected   = "protected"
)

// exempt returns why the pod is not to be evicted, reason "" where it may be.
func (p *Policy) exempt(pod *Pod) (reason, detail string) {
	switch {
	case pod.Mirror:
		return ReasonMirror, ""
	case pod.Static:
		return ReasonStatic, ""
	case pod.criticalPriority():
		return ReasonCritical, ""
	case pod.Spared != "":
		return ReasonProtected, pod.Spared
	case pod.Kubelet && pod.Priority == nil && p.SpareUnknownPriority:
		return ReasonProtected, "a kubelet's pod of unknown priority"
	}
	if p.Protected != nil {
		if why := p.Protected(pod); why != "" {
			return ReasonProtected, why
		}
	}
	return "", ""
}

// Rank orders the eligible pods for eviction under a signal, the first to go
// first, and lists the others by name. The state tells which
// are on their way out already.
//
// The order is the kubelet's: over its request before within, then the lower
// priority, then the larger usage above the request; for PIDs priority, then
// the count. Unlike the kubelet's, a pod without statistics comes last among
// its equals, inodes are not compared with a request in bytes, and what is
// still equal is ordered by UID, so that the same input always gives the same
// order.
func (p *Policy) Rank(pods []Pod, s signal.Signal, state *State, now time.Time) ([]Ranked, []Exempt) {
	candidates := make([]Ranked, 0, len(pods))
	var exempt []Exempt
	for i := range pods {
		pod := &pods[i]
		reason, detail := p.exempt(pod)
		if reason == "" {
			candidates = append(candidates, p.weigh(pod, i, s))
		}
		if busy, why := state.busy(pod.UID, now); busy != "" {
			reason, detail = busy, why
		}
		if reason != "" {
			exempt = append(exempt, Exempt{Pod: pod.Key(), UID: pod.UID, Reason: reason, Detail: detail})
		}
	}
	slices.SortFunc(exempt, func(a, b Exempt) int {
		return cmp.Or(cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.UID, b.UID))
	})
	return state.rank(candidates[:0], candidates, now), exempt
}

// rank puts candidates in the order of eviction and appends those that are not on
// their way out to a slice, which may begin where theirs does.
func (s *State) rank(to, candidates []Ranked, now time.Time) []Ranked {
	slices.SortFunc(candidates, func(a, b Ranked) int { return compare(&a, &b) })
	for i := range candidates {
		if r := &candidates[i]; !s.isBusy(r.UID, now) {
			to = append(to, *r)
		}
	}
	return to
}

func (p *Policy) weigh(pod *Pod, index int, s signal.Signal) Ranked {
	r := Ranked{Pod: pod.Key(), UID: pod.UID, Priority: pod.priority(), index: index}
	if s != signal.PIDAvailable && !s.IsInodes() {
		r.Request = pod.Request(s.Resource())
	}
	r.measure(pod.usage(s, p.Layout), pod.expected(s, p.Layout), pod.measured(s))
	if s == signal.PIDAvailable {
		r.Over = false // nothing requests PIDs
	}
	return r
}

// measure sets what the pod uses. known is false for a pod without statistics.
func (r *Ranked) measure(usage, expected int64, known bool) {
	r.Usage, r.Expected, r.NoStats, r.Over = usage, expected, !known, usage > r.Request
}

// compare puts the pod that is to go first before the other.
func compare(a, b *Ranked) int {
	return cmp.Or(
		before(a.Over, b.Over),
		cmp.Compare(a.Priority, b.Priority),
		before(b.NoStats, a.NoStats),
		cmp.Compare(b.Usage-b.Request, a.Usage-a.Request), // neither is negative
		cmp.Compare(a.UID, b.UID),
	)
}

// before puts true first.
func before(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// measured reports whether the pod's usage of a signal's quantity is known, at
// least in part.
func (p *Pod) measured(s signal.Signal) bool { return p.HasStats && !(p.DiskUnknown && s.IsDisk()) }

// usage returns what the pod uses of a signal's quantity, as it is ranked.
// Without statistics that is nothing.
func (p *Pod) usage(s signal.Signal, l Layout) int64 {
	if !p.measured(s) {
		return 0
	}
	switch {
	case s.IsMemory():
		return p.Usage.Memory
	case s == signal.PIDAvailable:
		return p.Usage.PIDs
	}
	return p.disk(l.parts(s), s.IsInodes())
}

// expected returns what is expected back of a signal's quantity when the pod is
// evicted.
func (p *Pod) expected(s signal.Signal, l Layout) int64 {
	if s.IsMemory() && p.HasStats {
		return p.Usage.Freeable
	}
	return p.usage(s, l)
}

// diskParts selects what of a pod lies on a filesystem.
type diskParts uint8

const (
	partRootfs diskParts = 1 << iota
	partLogs
	partVolumes
	partImages

	partsAll = partRootfs | partLogs | partVolumes
)

// parts returns what of a pod's disk usage counts for a disk signal.
func (l Layout) parts(s signal.Signal) diskParts {
	node := s == signal.NodeFsAvailable || s == signal.NodeFsInodesFree
	image := s == signal.ImageFsAvailable || s == signal.ImageFsInodesFree
	switch {
	case l == ImageFs && node:
		return partLogs | partVolumes
	case l == ImageFs:
		return partRootfs
	case l == SplitFs && image:
		return partImages
	}
	return partsAll
}

// disk sums the pod's bytes or inodes over the parts, over containers of every
// kind. Inodes of images are not known.
func (p *Pod) disk(parts diskParts, inodes bool) int64 {
	var sum int64
	for _, cs := range [][]Container{p.Containers, p.InitContainers, p.EphemeralContainers} {
		for i := range cs {
			u := &cs[i].Usage
			rootfs, logs, images := u.Rootfs, u.Logs, u.ImagesBytes
			if inodes {
				rootfs, logs, images = u.Inodes, u.LogsInodes, 0
			}
			if parts&partRootfs != 0 {
				sum = saturatingAdd(sum, rootfs)
			}
			if parts&partLogs != 0 {
				sum = saturatingAdd(sum, logs)
			}
			if parts&partImages != 0 {
				sum = saturatingAdd(sum, images)
			}
		}
	}
	if parts&partVolumes != 0 {
		for i := range p.Volumes {
			if v := &p.Volumes[i]; v.Local() {
				if inodes {
					sum = saturatingAdd(sum, v.Inodes)
				} else {
					sum = saturatingAdd(sum, v.Used)
				}
			}
		}
	}
	return sum
}

// saturatingAdd adds amounts that are not negative without running over.
func saturatingAdd(a, b int64) int64 {
	if b > math.MaxInt64-a {
		return math.MaxInt64
	}
	return a + b
}

// Size returns how many of the ranked pods must go, the first first, so that
// what they are expected to bring covers the deficit: at least one and at most
// limit. Where all of them together do not cover it, enough is false and one
// has to do. It allocates nothing.
func Size(ranked []Ranked, deficit int64, limit int) (n int, enough bool) {
	var sum int64
	for i := range ranked {
		sum = saturatingAdd(sum, max(0, ranked[i].Expected))
		if sum >= deficit {
			return min(i+1, max(1, limit)), true
		}
	}
	return min(1, len(ranked)), false
}
