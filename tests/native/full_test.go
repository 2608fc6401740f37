package native_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/kernel/kerneltest"
	"github.com/evictd/evictd/tests/node"
)

// TestFullStateDisk: if evictd can't write its state, it goes on and logs that once.
func TestFullStateDisk(t *testing.T) {
	n := startNode(t, gibibyte)
	bystander := runPod(t, n, node.PodSpec{Name: "bystander", Containers: oneContainer(holdArgs(32 * mebibyte))}).waitUsage(32 * mebibyte)
	hog := runPod(t, n, node.PodSpec{Name: "hog", Containers: oneContainer(growArgs(600 * mebibyte))})
	d := newDaemon(t, n, hardThreshold("512Mi"))
	if err := os.MkdirAll(d.stateDir(), 0o700); err != nil {
		t.Fatal(err)
	}
	kerneltest.Mount(t, "tmpfs", d.stateDir(), "tmpfs", 0, "size=64k")
	t.Cleanup(func() { d.kill(unix.SIGKILL) }) // before it is unmounted
	d.start()
	d.waitPods(2)
	if err := os.WriteFile(filepath.Join(d.stateDir(), "full"), make([]byte, 128<<10), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("filling the state's disk: %v; want ENOSPC", err)
	}
	hog.grow()
	hog.mustDie()
	d.checkVictims(hog)
	mustLive(t, bystander)
	eventually(t, "log line about the state", func() bool { return strings.Contains(d.log.String(), "state is not saved") })
	d.waitReadings(3)
	if got := strings.Count(d.log.String(), "state is not saved"); got != 1 {
		t.Errorf("evictd logged %d times that state is not saved; want once", got)
	}
}

// TestFullLogDisk: if evictd can't write its log, it goes on, and logs the number of dropped lines when it can write
// again.
func TestFullLogDisk(t *testing.T) {
	n := startNode(t, gibibyte)
	bystander := runPod(t, n, node.PodSpec{Name: "bystander", Containers: oneContainer(holdArgs(32 * mebibyte))}).waitUsage(32 * mebibyte)
	hog := runPod(t, n, node.PodSpec{Name: "hog", Containers: oneContainer(growArgs(600 * mebibyte))})
	dir := t.TempDir()
	kerneltest.Mount(t, "tmpfs", dir, "tmpfs", 0, "size=64k")
	out, err := os.OpenFile(filepath.Join(dir, "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	d := newDaemon(t, n, hardThreshold("512Mi"))
	d.out = out
	t.Cleanup(func() { d.kill(unix.SIGKILL); out.Close() }) // before it is unmounted
	full := filepath.Join(dir, "full")
	if err := os.WriteFile(full, make([]byte, 128<<10), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("filling the log's disk: %v; want ENOSPC", err)
	}
	d.start()
	d.waitPods(2)
	hog.grow()
	hog.mustDie()
	d.checkVictims(hog)
	mustLive(t, bystander)
	logged := func() string {
		text, err := os.ReadFile(out.Name())
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	if text := logged(); strings.Contains(text, "hog") {
		t.Fatalf("the log on a full disk has %q; want no line about the hog", text)
	}
	if err := os.Remove(full); err != nil {
		t.Fatal(err)
	}
	d.reload()
	eventually(t, "log line about dropped lines", func() bool { return strings.Contains(logged(), "log lines dropped") })
	d.kill(unix.SIGTERM)
	if d.code != 0 {
		t.Errorf("evictd exited with code %d; want 0", d.code)
	}
}

// TestReadOnlyFilesystem: an eviction frees nothing on a read-only filesystem, so no pod is evicted. Once the filesystem
// is writable again, the pod that uses most of it is evicted.
func TestReadOnlyFilesystem(t *testing.T) {
	n := startNode(t, gibibyte)
	nodefs := kerneltest.MountLoop(t, "ext4", 64*mebibyte, "")
	const uid = "0a1b2c3d-0000-4000-8000-000000000002"
	volume := filepath.Join(nodefs, "pods", uid, "volumes", "kubernetes.io~empty-dir", "cache")
	if err := os.MkdirAll(volume, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(volume, "data"), make([]byte, 40*mebibyte), 0o600); err != nil {
		t.Fatal(err)
	}
	bystander := runPod(t, n, node.PodSpec{Name: "bystander", Containers: []node.ContainerSpec{{}}})
	filler := runPod(t, n, node.PodSpec{Name: "filler", UID: uid, Containers: []node.ContainerSpec{{}}})
	remount := func(flags uintptr) {
		t.Helper()
		if err := unix.Mount("", nodefs, "", unix.MS_REMOUNT|flags, ""); err != nil {
			t.Fatal(err)
		}
	}
	remount(unix.MS_RDONLY)
	d := newDaemon(t, n, "nodefsPath: "+nodefs+"\nevictionHard: {nodefs.available: 30Mi}")
	d.start()
	d.waitPods(2)
	d.waitStatus("crossed threshold of a read-only filesystem", func(s *control.Status) bool {
		o := s.Signals[signal.NodeFsAvailable]
		readOnly := slices.ContainsFunc(s.Filesystems, func(f control.Filesystem) bool { return f.Name == "nodefs" && f.ReadOnly })
		return readOnly && len(o.Thresholds) == 1 && o.Thresholds[0].Past
	})
	if s := d.waitReadings(5); len(s.Records) != 0 || len(s.Reclaims) != 0 {
		t.Errorf("records %+v, reclaims %+v; want none while nothing can be freed", s.Records, s.Reclaims)
	}
	mustLive(t, bystander, filler)

	remount(0)
	filler.mustDie()
	if err := os.RemoveAll(volume); err != nil { // as a kubelet would
		t.Fatal(err)
	}
	d.checkVictims(filler)
	mustLive(t, bystander)
}

// TestHungFilesystem: a filesystem that does not answer makes only its own signals unreadable. It delays neither an
// eviction for memory nor the exit of evictd.
func TestHungFilesystem(t *testing.T) {
	n := startNode(t, gibibyte)
	bystander := runPod(t, n, node.PodSpec{Name: "bystander", Containers: oneContainer(holdArgs(32 * mebibyte))}).waitUsage(32 * mebibyte)
	hog := runPod(t, n, node.PodSpec{Name: "hog", Containers: oneContainer(growArgs(600 * mebibyte))})
	hung := t.TempDir()
	kerneltest.MountHanging(t, hung)
	d := startDaemon(t, n, hardThreshold("512Mi")+"\nnodefsPath: "+hung, bystander, hog)
	d.waitStatus("error of the filesystem that hangs", func(s *control.Status) bool {
		return strings.Contains(s.Signals[signal.NodeFsAvailable].Error, "has not returned") && s.Signals[signal.ImageFsAvailable].Available != nil
	})
	hog.grow()
	hog.mustDie()
	d.checkVictims(hog)
	if r := d.waitRecord(hog); r.CrossingSeen.IsZero() || r.SignalSent.Sub(r.CrossingSeen) > waitTimeout/10 {
		t.Errorf("killed %v after the crossing; want no delay by the filesystem", r.SignalSent.Sub(r.CrossingSeen))
	}
	mustLive(t, bystander)
	d.kill(unix.SIGTERM)
	if d.code != 0 {
		t.Errorf("evictd exited with code %d; want 0", d.code)
	}
}
