package native_test

import (
	"errors"
	"os"
	"path/filepath"
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
	eventually(t, "word of the state", func() bool { return strings.Contains(d.log.String(), "state not saved") })
	d.looks(3)
	if got := strings.Count(d.log.String(), "state not saved"); got != 1 {
		t.Errorf("it was told %d times; want once", got)
	}
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
