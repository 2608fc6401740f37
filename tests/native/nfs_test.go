package native_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/tests/node"
)

// nfs is a filesystem that this machine serves to itself.
type nfs struct {
	t   *testing.T
	dir string
}

// startNFS mounts one until the test ends. It needs a virtual machine: the server is everybody's.
func startNFS(t *testing.T) *nfs {
	t.Helper()
	if os.Getenv("EVICTD_TEST_VM") == "" {
		t.Skip("needs a virtual machine: a server of NFS is everybody's")
	}
	n := &nfs{t, t.TempDir()}
	served := t.TempDir()
	n.must("systemctl", "start", "nfs-server")
	t.Cleanup(func() { n.must("systemctl", "stop", "nfs-server") })
	n.must("exportfs", "-o", "rw,no_root_squash,insecure,fsid=0", "127.0.0.1:"+served)
	t.Cleanup(func() { n.must("exportfs", "-u", "127.0.0.1:"+served) })
	n.must("mount", "-t", "nfs4", "-o", "hard,timeo=20", "127.0.0.1:/", n.dir)
	t.Cleanup(func() {
		n.answer()
		if err := unix.Unmount(n.dir, unix.MNT_FORCE|unix.MNT_DETACH); err != nil {
			t.Errorf("unmount NFS: %v", err)
		}
	})
	return n
}

func (n *nfs) must(argv ...string) {
	n.t.Helper()
	if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
		n.t.Fatalf("%s: %v: %s", strings.Join(argv, " "), err, out)
	}
}

// hang leaves the server without threads, so that whoever asks waits; answer ends that.
func (n *nfs) hang()   { n.must("rpc.nfsd", "0") }
func (n *nfs) answer() { n.must("rpc.nfsd", "2") }

// TestHungNFS: a server that is gone makes the signals of its filesystem unreadable and holds nothing else up; when it is
// back, so are they.
func TestHungNFS(t *testing.T) {
	share := startNFS(t)
	n := startNode(t, gibibyte)
	calm := runPod(t, n, node.PodSpec{Name: "calm", Containers: one(holding(32 * mebibyte))}).uses(32 * mebibyte)
	hog := runPod(t, n, node.PodSpec{Name: "hog", Containers: one(growing(600 * mebibyte))})
	d := startDaemon(t, n, below("512Mi")+"\nnodefsPath: "+share.dir, calm, hog)
	readable := func(s *control.Status) bool { return s.Signals[signal.NodeFsAvailable].Available != nil }
	d.until("reading of the share", readable)
	share.hang()
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
	share.answer()
	d.until("reading of the share that is back", readable)
	share.hang()
	d.until("word of what hangs again", func(s *control.Status) bool { return !readable(s) })
	d.kill(unix.SIGTERM)
	if d.code != 0 {
		t.Errorf("evictd ended with code %d; want 0", d.code)
	}
}
