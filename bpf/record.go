package bpf

import (
	"bytes"
	"fmt"
	"time"
	"unsafe"
)

// Kind says which part of a [Record] is filled in.
type Kind uint32

// The kinds of records.
const (
	KindCrossing Kind = 1 // a threshold was crossed
	KindGone     Kind = 2 // the pods' cgroup was removed
	KindVictim   Kind = 3 // the kernel's OOM killer took a process
)

// Record is one event.
type Record struct {
	Kind     Kind
	Crossing Crossing
	Gone     Gone
	Victim   Victim
}

// Crossing says that less is available than a threshold asks for. It is written
// once: again only after there was a margin above the threshold, or after
// [Sampler.Rearm]. A crossing that waits because file cache brought it is written
// once more when it is answered (growth.h).
type Crossing struct {
	Key    uint64 // of the Threshold
	Source Source
	// LastAbove is when the tick before saw no crossing; 0 if none has since the
	// threshold was armed.
	LastAbove time.Duration
	// Seen is when the crossing was, Sent when this record was written: later if
	// there was no room before, or if the threshold was raised just then.
	Seen, Sent time.Duration
	Available  uint64
	Threshold  uint64
	Period     time.Duration // between the tick that saw it and the one before
	// Waiting says that file cache brought the crossing, and that other memory has
	// not grown since by as much as the threshold's GrowthFloor.
	Waiting bool
	// Reference is what the crossing is compared with, At the crossing, Now the
	// latest point and Recent the latest that is a second older than that. A point
	// with Time 0 is none.
	Reference, At, Recent, Now MemoryPoint
	Sample                     Sample // of the tick that wrote it
}

// MemoryPoint is what was in use at one time, in bytes: file cache, which is active
// file pages, and all other memory. Inactive file pages are not in use.
type MemoryPoint struct {
	Time             time.Duration // of CLOCK_MONOTONIC; 0: none
	Other, FileCache uint64
}

func memoryPoint(raw *samplerMemoryPoint) MemoryPoint {
	return MemoryPoint{Time: time.Duration(raw.Time), Other: raw.Other, FileCache: raw.FileCache}
}

func (p *MemoryPoint) raw() samplerMemoryPoint {
	return samplerMemoryPoint{Time: uint64(p.Time), Other: p.Other, FileCache: p.FileCache}
}

// Gone says that the cgroup given to [Sampler.SetPods] is no more.
type Gone struct {
	Time   time.Duration
	Cgroup uint64
}

// Victim is a process that the kernel's OOM killer is about to kill, for want of
// memory in a cgroup or on the node.
type Victim struct {
	Time time.Duration
	PID  int // the thread that was chosen
	// TGID is its process, Comm its name, OOMScoreAdj its adjustment and Cgroup its
	// memory cgroup. All of them are zero where the kernel's tracepoint tells no
	// more than the PID.
	TGID        int
	Comm        string
	OOMScoreAdj int
	Cgroup      uint64
}

// Sample is what one tick has read.
type Sample struct {
	Time time.Duration
	Tick uint64
	Node Node
	Pods Pods
}

// Node is the node's memory as memory.available counts it.
type Node struct {
	Valid                                bool // false: it could not be read
	Anon, File, InactiveFile, ActiveFile uint64
	Slope                                int64 // of the working set, in bytes per second
}

// WorkingSet is what the kubelet subtracts from the capacity.
func (n Node) WorkingSet() uint64 { return workingSet(n.Anon+n.File, n.InactiveFile) }

// Pods is the memory of the pods' cgroup, with all that is below it.
type Pods struct {
	Valid bool // false: there is no such cgroup, or it could not be read
	// Truncated says that the last walk did not get to the end of the tree, which is
	// why the figures are not valid.
	Truncated bool
	// Uncertain says that a threshold is crossed by so little that a survey of what
	// removed and unlisted cgroups have is to decide, soon. Until then the figures are
	// not valid.
	Uncertain bool
	Usage     uint64
	// Walked is when the file figures were read, and WalkUsage what was in use then.
	// Usage is as old as the sample.
	Walked                   time.Duration
	WalkUsage                uint64
	InactiveFile, ActiveFile uint64
	Slope                    int64 // of the usage, in bytes per second
}

// WorkingSet is what the kubelet subtracts from the allocatable capacity.
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

// enum valid of records.h.
const (
	validNode = 1 << iota
	validPods
	podsTruncated
	podsUncertain
)

// decode reads one record. It reports false for a kind that it does not know.
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
			Reference: memoryPoint(&c.Reference), At: memoryPoint(&c.At), Recent: memoryPoint(&c.Recent), Now: memoryPoint(&c.Now),
		}
		r.Crossing.Sample.set(&c.Sample)
	case KindGone:
		g, err := as[samplerGone](raw)
		if err != nil {
			return false, err
		}
		r.Gone = Gone{Time: time.Duration(g.Time), Cgroup: g.Cgroup}
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

// as reads raw, which starts at a multiple of 8, as a T.
func as[T any](raw []byte) (*T, error) {
	var t T
	if uintptr(len(raw)) < unsafe.Sizeof(t) {
		return nil, fmt.Errorf("a record of kind %d has %d bytes; want %d", raw[0], len(raw), unsafe.Sizeof(t))
	}
	return (*T)(unsafe.Pointer(&raw[0])), nil
}
