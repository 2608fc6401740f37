package native_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/tests/node"
)

// source is the annotation that a kubelet puts on every pod.
func source(from string, more ...string) map[string]string {
	annotations := map[string]string{"kubernetes.io/config.source": from}
	for i := 0; i+1 < len(more); i += 2 {
		annotations[more[i]] = more[i+1]
	}
	return annotations
}

// TestExemptPodsLive: whoever may not be evicted lives, although each is larger than the one that may be, and
// although evicting that one does not help.
func TestExemptPodsLive(t *testing.T) {
	n := startNode(t, gibibyte)
	// They leave 352 MiB, less what each pod takes besides: up to 5 MiB, on cgroup v2 with the kernel's own for it.
	large := one(holding(96 * mebibyte))
	var exempt []*pod
	reasons := map[string]string{}
	for _, tt := range []struct {
		reason string
		spec   node.PodSpec
	}{
		{evict.ReasonStatic, node.PodSpec{Name: "static", Annotations: source("file")}},
		{evict.ReasonProtected, node.PodSpec{Name: "kubelets", Annotations: source("api")}},
		{evict.ReasonProtected, node.PodSpec{Name: "system", Namespace: "kube-system", Annotations: source("api")}},
		{evict.ReasonProtected, node.PodSpec{Name: "named"}},
		{evict.ReasonProtected, node.PodSpec{Name: "labelled", Labels: map[string]string{"app": "db"}}},
		{evict.ReasonProtected, node.PodSpec{Name: "spaced", Namespace: "quiet"}},
		{evict.ReasonCritical, node.PodSpec{Name: "critical", Annotations: map[string]string{"evictd.io/critical": "true"}}},
	} {
		tt.spec.Containers = large
		p := runPod(t, n, tt.spec).uses(96 * mebibyte)
		exempt = append(exempt, p)
		reasons[p.key()] = tt.reason
	}
	victim := runPod(t, n, node.PodSpec{Name: "victim", Containers: one(growing(92 * mebibyte))})
	d := startDaemon(t, n, below("280Mi")+"\nkubelet: override\nprotect: {names: [default/named], namespaces: [quiet], labelSelectors: [app=db]}",
		append(exempt, victim)...)
	d.exempt(reasons)
	victim.press()
	victim.mustDie()
	d.victims(victim)
	d.until("pods of which none may go", func(s *control.Status) bool { return s.Pods.Eligible == 0 && s.Pods.Count == len(exempt) })
	d.looks(3)
	mustLive(t, exempt...)
	rec := d.ended(victim)
	killed(t, &rec, victim)

	// What is left does not fit, so that evictd must say that it can't help.
	d.configure(below("512Mi") + "\nkubelet: override\nprotect: {names: [default/named], namespaces: [quiet], labelSelectors: [app=db]}")
	d.reload()
	s := d.until("futile signal", func(s *control.Status) bool { return len(s.Futile) > 0 })
	if f := s.Futile[0]; f.Deficit <= 0 || f.Coverage != 0 {
		t.Errorf("futility = %+v; want a deficit and no coverage", f)
	}
	d.looks(3)
	mustLive(t, exempt...)
	d.victims(victim)
}

// TestKubeletsPods: beside a kubelet evictd only watches.
func TestKubeletsPods(t *testing.T) {
	n := startNode(t, gibibyte)
	other := runPod(t, n, node.PodSpec{Name: "other", Containers: one(holding(16 * mebibyte))}).uses(16 * mebibyte)
	hog := runPod(t, n, node.PodSpec{Name: "hog", Annotations: source("api"), Containers: one(growing(600 * mebibyte))})
	d := startDaemon(t, n, below("512Mi")+"\nunknownPriority: evict", other, hog)
	s := d.looks(1)
	if why := strings.Join(s.Mode.Why, "; "); !s.Mode.DryRun || !strings.Contains(why, "a kubelet owns pods of this node") {
		t.Errorf("mode = dry run %t, because %q; want dry run because of the kubelet's pods", s.Mode.DryRun, why)
	}
	hog.press()
	rec := d.ended(hog)
	plausible(t, &rec, hog)
	if !rec.DryRun || rec.Result != evict.ResultDryRun || !rec.SignalSent.IsZero() {
		t.Errorf("record of the hog: dry run %t, result %s, signal sent %v; want true, dry-run, never", rec.DryRun, rec.Result, rec.SignalSent)
	}
	d.looks(4)
	d.victims(hog)
	mustLive(t, other, hog)
}

// TestOverride: told to, evictd kills a kubelet's container by the priority that a trusted annotation gives, and
// leaves the sandbox to the kubelet.
func TestOverride(t *testing.T) {
	n := startNode(t, gibibyte)
	pods := map[string]*pod{}
	for name, priority := range map[string]string{"hog": "-5", "other": "5"} {
		pods[name] = runPod(t, n, node.PodSpec{
			Name: name, Annotations: source("api", "evictd.io/priority", priority), Containers: one(growing(300 * mebibyte)),
		})
	}
	// Nobody trusts this namespace, so that the pod's priority stays unknown and it is spared.
	pods["distrusted"] = runPod(t, n, node.PodSpec{
		Name: "distrusted", Namespace: "users", Annotations: source("api", "evictd.io/priority", "-1000"), Containers: one(holding(100 * mebibyte)),
	}).uses(100 * mebibyte)
	d := startDaemon(t, n, below("512Mi")+"\nkubelet: override\ntrustAnnotations: [default]", pods["hog"], pods["other"], pods["distrusted"])
	pods["other"].press()
	pods["other"].uses(300 * mebibyte)
	pods["hog"].press()
	hog := pods["hog"]
	hog.containersMustDie()
	d.victims(hog)
	mustLive(t, pods["other"], pods["distrusted"])
	rec := d.ended(hog)
	killed(t, &rec, hog)
	ranksFirst(t, &rec, hog)
	now, err := n.Pod(t.Context(), hog.ID)
	if err != nil {
		t.Fatal(err)
	}
	if !hog.sandboxLives() || !now.Ready {
		t.Errorf("sandbox of the kubelet's pod: alive %t, ready %t; want both", hog.sandboxLives(), now.Ready)
	}
}

// TestSharedParent: two pods in one cgroup are two pods: one of them goes.
func TestSharedParent(t *testing.T) {
	n := startNode(t, gibibyte)
	parent := n.Child(n.Kubepods(), "shared")
	other := runPod(t, n, node.PodSpec{Name: "other", CgroupParent: parent, Containers: one(holding(32 * mebibyte))}).uses(32 * mebibyte)
	hog := runPod(t, n, node.PodSpec{Name: "hog", CgroupParent: parent, Containers: one(growing(600 * mebibyte))})
	d := startDaemon(t, n, below("512Mi"), other, hog)
	hog.press()
	hog.mustDie()
	d.victims(hog)
	mustLive(t, other)
	rec := d.ended(hog)
	killed(t, &rec, hog)
	ranksFirst(t, &rec, hog)
}

// TestUnprovenCgroup: a container whose cgroup holds another's is not killed by evictd, who can't tell them apart,
// but stopped by the runtime. That containerd then takes the inner one along is its own doing.
func TestUnprovenCgroup(t *testing.T) {
	if memoryMount(t) == "/sys/fs/cgroup" {
		t.Skip("needs memory in a v1 tree: a v2 cgroup with processes in it has none below")
	}
	n := startNode(t, gibibyte)
	other := runPod(t, n, node.PodSpec{Name: "other", Containers: one(holding(32 * mebibyte))}).uses(32 * mebibyte)
	outer := runPod(t, n, node.PodSpec{Name: "outer", Containers: one(growing(600 * mebibyte))})
	runPod(t, n, node.PodSpec{Name: "inner", CgroupParent: outer.Containers[0].Cgroup, Containers: one(holding(32 * mebibyte))}).uses(32 * mebibyte)
	d := newDaemon(t, n, below("512Mi")+"\nprotect: {names: [default/inner, default/other]}")
	d.start()
	d.knows(3)
	outer.press()
	eventually(t, "end of the outer container", func() bool { return !outer.containersLive() })
	rec := d.ended(outer)
	plausible(t, &rec, outer)
	if rec.Result != evict.ResultKilled || rec.Processes != 0 {
		t.Errorf("record: result %s, %d processes signalled; want killed, and none by evictd", rec.Result, rec.Processes)
	}
	if !rec.Futile || !rec.Candidates[0].NoStats {
		t.Errorf("record of a pod that can't be measured: futile %t, candidates %+v; want it so", rec.Futile, rec.Candidates)
	}
	d.victims(outer)
	mustLive(t, other)
}

// TestOwnCgroup: a pod that moves evictd into its own cgroup is no less evicted for that, and evictd lives.
func TestOwnCgroup(t *testing.T) {
	n := startNode(t, gibibyte)
	other := runPod(t, n, node.PodSpec{Name: "other", Containers: one(holding(32 * mebibyte))}).uses(32 * mebibyte)
	hog := runPod(t, n, node.PodSpec{Name: "hog", Containers: one(growing(600 * mebibyte))})
	d := newDaemon(t, n, below("512Mi"))
	d.start()
	enter(t, hog.Containers[0].Cgroup, d.cmd.Process.Pid)
	d.knows(2)
	d.exempt(nil)
	hog.press()
	rec := d.ended(hog)
	d.victims(hog)
	mustLive(t, other)
	if rec.Result != evict.ResultKilled || !strings.Contains(rec.Error, "is not signalled") {
		t.Errorf("record: result %s, error %q; want it killed, and evictd named as spared", rec.Result, rec.Error)
	}
}

// enter takes a process into a cgroup of the tree that carries memory.
func enter(t *testing.T, cgroup string, pid int) {
	t.Helper()
	file := filepath.Join(memoryMount(t), cgroup, "cgroup.procs")
	if err := os.WriteFile(file, strconv.AppendInt(nil, int64(pid), 10), 0); err != nil {
		t.Fatal(err)
	}
}

// TestNoCgroupParent: a pod that has no cgroup of its own, with a container in one that the runtime made up.
func TestNoCgroupParent(t *testing.T) {
	n := startNode(t, gibibyte)
	if n.Driver() == node.Systemd {
		t.Skip("needs the cgroupfs driver: runc makes up no slice")
	}
	size := nodeHog(t)
	other := runPod(t, n, node.PodSpec{Name: "other", Containers: one(holding(32 * mebibyte))}).uses(32 * mebibyte)
	hog := runPod(t, n, node.PodSpec{Name: "hog", QoS: node.BestEffort, CgroupParent: node.NoCgroupParent, Containers: []node.ContainerSpec{
		{Args: growing(size), MemoryLimit: size + 128*mebibyte},
	}})
	d := startDaemon(t, n, nodeThreshold(t, size), other, hog)
	hog.press()
	hog.mustDie()
	d.victims(hog)
	mustLive(t, other)
	rec := d.ended(hog)
	killed(t, &rec, hog)
	ranksFirst(t, &rec, hog)
}

// exempt fails the test unless evictd explains that exactly these pods, by name, are exempt for these reasons. It
// empties the map.
func (d *daemon) exempt(reasons map[string]string) {
	d.t.Helper()
	for _, e := range d.explain().Exempt {
		if want, ok := reasons[e.Pod]; !ok || e.Reason != want {
			d.t.Errorf("exempt pod %s: reason %q; want %q", e.Pod, e.Reason, want)
		}
		delete(reasons, e.Pod)
	}
	for p, reason := range reasons {
		d.t.Errorf("pod %s is not exempt; want it %s", p, reason)
	}
}
