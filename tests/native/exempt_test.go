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

// kubeletAnnotations returns the annotation that a kubelet sets on every pod, and more of them.
func kubeletAnnotations(from string, more ...string) map[string]string {
	annotations := map[string]string{"kubernetes.io/config.source": from}
	for i := 0; i+1 < len(more); i += 2 {
		annotations[more[i]] = more[i+1]
	}
	return annotations
}

// TestExemptPodsLive: exempt pods are not evicted, although each is larger than the only eligible pod, and although
// evicting that one is not enough.
func TestExemptPodsLive(t *testing.T) {
	n := startNode(t, gibibyte)
	// The exempt pods leave 352 MiB, less their overhead of up to 5 MiB each (on cgroup v2 including kernel memory).
	large := oneContainer(holdArgs(96 * mebibyte))
	var exempt []*pod
	reasons := map[string]string{}
	for _, tt := range []struct {
		reason string
		spec   node.PodSpec
	}{
		{evict.ReasonStatic, node.PodSpec{Name: "static", Annotations: kubeletAnnotations("file")}},
		{evict.ReasonProtected, node.PodSpec{Name: "kubelets", Annotations: kubeletAnnotations("api")}},
		{evict.ReasonProtected, node.PodSpec{Name: "system", Namespace: "kube-system", Annotations: kubeletAnnotations("api")}},
		{evict.ReasonProtected, node.PodSpec{Name: "named"}},
		{evict.ReasonProtected, node.PodSpec{Name: "labelled", Labels: map[string]string{"app": "db"}}},
		{evict.ReasonProtected, node.PodSpec{Name: "spaced", Namespace: "quiet"}},
		{evict.ReasonCritical, node.PodSpec{Name: "critical", Annotations: map[string]string{"evictd.io/critical": "true"}}},
	} {
		tt.spec.Containers = large
		p := runPod(t, n, tt.spec).waitUsage(96 * mebibyte)
		exempt = append(exempt, p)
		reasons[p.key()] = tt.reason
	}
	victim := runPod(t, n, node.PodSpec{Name: "victim", Containers: oneContainer(growArgs(92 * mebibyte))})
	d := startDaemon(t, n, hardThreshold("280Mi")+"\nkubelet: override\nprotect: {names: [default/named], namespaces: [quiet], labelSelectors: [app=db]}",
		append(exempt, victim)...)
	d.checkExempt(reasons)
	victim.grow()
	victim.mustDie()
	d.checkVictims(victim)
	d.waitStatus("no eligible pod", func(s *control.Status) bool { return s.Pods.Eligible == 0 && s.Pods.Count == len(exempt) })
	d.waitReadings(3)
	mustLive(t, exempt...)
	rec := d.waitRecord(victim)
	checkKilled(t, &rec, victim)

	// The exempt pods alone cross this threshold, so evictd must report the signal as futile.
	d.configure(hardThreshold("512Mi") + "\nkubelet: override\nprotect: {names: [default/named], namespaces: [quiet], labelSelectors: [app=db]}")
	d.reload()
	s := d.waitStatus("futile signal", func(s *control.Status) bool { return len(s.Futile) > 0 })
	if f := s.Futile[0]; f.Deficit <= 0 || f.Coverage != 0 {
		t.Errorf("futility = %+v; want a deficit and no coverage", f)
	}
	d.waitReadings(3)
	mustLive(t, exempt...)
	d.checkVictims(victim)
}

// TestKubeletsPods: on a node with a kubelet's pods, evictd is in dry run.
func TestKubeletsPods(t *testing.T) {
	n := startNode(t, gibibyte)
	other := runPod(t, n, node.PodSpec{Name: "other", Containers: oneContainer(holdArgs(16 * mebibyte))}).waitUsage(16 * mebibyte)
	hog := runPod(t, n, node.PodSpec{Name: "hog", Annotations: kubeletAnnotations("api"), Containers: oneContainer(growArgs(600 * mebibyte))})
	d := startDaemon(t, n, hardThreshold("512Mi")+"\nunknownPriority: evict", other, hog)
	s := d.waitReadings(1)
	if why := strings.Join(s.Mode.Why, "; "); !s.Mode.DryRun || !strings.Contains(why, "a kubelet owns pods of this node") {
		t.Errorf("mode = dry run %t, because %q; want dry run because of the kubelet's pods", s.Mode.DryRun, why)
	}
	hog.grow()
	rec := d.waitRecord(hog)
	checkRecord(t, &rec, hog)
	if !rec.DryRun || rec.Result != evict.ResultDryRun || !rec.SignalSent.IsZero() {
		t.Errorf("record of the hog: dry run %t, result %s, signal sent %v; want true, dry-run, never", rec.DryRun, rec.Result, rec.SignalSent)
	}
	d.waitReadings(4)
	d.checkVictims(hog)
	mustLive(t, other, hog)
}

// TestOverride: with kubelet: override, evictd ranks a kubelet's pods by the priority in a trusted annotation, kills
// the container and leaves the sandbox to the kubelet.
func TestOverride(t *testing.T) {
	n := startNode(t, gibibyte)
	pods := map[string]*pod{}
	for name, priority := range map[string]string{"hog": "-5", "other": "5"} {
		pods[name] = runPod(t, n, node.PodSpec{
			Name: name, Annotations: kubeletAnnotations("api", "evictd.io/priority", priority), Containers: oneContainer(growArgs(300 * mebibyte)),
		})
	}
	// This namespace is not trusted, so the pod's priority is unknown and the pod is protected.
	pods["distrusted"] = runPod(t, n, node.PodSpec{
		Name: "distrusted", Namespace: "users", Annotations: kubeletAnnotations("api", "evictd.io/priority", "-1000"), Containers: oneContainer(holdArgs(100 * mebibyte)),
	}).waitUsage(100 * mebibyte)
	d := startDaemon(t, n, hardThreshold("512Mi")+"\nkubelet: override\ntrustAnnotations: [default]", pods["hog"], pods["other"], pods["distrusted"])
	pods["other"].grow()
	pods["other"].waitUsage(300 * mebibyte)
	pods["hog"].grow()
	hog := pods["hog"]
	hog.containersMustDie()
	d.checkVictims(hog)
	mustLive(t, pods["other"], pods["distrusted"])
	rec := d.waitRecord(hog)
	checkKilled(t, &rec, hog)
	checkRanksFirst(t, &rec, hog)
	now, err := n.Pod(t.Context(), hog.ID)
	if err != nil {
		t.Fatal(err)
	}
	if !hog.sandboxLives() || !now.Ready {
		t.Errorf("sandbox of the kubelet's pod: alive %t, ready %t; want both", hog.sandboxLives(), now.Ready)
	}
}

// TestSharedParent: of two pods with the same cgroup parent, only the hog is evicted.
func TestSharedParent(t *testing.T) {
	n := startNode(t, gibibyte)
	parent := n.ChildCgroup(n.Kubepods(), "shared")
	other := runPod(t, n, node.PodSpec{Name: "other", CgroupParent: parent, Containers: oneContainer(holdArgs(32 * mebibyte))}).waitUsage(32 * mebibyte)
	hog := runPod(t, n, node.PodSpec{Name: "hog", CgroupParent: parent, Containers: oneContainer(growArgs(600 * mebibyte))})
	d := startDaemon(t, n, hardThreshold("512Mi"), other, hog)
	hog.grow()
	hog.mustDie()
	d.checkVictims(hog)
	mustLive(t, other)
	rec := d.waitRecord(hog)
	checkKilled(t, &rec, hog)
	checkRanksFirst(t, &rec, hog)
}

// TestUnprovenCgroup: evictd does not kill a container whose cgroup contains another container, but stops it through
// the runtime. containerd then kills the inner container too.
func TestUnprovenCgroup(t *testing.T) {
	if memoryMount(t) == "/sys/fs/cgroup" {
		t.Skip("needs memory in a v1 tree: a v2 cgroup with processes in it has none below")
	}
	n := startNode(t, gibibyte)
	other := runPod(t, n, node.PodSpec{Name: "other", Containers: oneContainer(holdArgs(32 * mebibyte))}).waitUsage(32 * mebibyte)
	outer := runPod(t, n, node.PodSpec{Name: "outer", Containers: oneContainer(growArgs(600 * mebibyte))})
	runPod(t, n, node.PodSpec{Name: "inner", CgroupParent: outer.Containers[0].Cgroup, Containers: oneContainer(holdArgs(32 * mebibyte))}).waitUsage(32 * mebibyte)
	d := newDaemon(t, n, hardThreshold("512Mi")+"\nprotect: {names: [default/inner, default/other]}")
	d.start()
	d.waitPods(3)
	outer.grow()
	eventually(t, "end of the outer container", func() bool { return !outer.containersLive() })
	rec := d.waitRecord(outer)
	checkRecord(t, &rec, outer)
	if rec.Result != evict.ResultKilled || rec.Processes != 0 {
		t.Errorf("record: result %s, %d processes signalled; want killed, 0", rec.Result, rec.Processes)
	}
	if !rec.Futile || !rec.Candidates[0].NoStats {
		t.Errorf("record of a pod that can't be measured: futile %t, candidates %+v; want true, no stats", rec.Futile, rec.Candidates)
	}
	d.checkVictims(outer)
	mustLive(t, other)
}

// TestOwnCgroup: a pod that has moved evictd into its cgroup is evicted nevertheless, and evictd survives.
func TestOwnCgroup(t *testing.T) {
	n := startNode(t, gibibyte)
	other := runPod(t, n, node.PodSpec{Name: "other", Containers: oneContainer(holdArgs(32 * mebibyte))}).waitUsage(32 * mebibyte)
	hog := runPod(t, n, node.PodSpec{Name: "hog", Containers: oneContainer(growArgs(600 * mebibyte))})
	d := newDaemon(t, n, hardThreshold("512Mi"))
	d.start()
	joinCgroup(t, hog.Containers[0].Cgroup, d.cmd.Process.Pid)
	d.waitPods(2)
	d.checkExempt(nil)
	hog.grow()
	rec := d.waitRecord(hog)
	d.checkVictims(hog)
	mustLive(t, other)
	if rec.Result != evict.ResultKilled || !strings.Contains(rec.Error, "was not signalled") {
		t.Errorf("record: result %s, error %q; want killed, and an error that names evictd as not signalled", rec.Result, rec.Error)
	}
}

// joinCgroup moves a process into a cgroup of the hierarchy with the memory controller.
func joinCgroup(t *testing.T, cgroup string, pid int) {
	t.Helper()
	file := filepath.Join(memoryMount(t), cgroup, "cgroup.procs")
	if err := os.WriteFile(file, strconv.AppendInt(nil, int64(pid), 10), 0); err != nil {
		t.Fatal(err)
	}
}

// TestNoCgroupParent: a pod without a cgroup parent, whose containers are in cgroups that the runtime chose.
func TestNoCgroupParent(t *testing.T) {
	n := startNode(t, gibibyte)
	if n.Driver() == node.Systemd {
		t.Skip("needs the cgroupfs driver: runc chooses no slice itself")
	}
	size := nodeHog(t)
	other := runPod(t, n, node.PodSpec{Name: "other", Containers: oneContainer(holdArgs(32 * mebibyte))}).waitUsage(32 * mebibyte)
	hog := runPod(t, n, node.PodSpec{Name: "hog", QoS: node.BestEffort, CgroupParent: node.NoCgroupParent, Containers: []node.ContainerSpec{
		{Args: growArgs(size), MemoryLimit: size + 128*mebibyte},
	}})
	d := startDaemon(t, n, nodeThreshold(t, size), other, hog)
	hog.grow()
	hog.mustDie()
	d.checkVictims(hog)
	mustLive(t, other)
	rec := d.waitRecord(hog)
	checkKilled(t, &rec, hog)
	checkRanksFirst(t, &rec, hog)
}

// checkExempt fails the test unless evictd lists exactly these pods as exempt for these reasons. It empties the map.
func (d *daemon) checkExempt(reasons map[string]string) {
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
