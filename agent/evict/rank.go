package evict

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/evictd/evictd/agent/signal"
)

// Ranked is an eligible pod and the values that it is ranked by for one signal. Amounts
// are in the signal's unit.
type Ranked struct {
	Pod         string `json:"pod"` // namespace/name
	UID         string `json:"uid"`
	OverRequest bool   `json:"overRequest"`
	Priority    int32  `json:"priority"`
	NoStats     bool   `json:"noStats,omitempty"`
	Usage       int64  `json:"usage"`
	Request     int64  `json:"request"`
	// Expected is the amount that evicting the pod is expected to free.
	Expected int64 `json:"expected"`

	index int // into the pods that were ranked
}

// Index returns the pod's index in the slice that Rank was given.
func (r Ranked) Index() int { return r.index }

// Exempt is a pod that can't be evicted now, and why: the policy exempts it
// (Policy.exempt), or the state makes it ineligible for some time (State.ineligible).
type Exempt struct {
	Pod string `json:"pod"`
	UID string `json:"uid"`
	// Reason is that of the state if it has one, else that of the policy.
	Reason string `json:"reason"`
	// Detail explains the reason to operators if the reason alone is not enough.
	Detail string `json:"detail,omitempty"`
}

// The reasons for which a pod is exempt.
const (
	ReasonTerminating = "terminating" // by the state: it is being evicted; for soft thresholds also: it ends without evictd
	ReasonMirror      = "mirror"
	ReasonStatic      = "static"
	ReasonCritical    = "critical"
	ReasonProtected   = "protected" // by the policy or its source, or by the state after a revival
)

// exempt returns why the policy exempts the pod, whatever the state is; reason "" if it
// does not.
func (p *Policy) exempt(pod *Pod) (reason, detail string) {
	switch {
	case pod.Mirror:
		return ReasonMirror, ""
	case pod.Static:
		return ReasonStatic, ""
	case pod.criticalPriority():
		return ReasonCritical, ""
	case pod.ProtectedReason != "":
		return ReasonProtected, pod.ProtectedReason
	case pod.Unreportable != "" && p.ProtectUnreportable:
		return ReasonProtected, pod.Unreportable
	case pod.Kubelet && pod.Priority == nil && p.ProtectUnknownPriority:
		return ReasonProtected, "a kubelet's pod of unknown priority"
	}
	if p.Protected != nil {
		if detail := p.Protected(pod); detail != "" {
			return ReasonProtected, detail
		}
	}
	return "", ""
}

// Rank returns the eligible pods in the order in which they are evicted for a signal,
// and the exempt pods sorted by name. A pod is eligible if neither the policy nor the
// state, which contains the pods that are being evicted already, prevents its eviction.
//
// The order is the kubelet's: pods above their request first, then lower priority, then
// larger usage above the request; for PIDs priority, then number of tasks. There are
// three differences: a pod without statistics comes last among its equals, inodes are
// not compared with a request in bytes, and pods that are still equal are ordered by
// UID, so that the same input always gives the same order.
func (p *Policy) Rank(pods []Pod, s signal.Signal, state *State, now time.Time) ([]Ranked, []Exempt) {
	candidates := make([]Ranked, 0, len(pods))
	var exempt []Exempt
	for i := range pods {
		pod := &pods[i]
		reason, detail := p.exempt(pod)
		if reason == "" {
			candidates = append(candidates, p.newRanked(pod, i, s))
		}
		if r, d := state.ineligible(pod.UID, now); r != "" {
			reason, detail = r, d
		}
		if reason != "" {
			exempt = append(exempt, Exempt{Pod: pod.Key(), UID: pod.UID, Reason: reason, Detail: detail})
		}
	}
	slices.SortFunc(exempt, compareExempt)
	return state.rank(candidates[:0], candidates, now), exempt
}

// rank sorts the candidates in the order of eviction and appends those that are
// eligible to to, which may share the memory of candidates.
func (s *State) rank(to, candidates []Ranked, now time.Time) []Ranked {
	slices.SortFunc(candidates, func(a, b Ranked) int { return compareRanked(&a, &b) })
	for i := range candidates {
		if r := &candidates[i]; !s.isIneligible(r.UID, now) {
			to = append(to, *r)
		}
	}
	return to
}

// newRanked returns the pod with the values that it is ranked by.
func (p *Policy) newRanked(pod *Pod, index int, s signal.Signal) Ranked {
	r := Ranked{Pod: pod.Key(), UID: pod.UID, Priority: pod.priority(), index: index}
	if s != signal.PIDAvailable && !s.IsInodes() {
		r.Request = pod.Request(s.Resource())
	}
	r.setUsage(pod.usage(s, p.Layout), pod.expected(s, p.Layout), pod.measured(s))
	if s == signal.PIDAvailable {
		r.OverRequest = false // nothing requests PIDs
	}
	return r
}

// setUsage sets the pod's usage. known is false for a pod without statistics.
func (r *Ranked) setUsage(usage, expected int64, known bool) {
	r.Usage, r.Expected, r.NoStats, r.OverRequest = usage, expected, !known, usage > r.Request
}

// compareRanked sorts the pod to be evicted first to the front.
func compareRanked(a, b *Ranked) int {
	return cmp.Or(
		trueFirst(a.OverRequest, b.OverRequest),
		cmp.Compare(a.Priority, b.Priority),
		trueFirst(b.NoStats, a.NoStats),
		cmp.Compare(b.Usage-b.Request, a.Usage-a.Request), // neither is negative
		cmp.Compare(a.UID, b.UID),
	)
}

// trueFirst sorts true before false.
func trueFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// measured reports whether at least a part of the pod's usage is known for a signal.
func (p *Pod) measured(s signal.Signal) bool { return p.HasStats && !(p.DiskUnknown && s.IsDisk()) }

// usage returns the usage that the pod is ranked by for a signal, 0 without statistics.
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

// expected returns how much of a signal's quantity evicting the pod is expected to
// free.
func (p *Pod) expected(s signal.Signal, l Layout) int64 {
	if s.IsMemory() && p.HasStats {
		return p.Usage.Freeable
	}
	return p.usage(s, l)
}

// diskParts is a set of parts of a pod's disk usage.
type diskParts uint8

const (
	partRootfs diskParts = 1 << iota
	partLogs
	partVolumes
	partImages

	partsAll = partRootfs | partLogs | partVolumes
)

// parts returns the parts of a pod's disk usage that count for a disk signal.
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

// disk returns the bytes or inodes of the parts, summed over containers of all kinds.
// Inodes of images are unknown and count as 0.
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

// saturatingAdd returns a + b, at most math.MaxInt64. a must not be negative.
func saturatingAdd(a, b int64) int64 {
	if b > math.MaxInt64-a {
		return math.MaxInt64
	}
	return a + b
}

// VictimCount returns how many of the ranked pods to evict so that the memory or space they
// are expected to free covers the deficit: at least one, at most limit. If all of them
// together do not cover it, enough is false and n is 1, or 0 if ranked is empty. It
// does not allocate.
func VictimCount(ranked []Ranked, deficit int64, limit int) (n int, enough bool) {
	var sum int64
	for i := range ranked {
		sum = saturatingAdd(sum, max(0, ranked[i].Expected))
		if sum >= deficit {
			return min(i+1, max(1, limit)), true
		}
	}
	return min(1, len(ranked)), false
}
