package native_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/kernel/kerneltest"
	"github.com/evictd/evictd/tests/node"
)

// emptyDirOf creates the directory of a pod's emptyDir as a kubelet would.
func emptyDirOf(t *testing.T, nodefs, uid, name string) string {
	t.Helper()
	dir := filepath.Join(nodefs, "pods", uid, "volumes", "kubernetes.io~empty-dir", name)
	if err := os.MkdirAll(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestDiskHogBesideHang: a pod with emptyDirs on FUSE filesystems that do not answer does not prevent the eviction of a
// hog that starts later, and no other pod is evicted.
func TestDiskHogBesideHang(t *testing.T) {
	n, dir := startDiskNode(t, "ext4", gibibyte)
	const uid = "0a1b2c3d-0000-4000-8000-000000000002"
	for i := range 10 {
		kerneltest.MountHanging(t, emptyDirOf(t, dir, uid, "v"+strconv.Itoa(i)))
	}
	hangs := runPod(t, n, node.PodSpec{Name: "hangs", UID: uid, Containers: []node.ContainerSpec{{}}})
	bystander := runPod(t, n, podWriting("bystander", 40*mebibyte))
	d := startDaemon(t, n, "nodefsPath: "+dir+"\nevictionHard: {nodefs.available: 600Mi}", hangs, bystander)
	d.waitStatus("reading of the filesystem", func(s *control.Status) bool { return s.Signals[signal.NodeFsAvailable].Available != nil })
	hog := runPod(t, n, node.PodSpec{Name: "hog", Containers: []node.ContainerSpec{{
		Args: []string{"file", "-path", "/tmp/data", "-passes", "0", "-rate", diskRate, "-bytes", "800000000"},
	}}})
	hog.mustDie()
	d.waitRecord(hog)
	s := d.waitStatus("end of the pressure", func(s *control.Status) bool { return len(s.Victims) == 0 })
	if records := recordsOf(&s, hog); len(records) != 1 || len(s.Records) != 1 {
		t.Errorf("records %+v; want one, of the hog", s.Records)
	}
	mustLive(t, hangs, bystander)
}

// TestDiskFullOutsidePods: if a file outside of the pods fills the disk, no pod is evicted, and explain names the file.
func TestDiskFullOutsidePods(t *testing.T) {
	n, dir := startDiskNode(t, "ext4", 4*gibibyte)
	a, b := runPod(t, n, podWriting("a", mebibyte)), runPod(t, n, podWriting("b", mebibyte))
	d := startDaemon(t, n, "nodefsPath: "+dir+"\nevictionHard: {nodefs.available: 3Gi}", a, b)
	logBuffer := filepath.Join(dir, "log", "logBuffer")
	if err := os.Mkdir(filepath.Dir(logBuffer), 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(logBuffer)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Fallocate(int(f.Fd()), 0, 0, 1400*mebibyte); err != nil {
		t.Fatal(err)
	}
	d.waitStatus("futile signal without a back-off", func(s *control.Status) bool {
		// imagefs is the same filesystem and may be futile too.
		nodefs := false
		for _, f := range s.Futile {
			if !f.Until.IsZero() {
				return false
			}
			nodefs = nodefs || f.Signal == signal.NodeFsAvailable
		}
		return nodefs
	})
	eventually(t, "path of the file in explain", func() bool {
		x, err := d.client.Explain(t.Context(), signal.NodeFsAvailable)
		return err == nil && strings.Contains(strings.Join(x.Notes, "\n"), "/log 1.37Gi")
	})
	s := d.waitReadings(3)
	for _, r := range s.Records {
		if r.Result != evict.ResultKernel {
			t.Errorf("record %+v; want no eviction", r)
		}
	}
	mustLive(t, a, b)
}
