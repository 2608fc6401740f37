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

// The loop copies the measured disk usage every idleInterval, and every usageIntervalLow
// while a disk threshold is met: its iterations may be much more frequent, for memory.
// After usageMaxAge it copies unchanged usage, too, because it was measured again since.
const (
	usageIntervalLow = 100 * time.Millisecond
	usageMaxAge      = 10 * time.Second
)

// UsageMeter measures the disk usage of pods.
type UsageMeter interface {
	SetPods(pods []disks.Pod, low bool)
	Version() uint64
	Usage(*disks.Pod) disks.PodUsage
}

// NewDiskUsage returns a DiskUsage without measurements.
func NewDiskUsage(meter UsageMeter) *DiskUsage { return &DiskUsage{meter: meter} }

// DiskUsage is the loop's copy of the measured disk usage of the pods.
type DiskUsage struct {
	meter UsageMeter

	// requested is when the list that the measured pods are from was requested; nil
	// without one.
	requested   atomic.Pointer[time.Time]
	read        time.Time // of the last check for new measurements; zero makes the next one due
	readVersion uint64    // of the measurements at that time
	copied      time.Time
	low         bool // a disk threshold is met
	measured    []disks.Pod
	byUID       map[string]disks.PodUsage

	// podsWithUsage are the pods of the snapshot of that version, with their disk usage.
	// Views share them, so they are immutable.
	podsWithUsage []evict.Pod
	version       uint64
}

// Apply adds the measured disk usage to the pods of a snapshot. met are the signals with a
// threshold met at the last step: for those of disks, measurements are more frequent. images
// returns, by container, the bytes of images that no other container uses.
func (d *DiskUsage) Apply(s *pods.Snapshot, met []signal.Signal, now time.Time, images func() map[string]int64) {
	low := slices.ContainsFunc(met, signal.Signal.IsDisk)
	if before := d.requested.Load(); before == nil || s.LastAttempt != *before || low != d.low {
		d.low, d.measured = low, diskPods(s)
		d.meter.SetPods(d.measured, low)
		requested := s.LastAttempt
		d.requested.Store(&requested)
		d.read, d.copied = time.Time{}, time.Time{}
	}
	interval := idleInterval
	if low {
		interval = usageIntervalLow
	}
	if now.Sub(d.read) >= interval {
		d.read = now
		d.update(now)
	}
	if d.podsWithUsage != nil && d.version == s.Version {
		s.Pods = d.podsWithUsage
		return
	}
	d.podsWithUsage, d.version = slices.Clone(s.Pods), s.Version
	exclusive := images()
	for i := range d.podsWithUsage {
		pod := &d.podsWithUsage[i]
		pod.Containers, pod.InitContainers, pod.Volumes = slices.Clone(pod.Containers), slices.Clone(pod.InitContainers), slices.Clone(pod.Volumes)
		usage := d.byUID[pod.UID]
		setDiskUsage(pod, s.Handles[pod.UID], &usage, exclusive)
	}
	s.Pods = d.podsWithUsage
}

// update copies the measurements if they have changed or the copy is too old.
func (d *DiskUsage) update(now time.Time) {
	version := d.meter.Version()
	if version == d.readVersion && now.Sub(d.copied) < usageMaxAge {
		return
	}
	d.readVersion, d.copied, d.podsWithUsage = version, now, nil
	d.byUID = make(map[string]disks.PodUsage, len(d.measured))
	for i := range d.measured {
		d.byUID[d.measured[i].UID] = d.meter.Usage(&d.measured[i])
	}
}

// Covers reports whether the measured pods are from a list that was requested since a
// time. It is safe for concurrent use.
func (d *DiskUsage) Covers(since time.Time) bool {
	requested := d.requested.Load()
	return requested != nil && !requested.Before(since)
}

// diskPods returns the pods of a snapshot as the meter measures them.
func diskPods(s *pods.Snapshot) []disks.Pod {
	measured := make([]disks.Pod, 0, len(s.Pods))
	for i := range s.Pods {
		uid := s.Pods[i].UID
		measured = append(measured, disks.Pod{UID: uid, Containers: s.Handles[uid].Containers, Limited: s.Pods[i].HasStorageLimit()})
	}
	return measured
}

// setDiskUsage copies the measurements of one pod into it.
func setDiskUsage(pod *evict.Pod, handle pods.Handle, u *disks.PodUsage, images map[string]int64) {
	// A pod without statistics counts as using nothing, so its files don't count as
	// measured either.
	pod.DiskUnknown = !u.Known || !pod.HasStats
	for _, c := range handle.Containers {
		slots := pod.Containers
		if c.Init {
			slots = pod.InitContainers
		}
		if c.Index >= len(slots) {
			continue
		}
		layer, logs, usage := u.Layers[c.ID], u.Logs[c.ID], &slots[c.Index].Usage
		usage.Rootfs, usage.Inodes = int64(layer.Bytes), int64(layer.Inodes)
		usage.Logs, usage.LogsInodes = int64(logs.Bytes), int64(logs.Inodes)
		usage.ImagesBytes = images[c.ID]
	}
	for _, v := range u.Volumes {
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
