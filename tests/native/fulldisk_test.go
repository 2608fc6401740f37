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

// emptyDirOf makes an emptyDir of a pod where a kubelet would.
func emptyDirOf(t *testing.T, nodefs, uid, name string) string {
	t.Helper()
	dir := filepath.Join(nodefs, "pods", uid, "volumes", "kubernetes.io~empty-dir", name)
	if err := os.MkdirAll(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	return dir
}

// A pod whose emptyDirs are FUSE filesystems that do not answer keeps no hog from being
// found that starts later, and no innocent pod goes in its place.
func TestDiskHogBesideHang(t *testing.T) {
	n, dir := startDiskNode(t, "ext4", gibibyte)
	const uid = "0a1b2c3d-0000-4000-8000-000000000002"
	for i := range 10 {
		kerneltest.Hang(t, emptyDirOf(t, dir, uid, "v"+strconv.Itoa(i)))
	}
	hangs := runPod(t, n, node.PodSpec{Name: "hangs", UID: uid, Containers: []node.ContainerSpec{{}}})
	calm := runPod(t, n, writes("calm", 40*mebibyte))
	d := startDaemon(t, n, "nodefsPath: "+dir+"\nevictionHard: {nodefs.available: 600Mi}", hangs, calm)
	d.until("reading of the filesystem", func(s *control.Status) bool { return s.Signals[signal.NodeFsAvailable].Available != nil })
	hog := runPod(t, n, node.PodSpec{Name: "hog", Containers: []node.ContainerSpec{{
		Args: []string{"file", "-path", "/tmp/data", "-passes", "0", "-rate", rate, "-bytes", "800000000"},
	}}})
	hog.mustDie()
	d.ended(hog)
	s := d.until("end of the pressure", func(s *control.Status) bool { return len(s.Victims) == 0 })
	if records := of(&s, hog); len(records) != 1 || len(s.Records) != 1 {
		t.Errorf("records %+v; want one, of the hog", s.Records)
	}
	mustLive(t, hangs, calm)
}

// A disk that something outside the pods fills costs no pod, and what fills it is named.
func TestDiskFullOutsidePods(t *testing.T) {
	n, dir := startDiskNode(t, "ext4", 4*gibibyte)
	a, b := runPod(t, n, writes("a", mebibyte)), runPod(t, n, writes("b", mebibyte))
	d := startDaemon(t, n, "nodefsPath: "+dir+"\nevictionHard: {nodefs.available: 3Gi}", a, b)
	journal := filepath.Join(dir, "log", "journal")
	if err := os.Mkdir(filepath.Dir(journal), 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(journal)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Fallocate(int(f.Fd()), 0, 0, 1400*mebibyte); err != nil {
		t.Fatal(err)
	}
	d.until("notice that no pod can help", func(s *control.Status) bool {
		// The containers' filesystem is the same one here, and may be noticed besides.
		nodefs := false
		for _, f := range s.Futile {
			if !f.Until.IsZero() {
				return false
			}
			nodefs = nodefs || f.Signal == signal.NodeFsAvailable
		}
		return nodefs
	})
	eventually(t, "name of what fills it", func() bool {
		x, err := d.client.Explain(t.Context(), signal.NodeFsAvailable)
		return err == nil && strings.Contains(strings.Join(x.Notes, "\n"), "/log 1.37Gi")
	})
	s := d.looks(3)
	for _, r := range s.Records {
		if r.Result != evict.ResultKernel {
			t.Errorf("record %+v; want no eviction", r)
		}
	}
	mustLive(t, a, b)
}
