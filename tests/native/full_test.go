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

// TestFullStateDisk: where evictd's own state can't be written it goes on, and says so once.
func TestFullStateDisk(t *testing.T) {
	n := startNode(t, gibibyte)
	calm := runPod(t, n, node.PodSpec{Name: "calm", Containers: one(holding(32 * mebibyte))}).uses(32 * mebibyte)
	hog := runPod(t, n, node.PodSpec{Name: "hog", Containers: one(growing(600 * mebibyte))})
	d := newDaemon(t, n, below("512Mi"))
	if err := os.MkdirAll(d.stateDir(), 0o700); err != nil {
		t.Fatal(err)
	}
	kerneltest.Mounted(t, "tmpfs", d.stateDir(), "tmpfs", 0, "size=64k")
	t.Cleanup(func() { d.kill(unix.SIGKILL) }) // before it is unmounted
	d.start()
	d.knows(2)
	if err := os.WriteFile(filepath.Join(d.stateDir(), "full"), make([]byte, 128<<10), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("filling the state's disk: %v; want ENOSPC", err)
	}
	hog.press()
	hog.mustDie()
	d.victims(hog)
	mustLive(t, calm)
	eventually(t, "word of the state", func() bool { return strings.Contains(d.log.String(), "state is not saved") })
	d.looks(3)
	if got := strings.Count(d.log.String(), "state is not saved"); got != 1 {
		t.Errorf("it was told %d times; want once", got)
	}
}

// TestFullLogDisk: where what evictd logs can't be written it goes on, and says so when it can be again.
func TestFullLogDisk(t *testing.T) {
	n := startNode(t, gibibyte)
	calm := runPod(t, n, node.PodSpec{Name: "calm", Containers: one(holding(32 * mebibyte))}).uses(32 * mebibyte)
	hog := runPod(t, n, node.PodSpec{Name: "hog", Containers: one(growing(600 * mebibyte))})
	dir := t.TempDir()
	kerneltest.Mounted(t, "tmpfs", dir, "tmpfs", 0, "size=64k")
	out, err := os.OpenFile(filepath.Join(dir, "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	d := newDaemon(t, n, below("512Mi"))
	d.out = out
	t.Cleanup(func() { d.kill(unix.SIGKILL); out.Close() }) // before it is unmounted
	full := filepath.Join(dir, "full")
	if err := os.WriteFile(full, make([]byte, 128<<10), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("filling the log's disk: %v; want ENOSPC", err)
	}
	d.start()
	d.knows(2)
	hog.press()
	hog.mustDie()
	d.victims(hog)
	mustLive(t, calm)
	logged := func() string {
		text, err := os.ReadFile(out.Name())
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	if text := logged(); strings.Contains(text, "hog") {
		t.Fatalf("the log has %q; want no room for it", text)
	}
	if err := os.Remove(full); err != nil {
		t.Fatal(err)
	}
	d.reload()
	eventually(t, "word of what was dropped", func() bool { return strings.Contains(logged(), "log lines dropped") })
	d.kill(unix.SIGTERM)
	if d.code != 0 {
		t.Errorf("evictd ended with code %d; want 0", d.code)
	}
}

// TestReadOnlyFilesystem: a filesystem that nobody can write to gives nothing back, so nobody goes for it; once it can be
// written to again, who fills it does.
func TestReadOnlyFilesystem(t *testing.T) {
	n := startNode(t, gibibyte)
	nodefs := kerneltest.Loop(t, "ext4", 64*mebibyte, "")
	const uid = "0a1b2c3d-0000-4000-8000-000000000002"
	volume := filepath.Join(nodefs, "pods", uid, "volumes", "kubernetes.io~empty-dir", "cache")
	if err := os.MkdirAll(volume, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(volume, "data"), make([]byte, 40*mebibyte), 0o600); err != nil {
		t.Fatal(err)
	}
	calm := runPod(t, n, node.PodSpec{Name: "calm", Containers: []node.ContainerSpec{{}}})
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
	d.knows(2)
	d.until("pressure on a filesystem that is read-only", func(s *control.Status) bool {
		o := s.Signals[signal.NodeFsAvailable]
		readOnly := slices.ContainsFunc(s.Filesystems, func(f control.Filesystem) bool { return f.Name == "nodefs" && f.ReadOnly })
		return readOnly && len(o.Thresholds) == 1 && o.Thresholds[0].Past
	})
	if s := d.looks(5); len(s.Records) != 0 || len(s.Reclaims) != 0 {
		t.Errorf("records %+v, reclaims %+v; want none while nothing can be freed", s.Records, s.Reclaims)
	}
	mustLive(t, calm, filler)

	remount(0)
	filler.mustDie()
	if err := os.RemoveAll(volume); err != nil { // as a kubelet would
		t.Fatal(err)
	}
	d.victims(filler)
	mustLive(t, calm)
}

// TestHungFilesystem: a filesystem that answers nobody makes its own signals unreadable. Memory is not held up by it,
// and evictd ends when it is asked to.
func TestHungFilesystem(t *testing.T) {
	n := startNode(t, gibibyte)
	calm := runPod(t, n, node.PodSpec{Name: "calm", Containers: one(holding(32 * mebibyte))}).uses(32 * mebibyte)
	hog := runPod(t, n, node.PodSpec{Name: "hog", Containers: one(growing(600 * mebibyte))})
	hung := t.TempDir()
	kerneltest.Hang(t, hung)
	d := startDaemon(t, n, below("512Mi")+"\nnodefsPath: "+hung, calm, hog)
	d.until("word of what hangs", func(s *control.Status) bool {
		return strings.Contains(s.Signals[signal.NodeFsAvailable].Error, "has not returned") && s.Signals[signal.ImageFsAvailable].Available != nil
	})
	hog.press()
	hog.mustDie()
	d.victims(hog)
	if r := d.ended(hog); r.CrossingSeen.IsZero() || r.SignalSent.Sub(r.CrossingSeen) > patience/10 {
		t.Errorf("killed %v after the crossing; want it not to be held up", r.SignalSent.Sub(r.CrossingSeen))
	}
	mustLive(t, calm)
	d.kill(unix.SIGTERM)
	if d.code != 0 {
		t.Errorf("evictd ended with code %d; want 0", d.code)
	}
}
