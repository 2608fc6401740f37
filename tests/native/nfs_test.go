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

// nfs is a mount of a directory that this machine exports to itself.
type nfs struct {
	t   *testing.T
	dir string
}

// startNFS mounts it until the test ends. It skips the test outside of a virtual machine.
func startNFS(t *testing.T) *nfs {
	t.Helper()
	if os.Getenv("EVICTD_TEST_VM") == "" {
		t.Skip("needs a virtual machine: an NFS server affects the whole machine")
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

// hang stops all threads of the server, so that requests wait; answer starts them again.
func (n *nfs) hang()   { n.must("rpc.nfsd", "0") }
func (n *nfs) answer() { n.must("rpc.nfsd", "2") }

// TestHungNFS: a server that does not answer makes the signals of its filesystem unreadable and delays nothing else.
// When it answers again, so do the signals.
func TestHungNFS(t *testing.T) {
	share := startNFS(t)
	n := startNode(t, gibibyte)
	bystander := runPod(t, n, node.PodSpec{Name: "bystander", Containers: oneContainer(holdArgs(32 * mebibyte))}).waitUsage(32 * mebibyte)
	hog := runPod(t, n, node.PodSpec{Name: "hog", Containers: oneContainer(growArgs(600 * mebibyte))})
	d := startDaemon(t, n, hardThreshold("512Mi")+"\nnodefsPath: "+share.dir, bystander, hog)
	readable := func(s *control.Status) bool { return s.Signals[signal.NodeFsAvailable].Available != nil }
	d.waitStatus("reading of the share", readable)
	share.hang()
	d.waitStatus("error of the share that hangs", func(s *control.Status) bool {
		return strings.Contains(s.Signals[signal.NodeFsAvailable].Error, "has not returned") && s.Signals[signal.ImageFsAvailable].Available != nil
	})
	hog.grow()
	hog.mustDie()
	d.checkVictims(hog)
	if r := d.waitRecord(hog); r.CrossingSeen.IsZero() || r.SignalSent.Sub(r.CrossingSeen) > waitTimeout/10 {
		t.Errorf("killed %v after the crossing; want no delay by the filesystem", r.SignalSent.Sub(r.CrossingSeen))
	}
	mustLive(t, bystander)
	share.answer()
	d.waitStatus("reading of the share after the hang", readable)
	share.hang()
	d.waitStatus("error of the share that hangs again", func(s *control.Status) bool { return !readable(s) })
	d.kill(unix.SIGTERM)
	if d.code != 0 {
		t.Errorf("evictd exited with code %d; want 0", d.code)
	}
}
