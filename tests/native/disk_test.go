package native_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/kernel/disk"
	"github.com/evictd/evictd/kernel/kerneltest"
	"github.com/evictd/evictd/tests/node"
)

// startDiskNode starts a node on a new filesystem.
func startDiskNode(t *testing.T, fstype string, size int64, mkfs ...string) (n *node.Node, dir string) {
	t.Helper()
	if err := node.Check(""); err != nil {
		t.Skipf("needs %v", err)
	}
	e, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	dir = kerneltest.MountLoop(t, fstype, size, "", mkfs...)
	return startNodeIn(t, node.Options{Dir: dir, Log: t.Output(), Hog: e.hog, MemoryLimit: 2 * gibibyte}), dir
}

// podWriting returns a pod that writes so many bytes to the layer of its container.
func podWriting(name string, bytes int64) node.PodSpec {
	return node.PodSpec{Name: name, Containers: []node.ContainerSpec{{
		Args: []string{"file", "-path", "/tmp/data", "-passes", "0", "-bytes", fmt.Sprint(bytes)},
	}}}
}

func TestDiskUsageOfPods(t *testing.T) {
	n, dir := startDiskNode(t, "ext4", gibibyte)
	a := runPod(t, n, podWriting("a", 20*mebibyte))
	b := runPod(t, n, podWriting("b", 50*mebibyte))
	// A pod that is measured before it has written all is measured again a minute later.
	for p, size := range map[*pod]int64{a: 20 * mebibyte, b: 50 * mebibyte} {
		eventually(t, "file of pod "+p.Name, func() bool {
			s, err := os.Stat(fmt.Sprintf("/proc/%d/root/tmp/data", p.Containers[0].PID))
			return err == nil && s.Size() == size
		})
	}
	d := startDaemon(t, n, "nodefsPath: "+filepath.Join(dir)+"\nevictionHard: {nodefs.available: 1Mi}", a, b)
	eventually(t, "ranking by disk usage", func() bool {
		x, err := d.client.Explain(t.Context(), signal.NodeFsAvailable)
		return err == nil && len(x.Ranking) == 2 && x.Ranking[0].Pod == b.key() && x.Ranking[0].Usage > 50*mebibyte && x.Ranking[1].Usage > 20*mebibyte
	})
}

// available reads the space of a filesystem.
func available(t *testing.T, dir string) disk.Space {
	t.Helper()
	s, err := disk.ReadSpace(dir)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// diskRate is the write rate of disk hogs, in bytes per second: slow enough that evictd measures the other pods during
// the growth, and fast enough to cross a threshold within few polling intervals.
const diskRate = "83886080" // 80 MiB/s

// TestDiskHogs: a pod that fills the disk is evicted, the others stay, and the space is freed. The hogs write to their
// layer, to their log, or create many files.
func TestDiskHogs(t *testing.T) {
	for _, tt := range []struct {
		name, fstype string
		mkfs         []string
		threshold    string
		signal       signal.Signal
		hog          []string
		separate     bool // nodefs is another filesystem
	}{
		{name: "layer on ext4", fstype: "ext4", threshold: "nodefs.available: 600Mi", signal: signal.NodeFsAvailable,
			hog: []string{"file", "-path", "/tmp/data", "-passes", "0", "-rate", diskRate, "-bytes", "800000000"}},
		{name: "layer on xfs", fstype: "xfs", threshold: "imagefs.available: 600Mi", signal: signal.ImageFsAvailable,
			hog: []string{"file", "-path", "/tmp/data", "-passes", "0", "-rate", diskRate, "-bytes", "800000000"}},
		{name: "layer on btrfs", fstype: "btrfs", threshold: "nodefs.available: 600Mi", signal: signal.NodeFsAvailable,
			hog: []string{"file", "-path", "/tmp/data", "-passes", "0", "-rate", diskRate, "-bytes", "800000000"}},
		{name: "logs", fstype: "ext4", threshold: "nodefs.available: 600Mi", signal: signal.NodeFsAvailable, hog: []string{"logs", "-rate", diskRate, "-bytes", "800000000"}},
		{name: "inodes", fstype: "ext4", mkfs: []string{"-q", "-N", "16384"}, threshold: "nodefs.inodesFree: 8k", signal: signal.NodeFsInodesFree,
			hog: []string{"files", "-dir", "/tmp", "-n", "15000"}},
		{name: "inodes of a separate imagefs", fstype: "ext4", mkfs: []string{"-q", "-N", "16384"}, threshold: "imagefs.inodesFree: 8k",
			signal: signal.ImageFsInodesFree, separate: true, hog: []string{"files", "-dir", "/tmp", "-n", "15000"}},
		{name: "layer on a separate imagefs", fstype: "ext4", threshold: "imagefs.available: 600Mi", signal: signal.ImageFsAvailable, separate: true,
			hog: []string{"file", "-path", "/tmp/data", "-passes", "0", "-rate", diskRate, "-bytes", "800000000"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n, dir := startDiskNode(t, tt.fstype, gibibyte, tt.mkfs...)
			bystander := runPod(t, n, podWriting("bystander", 20*mebibyte))
			idle := runPod(t, n, node.PodSpec{Name: "idle", Containers: []node.ContainerSpec{{}}})
			nodefs, layout := dir, "single"
			if tt.separate {
				nodefs, layout = kerneltest.MountLoop(t, "ext4", 16*mebibyte, ""), "imagefs"
			}
			d := startDaemon(t, n, "nodefsPath: "+nodefs+"\nevictionHard: {"+tt.threshold+"}", bystander, idle)
			d.waitStatus("layout "+layout, func(s *control.Status) bool { return s.Layout == layout })
			before := available(t, dir)
			hog := runPod(t, n, node.PodSpec{Name: "hog", Containers: []node.ContainerSpec{{Args: tt.hog}}})
			hog.mustDie()
			s := d.waitStatus("end of the pressure", func(s *control.Status) bool {
				o := s.Signals[tt.signal]
				met := false
				for _, th := range o.Thresholds {
					met = met || th.Met
				}
				return o.Available != nil && !met && len(s.Victims) == 0
			})
			// On a shared filesystem, the crossing of either signal may be detected first.
			cause, _ := signal.Parse(s.Records[0].Cause)
			if records := recordsOf(&s, hog); len(records) != 1 || cause.Resource() != tt.signal.Resource() || len(s.Records) != 1 {
				t.Errorf("records %+v; want one, of the hog for %s", s.Records, tt.signal)
			}
			// btrfs does not free the chunks that it has allocated for metadata.
			kept := uint64(20 * mebibyte)
			if tt.fstype == "btrfs" {
				kept = 128 * mebibyte
			}
			var last uint64
			eventually(t, "space that the hog used", func() bool {
				after := available(t, dir)
				last = after.Available
				return after.Available+kept > before.Available && (!before.CountsInodes || after.InodesFree+200 > before.InodesFree)
			})
			t.Logf("%d MiB were available before, %d after", before.Available/mebibyte, last/mebibyte)
			s = d.waitReadings(3)
			if len(s.Records) != 1 {
				t.Errorf("records %+v; want only the hog's", s.Records)
			}
			mustLive(t, bystander, idle)
			if len(s.Reclaims) == 0 {
				t.Error("the status has no reclaim; want at least one")
			}
			for _, r := range s.Reclaims {
				t.Logf("reclaim of %s: %v, %d freed in %.2f s %s%s", r.Kind, r.Removed, r.Freed, r.TookSeconds, r.Note, r.Error)
			}
		})
	}
}

// TestStorageLimits: a pod over its own limit of a container or of an emptyDir is evicted, however much space the node
// has.
func TestStorageLimits(t *testing.T) {
	n, dir := startDiskNode(t, "ext4", gibibyte)
	bystander := runPod(t, n, withAnnotations(podWriting("bystander", 20*mebibyte), map[string]string{"evictd.io/ephemeral-storage-limits": "main=50Mi"}))
	d := startDaemon(t, n, "nodefsPath: "+dir+"\nevictionHard: {nodefs.available: 1Mi}", bystander)
	hog := runPod(t, n, withAnnotations(podWriting("hog", 80*mebibyte), map[string]string{"evictd.io/ephemeral-storage-limits": "main=50Mi"}))
	hog.mustDie()
	if r := d.waitRecord(hog); r.Cause != evict.CausePodLimit || !r.DisruptionTarget {
		t.Errorf("record %+v; want cause %s, with DisruptionTarget", r, evict.CausePodLimit)
	}

	const uid = "0a1b2c3d-0000-4000-8000-000000000001"
	volume := filepath.Join(dir, "pods", uid, "volumes", "kubernetes.io~empty-dir", "cache")
	if err := os.MkdirAll(volume, 0o777); err != nil {
		t.Fatal(err)
	}
	spec := podWriting("filler", 80*mebibyte)
	spec.UID, spec.Containers[0].Mounts = uid, []node.Mount{{Host: volume, Container: "/cache"}}
	spec.Containers[0].Args[2] = "/cache/data"
	filler := runPod(t, n, withAnnotations(spec, map[string]string{"evictd.io/emptydir-limits": "cache=50Mi"}))
	filler.mustDie()
	if r := d.waitRecord(filler); r.Cause != evict.CauseEmptyDirLimit {
		t.Errorf("record %+v; want cause %s", r, evict.CauseEmptyDirLimit)
	}
	mustLive(t, bystander)
}

func withAnnotations(spec node.PodSpec, annotations map[string]string) node.PodSpec {
	spec.Annotations = annotations
	return spec
}

// TestImagesGoFirst: before a pod is evicted, unused images are removed, as many as the deficit needs.
//
// Complexity: filling a real filesystem is expensive, so the test checks everything on one.
//
//gocyclo:ignore
func TestImagesGoFirst(t *testing.T) {
	n, dir := startDiskNode(t, "ext4", gibibyte)
	for i := range 4 {
		if err := n.AddImage(t.Context(), fmt.Sprintf("localhost/data:%d", i), 40*mebibyte); err != nil {
			t.Fatal(err)
		}
	}
	bystander := runPod(t, n, podWriting("bystander", 20*mebibyte))
	d := startDaemon(t, n, "nodefsPath: "+dir+"\nimageMinimumGCAge: 1s\nevictionHard: {nodefs.available: 400Mi}", bystander)
	// imageMinimumGCAge counts from evictd's first list of the images.
	d.waitStatus("list of the images", func(*control.Status) bool {
		images := 0
		state, err := os.ReadFile(filepath.Join(d.stateDir(), "state.json"))
		if err == nil {
			images = strings.Count(string(state), `"first"`)
		}
		return images >= 5
	})
	fill := available(t, dir).Available - 400*mebibyte + 100*mebibyte
	f, err := os.Create(filepath.Join(dir, "others"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Fallocate(int(f.Fd()), 0, 0, int64(fill)); err != nil {
		t.Fatal(err)
	}
	s := d.waitStatus("reclaim of images", func(s *control.Status) bool {
		for _, r := range s.Reclaims {
			if r.Kind == evict.ReclaimImages && len(r.Removed) > 0 {
				return true
			}
		}
		return false
	})
	d.waitStatus("end of the pressure", func(s *control.Status) bool {
		a := s.Signals[signal.NodeFsAvailable].Available
		return a != nil && *a >= 400*mebibyte
	})
	names, err := n.Images(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(names) < 4 || len(names) > 5 || !slices.Contains(names, node.HogImage) || !slices.Contains(names, node.PauseImage) {
		t.Errorf("images left: %q; want those in use, and two or three of the other four", names)
	}
	for _, r := range s.Reclaims {
		t.Logf("reclaim of %s: %v, %d freed in %.2f s %s%s", r.Kind, r.Removed, r.Freed, r.TookSeconds, r.Note, r.Error)
	}
	if s = d.waitReadings(3); len(s.Records) != 0 {
		t.Errorf("records %+v; want none", s.Records)
	}
	mustLive(t, bystander)

	// Removing dead containers freed nothing, removing images enough. Both reclaims are in the status after a crash.
	before := []control.Reclaim(s.Reclaims)
	if len(before) != 2 || before[0].Freed >= before[0].Deficit || before[1].Freed < before[1].Deficit || before[1].TookSeconds <= 0 {
		t.Errorf("reclaims %+v; want one without and one with enough freed", before)
	}
	eventually(t, "state with the reclaims", func() bool { return len(d.savedState().Reclaims) == len(before) })
	d.kill(syscall.SIGKILL)
	d.start()
	s = d.waitPods(1)
	if diff := cmp.Diff(before, []control.Reclaim(s.Reclaims)); diff != "" {
		t.Errorf("reclaims after a crash (-before +after):\n%s", diff)
	}
	if out, _ := d.evictctl("status"); !strings.Contains(out, "freed in "+fmt.Sprintf("%.2g", before[1].TookSeconds)) {
		t.Errorf("evictctl status does not show the reclaim of %.3f s:\n%s", before[1].TookSeconds, out)
	}
}
