package loop

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/evictd/evictd/agent/disks"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/pods"
	"github.com/evictd/evictd/agent/signal"
)

// How often what is known of the pods' disk usage is looked up, while a disk is
// low and else: the loop may turn much more often, for memory. How old it is is
// looked up seldom.
const (
	lookUp, lookUpLow = time.Second, 100 * time.Millisecond
	lookUpAge         = 10 * time.Second
)

// Usages measures what pods use of the disks.
type Usages interface {
	Want(subjects []disks.Subject, low bool)
	Version() uint64
	Of(*disks.Subject) disks.Holding
}

// NewDiskUsage returns the loop's view of what usages measures.
func NewDiskUsage(usages Usages) *DiskUsage { return &DiskUsage{usages: usages} }

// DiskUsage is the loop's view of what pods hold on the disks.
type DiskUsage struct {
	usages Usages

	// tried tells which list the subjects are from: when it was asked for; nil is never.
	tried    atomic.Pointer[time.Time]
	looked   time.Time // zero looks up at once
	known    uint64    // by the usages, when it was looked up
	aged     time.Time
	low      bool
	subjects []disks.Subject
	holdings map[string]disks.Holding // by UID

	// filled are the pods of a snapshot with what they hold; others may see them,
	// so they are not changed any more.
	filled  []evict.Pod
	version uint64 // of that snapshot
}

// Fill gives the snapshot pods with what is known of their disk usage. met are the
// signals with a threshold met in the step before, for which somebody may go. images
// returns, by container, the bytes of images that no other container uses.
func (d *DiskUsage) Fill(s *pods.Snapshot, met []signal.Signal, now time.Time, images func() map[string]int64) {
	low := slices.ContainsFunc(met, signal.Signal.IsDisk)
	if before := d.tried.Load(); before == nil || s.Tried != *before || low != d.low {
		d.low, d.subjects = low, subjectsOf(s)
		d.usages.Want(d.subjects, low)
		tried := s.Tried
		d.tried.Store(&tried)
		d.looked, d.aged = time.Time{}, time.Time{}
	}
	every := lookUp
	if low {
		every = lookUpLow
	}
	if now.Sub(d.looked) >= every {
		d.looked = now
		d.lookUp(now)
	}
	if d.filled != nil && d.version == s.Version {
		s.Pods = d.filled
		return
	}
	d.filled, d.version = slices.Clone(s.Pods), s.Version
	exclusive := images()
	for i := range d.filled {
		pod := &d.filled[i]
		pod.Containers, pod.InitContainers, pod.Volumes = slices.Clone(pod.Containers), slices.Clone(pod.InitContainers), slices.Clone(pod.Volumes)
		holding := d.holdings[pod.UID]
		hold(pod, s.Handles[pod.UID], &holding, exclusive)
	}
	s.Pods = d.filled
}

// lookUp takes what the usages know, where that is something else than before or
// has become old.
func (d *DiskUsage) lookUp(now time.Time) {
	known := d.usages.Version()
	if known == d.known && now.Sub(d.aged) < lookUpAge {
		return
	}
	d.known, d.aged, d.filled = known, now, nil
	d.holdings = make(map[string]disks.Holding, len(d.subjects))
	for i := range d.subjects {
		d.holdings[d.subjects[i].UID] = d.usages.Of(&d.subjects[i])
	}
}

// Covers reports whether what is measured are the pods of a list that was asked for
// since a time, as far as it came. It may be called by anybody.
func (d *DiskUsage) Covers(since time.Time) bool {
	tried := d.tried.Load()
	return tried != nil && !tried.Before(since)
}

func subjectsOf(s *pods.Snapshot) []disks.Subject {
	subjects := make([]disks.Subject, 0, len(s.Pods))
	for i := range s.Pods {
		uid := s.Pods[i].UID
		subjects = append(subjects, disks.Subject{UID: uid, Containers: s.Handles[uid].Containers, Limited: s.Pods[i].Limited()})
	}
	return subjects
}

// hold puts what is known of one pod into it.
func hold(pod *evict.Pod, handle pods.Handle, h *disks.Holding, images map[string]int64) {
	// What a pod without statistics uses counts as nothing, so that its files are
	// no measurement either.
	pod.DiskUnknown = !h.Known || !pod.HasStats
	for _, c := range handle.Containers {
		slots := pod.Containers
		if c.Init {
			slots = pod.InitContainers
		}
		if c.Slot >= len(slots) {
			continue
		}
		layer, logs, usage := h.Layers[c.ID], h.Logs[c.ID], &slots[c.Slot].Usage
		usage.Rootfs, usage.Inodes = int64(layer.Bytes), int64(layer.Inodes)
		usage.Logs, usage.LogsInodes = int64(logs.Bytes), int64(logs.Inodes)
		usage.ImagesBytes = images[c.ID]
	}
	for _, v := range h.Volumes {
		i := slices.IndexFunc(pod.Volumes, func(o evict.Volume) bool { return o.Name == v.Name && o.Type == v.Type })
		if i < 0 {
			pod.Volumes = append(pod.Volumes, v)
			continue
		}
		known := &pod.Volumes[i]
		known.Used, known.Inodes = v.Used, v.Inodes
		if v.Medium != "" {
			known.Medium = v.Medium
		}
	}
}
