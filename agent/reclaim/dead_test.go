package reclaim

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/cri"
	"github.com/evictd/evictd/kernel/kerneltest"
)

func TestDeadObjects(t *testing.T) {
	at := func(minutes int) time.Time { return start.Add(time.Duration(minutes) * time.Minute) }
	box := func(id, pod string, created int, ready bool) cri.Sandbox {
		return cri.Sandbox{ID: id, Name: pod, Namespace: "ns", UID: "u-" + pod, Created: at(created), Ready: ready}
	}
	kubelets := box("k", "kubelets", 0, false)
	kubelets.Annotations = map[string]string{evict.ConfigSourceAnnotation: "api"}
	exited := func(id, sandbox string, created int) cri.Container {
		return cri.Container{ID: id, SandboxID: sandbox, Name: id, State: cri.StateExited, Created: at(created)}
	}
	running := exited("run", "mixed", 1)
	running.State = cri.StateRunning
	sandboxes := []cri.Sandbox{
		box("old", "a", 1, false), box("older", "b", 0, false), box("ready", "c", 0, true), kubelets,
		box("young", "d", 9, false), box("first", "e", 0, false), box("second", "e", 5, true),
		box("mixed", "f", 0, false), box("evicted", "g", 9, true), box("unknown", "h", 0, false), box("late", "i", 0, false),
	}
	sandboxes[9].Created = time.Time{}
	containers := []cri.Container{
		exited("o1", "old", 1), exited("r1", "ready", 1), exited("k1", "k", 1), exited("m1", "mixed", 1), running,
		exited("v1", "evicted", 9), exited("f1", "first", 0), exited("l1", "late", 0),
	}
	exits := map[string]exit{"o1": {at(2), "/var/log/pods/ns_a_u-a/o1/0.log"}, "l1": {finished: at(9)}}
	names := func(absent bool, now int) string {
		var list []string
		for _, r := range deadObjects(sandboxes, containers, exits, map[string]EvictedUsage{"evicted": {}}, evict.Kubelet{Absent: absent}, time.Minute, at(now)) {
			list = append(list, r.sandbox.ID+"/"+r.container)
		}
		return strings.Join(list, " ")
	}
	// Omitted: first has a successor; ready, young and late are not old enough; the
	// age of unknown is unknown; of mixed only the exited container counts.
	if got, want := names(false, 9), "evicted/ older/ mixed/m1 old/"; got != want {
		t.Errorf("deadObjects = %q; want %q", got, want)
	}
	if got, want := names(false, 10), "evicted/ older/ mixed/m1 old/ late/ young/"; got != want {
		t.Errorf("deadObjects a minute later = %q; want %q", got, want)
	}
	if got, want := names(true, 9), "evicted/ older/ k/ mixed/m1 old/"; got != want {
		t.Errorf("deadObjects without a kubelet = %q; want %q", got, want)
	}
	containers[5].State = cri.StateRunning
	if got, want := names(false, 9), "older/ mixed/m1 old/"; got != want {
		t.Errorf("deadObjects while the evicted container runs = %q; want %q", got, want)
	}
}

func TestLogDir(t *testing.T) {
	for _, tt := range []struct{ log, want string }{
		{"/var/log/pods/ns_p_u/main/0.log", "/var/log/pods/ns_p_u"},
		{"/srv/logs/ns_p_u/main.log", "/srv/logs/ns_p_u"},
		{"/ns_p_u/main.log", ""}, // directly below the root
		{"/var/log/pods/ns_p_v/main/0.log", ""},
		{"/var/log/pods/ns_p_u.log", ""},
		{"", ""},
	} {
		r := deadObject{sandbox: cri.Sandbox{Namespace: "ns", Name: "p", UID: "u"}, logs: []string{tt.log}}
		if got := r.logDir(); got != tt.want {
			t.Errorf("logDir of %q = %q; want %q", tt.log, got, tt.want)
		}
	}
	r := deadObject{sandbox: cri.Sandbox{Namespace: "ns", Name: "p"}, logs: []string{"/var/log/pods/ns_p_/main/0.log"}}
	if got := r.logDir(); got != "" {
		t.Errorf("logDir without a UID = %q; want \"\"", got)
	}
}

// A sandbox counts as removed even if its logs can't be removed: no other is
// removed instead. Files on a filesystem mounted in the log directory are kept.
func TestLogsRemain(t *testing.T) {
	root := t.TempDir()
	n := &node{available: 50, sizes: map[string]int64{}, logsOf: map[string]string{}}
	deadPods(n, 5, false)
	var mounted []string
	for i := range n.sandboxes {
		s := &n.sandboxes[i]
		dir := "logs/" + s.Namespace + "_" + s.Name + "_" + s.UID
		n.sizes[s.ID], n.logsOf["c"+s.ID] = 200, "/"+dir+"/main/0.log"
		kerneltest.Write(t, root, map[string]string{dir + "/main/0.log": "x", dir + "/mnt/": ""})
		point := filepath.Join(root, dir, "mnt")
		kerneltest.Mount(t, "tmpfs", point, "tmpfs", 0, "size=64k")
		kerneltest.Write(t, root, map[string]string{dir + "/mnt/kept": "x"})
		mounted = append(mounted, filepath.Join(point, "kept"))
	}
	run(t, n, Policy{}, func(o *Options) { o.Rootfs = root }, func(r *Reclaimer) {
		r.Start(evict.Reclaim{Kind: evict.ReclaimContainers, Signal: signal.NodeFsAvailable, Deficit: 150})
		report := <-r.Done()
		if !slices.Equal(report.Removed, []string{"sandbox ns/p000"}) || report.Freed != 200 || !strings.Contains(report.Error, "logs") {
			t.Errorf("report %+v; want the first sandbox removed and an error about its logs", report)
		}
		if got := n.removals(); got != "sandbox s000" {
			t.Errorf("removed %q; want only s000", got)
		}
	})
	for _, path := range mounted {
		if b, err := os.ReadFile(path); err != nil || string(b) != "x" {
			t.Errorf("%s = %q, %v; want it unchanged", path, b, err)
		}
	}
}
