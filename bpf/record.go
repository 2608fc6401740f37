package bpf

import (
	"bytes"
	"fmt"
	"time"
	"unsafe"
)

// Kind is the kind of a [Record]: it says which of its parts is set.
type Kind uint32

// The kinds of records.
const (
	KindCrossing    Kind = 1 // a threshold was crossed
	KindPodsRemoved Kind = 2 // the pods' cgroup was removed
	KindVictim      Kind = 3 // the kernel's OOM killer chose a process
)

// Record is one event of a [Ring].
type Record struct {
	Kind        Kind
	Crossing    Crossing
	PodsRemoved PodsRemoved
	Victim      Victim
}

// Crossing reports that less memory is available than a threshold requires. The sampler
// writes one record per crossing, and the next only after available memory was above the
// threshold by its margin, or after [Sampler.Rearm]. A crossing that waits because file
// cache brought it is written once more when it is answered (growth.h).
type Crossing struct {
	Key    uint64 // Threshold.Key
	Source Source
	// LastAbove is the time of the latest tick that was not below the threshold; 0 if
	// there was none since the threshold was armed.
	LastAbove time.Duration
	// Seen is the time of the tick that found the crossing, Sent the time of this
	// record. Sent is later if the ring was full or the threshold had been reported
	// just before.
	Seen, Sent time.Duration
	Available  uint64
	Threshold  uint64
	Period     time.Duration // between the tick that found the crossing and the one before
	// Waiting means that file cache brought the crossing, and that other memory has
	// not grown by the threshold's GrowthFloor since.
	Waiting bool
	// Reference is the point that the crossing is compared with, First that of the
	// crossing, Latest the latest, and Previous the latest reference that is at least a
	// second older than Latest. A point with Time 0 is absent.
	Reference, First, Previous, Latest MemoryPoint
	Sample                             Sample // of the tick that wrote the record
}

// MemoryPoint is the working set at one time, in bytes, split into file cache (active
// file pages) and all other memory. Inactive file pages are in neither.
type MemoryPoint struct {
	Time             time.Duration // 0: absent
	Other, FileCache uint64
}

func memoryPoint(raw *samplerMemoryPoint) MemoryPoint {
	return MemoryPoint{Time: time.Duration(raw.Time), Other: raw.Other, FileCache: raw.FileCache}
}

func (p *MemoryPoint) raw() samplerMemoryPoint {
	return samplerMemoryPoint{Time: uint64(p.Time), Other: p.Other, FileCache: p.FileCache}
}

// PodsRemoved reports that the cgroup given to [Sampler.SetPods] was removed.
type PodsRemoved struct {
	Time   time.Duration
	Cgroup uint64
}

// Victim is a process that the kernel's OOM killer is about to kill, because a cgroup
// or the node is out of memory.
type Victim struct {
	Time time.Duration
	PID  int // the thread that was chosen
	// TGID is the thread's process, Comm its name, OOMScoreAdj its oom_score_adj and
	// Cgroup its memory cgroup. All are zero where the kernel's tracepoint has only
	// the PID.
	TGID        int
	Comm        string
	OOMScoreAdj int
	Cgroup      uint64
}

// Sample has the figures of one tick.
type Sample struct {
	Time time.Duration
	Tick uint64
	Node Node
	Pods Pods
}

// Node has the node's figures that memory.available is computed from.
type Node struct {
	Valid                                bool // false: the figures could not be read
	Anon, File, InactiveFile, ActiveFile uint64
	Slope                                int64 // of the working set, in bytes per second
}

// WorkingSet returns the node's working set, which the kubelet subtracts from the
// capacity.
func (n Node) WorkingSet() uint64 { return workingSet(n.Anon+n.File, n.InactiveFile) }

// Pods has the figures of the pods' cgroup, with everything below it.
type Pods struct {
	Valid bool // false: there is no such cgroup, or the figures could not be read
	// Truncated means that the figures are not valid because the last walk gave up
	// before the end of the list, or because there is no list and a survey has failed.
	Truncated bool
	// Uncertain means that the figures are not valid until the next survey: a threshold
	// is crossed by less than the estimates for removed and unlisted cgroups can be
	// wrong by.
	Uncertain bool
	Usage     uint64 // at the time of the sample
	// Walked is the time of the walk that read the file figures, WalkUsage the usage
	// that it read.
	Walked                   time.Duration
	WalkUsage                uint64
	InactiveFile, ActiveFile uint64
	Slope                    int64 // of the usage, in bytes per second
}

// WorkingSet returns the pods' working set, which the kubelet subtracts from the
// allocatable capacity.
func (p Pods) WorkingSet() uint64 { return workingSet(p.Usage, p.InactiveFile) }

func workingSet(usage, inactiveFile uint64) uint64 { return usage - min(usage, inactiveFile) }

func (s *Sample) set(raw *samplerSample) {
	*s = Sample{
		Time: time.Duration(raw.Time),
		Tick: raw.Tick,
		Node: Node{
			Valid: raw.Valid&validNode != 0,
			Anon:  raw.Anon, File: raw.File, InactiveFile: raw.InactiveFile, ActiveFile: raw.ActiveFile,
			Slope: raw.Slope,
		},
		Pods: Pods{
			Valid: raw.Valid&validPods != 0, Truncated: raw.Valid&podsTruncated != 0, Uncertain: raw.Valid&podsUncertain != 0,
			Usage:  raw.PodsUsage,
			Walked: time.Duration(raw.PodsTime), WalkUsage: raw.PodsWalkUsage, InactiveFile: raw.PodsInactiveFile, ActiveFile: raw.PodsActiveFile,
			Slope: raw.PodsSlope,
		},
	}
}

// raw is the inverse of set.
func (s *Sample) raw() samplerSample {
	raw := samplerSample{
		Time: uint64(s.Time), Tick: s.Tick,
		Anon: s.Node.Anon, File: s.Node.File, InactiveFile: s.Node.InactiveFile, ActiveFile: s.Node.ActiveFile,
		Slope:    s.Node.Slope,
		PodsTime: uint64(s.Pods.Walked), PodsUsage: s.Pods.Usage, PodsWalkUsage: s.Pods.WalkUsage,
		PodsInactiveFile: s.Pods.InactiveFile, PodsActiveFile: s.Pods.ActiveFile,
		PodsSlope: s.Pods.Slope,
	}
	if s.Node.Valid {
		raw.Valid |= validNode
	}
	if s.Pods.Valid {
		raw.Valid |= validPods
	}
	if s.Pods.Truncated {
		raw.Valid |= podsTruncated
	}
	if s.Pods.Uncertain {
		raw.Valid |= podsUncertain
	}
	return raw
}

// The bits of enum valid in records.h.
const (
	validNode = 1 << iota
	validPods
	podsTruncated
	podsUncertain
)

// decode parses one record. It returns false for an unknown kind, and an error for a
// record that is too short.
func (r *Record) decode(raw []byte) (bool, error) {
	if len(raw) < 4 {
		return false, fmt.Errorf("a record of %d bytes has no kind", len(raw))
	}
	kind := Kind(*(*uint32)(unsafe.Pointer(&raw[0])))
	switch kind {
	case KindCrossing:
		c, err := as[samplerCrossing](raw)
		if err != nil {
			return false, err
		}
		r.Crossing = Crossing{
			Key: c.Key, Source: Source(c.Source),
			LastAbove: time.Duration(c.LastAbove), Seen: time.Duration(c.Seen), Sent: time.Duration(c.Sent),
			Available: c.Available, Threshold: c.Threshold,
			Period: time.Duration(c.Period), Waiting: c.Waiting != 0,
			Reference: memoryPoint(&c.Reference), First: memoryPoint(&c.At), Previous: memoryPoint(&c.Recent), Latest: memoryPoint(&c.Now),
		}
		r.Crossing.Sample.set(&c.Sample)
	case KindPodsRemoved:
		g, err := as[samplerGone](raw)
		if err != nil {
			return false, err
		}
		r.PodsRemoved = PodsRemoved{Time: time.Duration(g.Time), Cgroup: g.Cgroup}
	case KindVictim:
		v, err := as[oomVictim](raw)
		if err != nil {
			return false, err
		}
		comm := v.Comm[:]
		if end := bytes.IndexByte(comm, 0); end >= 0 {
			comm = comm[:end]
		}
		r.Victim = Victim{
			Time: time.Duration(v.Time),
			PID:  int(v.Pid), TGID: int(v.Tgid), Comm: string(comm), OOMScoreAdj: int(v.OomScoreAdj),
			Cgroup: v.Cgroup,
		}
	default:
		return false, nil
	}
	r.Kind = kind
	return true, nil
}

// as returns raw as a T. raw must be aligned to 8 bytes.
func as[T any](raw []byte) (*T, error) {
	var t T
	if uintptr(len(raw)) < unsafe.Sizeof(t) {
		return nil, fmt.Errorf("a record of kind %d has %d bytes; want %d", raw[0], len(raw), unsafe.Sizeof(t))
	}
	return (*T)(unsafe.Pointer(&raw[0])), nil
}
