package loop

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/evictd/evictd/agent/disks"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/pods"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/kernel/disk"
)

func TestSetDiskUsage(t *testing.T) {
	limit := resource.MustParse("1Gi")
	pod := evict.Pod{
		HasStats:   true,
		Containers: []evict.Container{{Name: "a"}, {Name: "b"}}, InitContainers: []evict.Container{{Name: "side"}},
		Volumes: []evict.Volume{{Name: "cache", Type: evict.EmptyDir, SizeLimit: &limit}, {Name: "none", Type: evict.EmptyDir, SizeLimit: &limit}},
	}
	handle := pods.Handle{Containers: []evict.RunningContainer{{ID: "1", Index: 1}, {ID: "2", Index: 0}, {ID: "3", Init: true}, {ID: "4", Index: 7}}}
	measured := func(bytes, inodes uint64) disks.Measurement {
		return disks.Measurement{Usage: disk.Usage{Bytes: bytes, Inodes: inodes}}
	}
	setDiskUsage(&pod, handle, &disks.PodUsage{
		Known:  true,
		Layers: map[string]disks.Measurement{"1": measured(10, 1), "2": measured(20, 2), "3": measured(30, 3), "4": measured(40, 4)},
		Logs:   map[string]disks.Measurement{"1": measured(100, 5)},
		Volumes: []evict.Volume{
			{Name: "cache", Type: evict.EmptyDir, Medium: "Memory", Used: 7, Inodes: 8},
			{Name: "cache", Type: evict.ConfigMap, Used: 9, Inodes: 1},
		},
	}, map[string]int64{"2": 50})
	want := evict.Pod{
		HasStats: true,
		Containers: []evict.Container{
			{Name: "a", Usage: evict.ContainerUsage{Rootfs: 20, Inodes: 2, ImagesBytes: 50}},
			{Name: "b", Usage: evict.ContainerUsage{Rootfs: 10, Inodes: 1, Logs: 100, LogsInodes: 5}},
		},
		InitContainers: []evict.Container{{Name: "side", Usage: evict.ContainerUsage{Rootfs: 30, Inodes: 3}}},
		Volumes: []evict.Volume{
			{Name: "cache", Type: evict.EmptyDir, Medium: "Memory", SizeLimit: &limit, Used: 7, Inodes: 8},
			{Name: "none", Type: evict.EmptyDir, SizeLimit: &limit},
			{Name: "cache", Type: evict.ConfigMap, Used: 9, Inodes: 1},
		},
	}
	if diff := cmp.Diff(want, pod); diff != "" {
		t.Errorf("pod differs (-want +got):\n%s", diff)
	}
	setDiskUsage(&pod, handle, &disks.PodUsage{}, nil)
	if !pod.DiskUnknown {
		t.Error("a pod without measurements: DiskUnknown = false; want true")
	}
	pod.HasStats = false
	if setDiskUsage(&pod, handle, &disks.PodUsage{Known: true}, nil); !pod.DiskUnknown {
		t.Error("a pod without statistics: DiskUnknown = false; want true")
	}
}

// The pods of an earlier snapshot are not modified, and the usage of unchanged pods is
// not copied again.
func TestApplyDiskUsage(t *testing.T) {
	d := NewDiskUsage(disks.NewUsageMeter(disks.UsageMeterOptions{}))
	images := func() map[string]int64 { return nil }
	shared := []evict.Pod{{UID: "u", Containers: []evict.Container{{Name: "a"}}}}
	now := time.Now()
	s := pods.Snapshot{Pods: shared, Version: 1}
	d.Apply(&s, nil, now, images)
	first := s.Pods
	if !first[0].DiskUnknown || shared[0].DiskUnknown {
		t.Errorf("filled %+v of %+v; want DiskUnknown set in the copy only", first[0], shared[0])
	}
	s.Pods = shared
	d.Apply(&s, nil, now.Add(idleInterval), images)
	if &s.Pods[0] != &first[0] {
		t.Error("the usage of unchanged pods was copied again; want the same slice")
	}
	for what, change := range map[string]func() time.Time{
		"another version": func() time.Time { s.Version++; return now },
		"new measurements": func() time.Time {
			d.meter.SetPods(d.measured[:0], false)
			now = now.Add(2 * idleInterval)
			return now
		},
		"the copy is too old": func() time.Time { now = now.Add(usageMaxAge); return now },
	} {
		s.Pods = shared
		d.Apply(&s, nil, change(), images)
		if &s.Pods[0] == &first[0] {
			t.Errorf("%s: the usage was not copied again; want a new slice", what)
		}
		first = s.Pods
	}
	d.Apply(&s, []signal.Signal{signal.MemoryAvailable, signal.NodeFsAvailable}, now, images)
	if !d.low {
		t.Error("low = false with nodefs.available met; want true")
	}
	if d.Covers(now) {
		t.Errorf("Covers(%v) of a list without a time = true; want false", now)
	}
	s.LastAttempt = now.Add(1)
	d.Apply(&s, nil, now, images)
	if !d.Covers(now.Add(1)) || d.Covers(now.Add(2)) {
		t.Error("Covers() is wrong; want true up to the time at which the list was requested, and false after it")
	}
}
