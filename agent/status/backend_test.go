package status

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/config"
	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/loop"
	"github.com/evictd/evictd/agent/pods"
	"github.com/evictd/evictd/agent/reclaim"
	"github.com/evictd/evictd/agent/signal"
)

// contains reports whether one of the texts contains part.
func contains(texts []string, part string) bool {
	return slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(text, part) })
}

// TestStatusBeforeTheFirstIteration checks what operators see while evictd starts: it is
// not ready, evicts nothing, and states why.
func TestStatusBeforeTheFirstIteration(t *testing.T) {
	n := newNode(t)
	s := n.Status()
	if s.Ready || !contains(s.Missing, "observation: the first observation is not complete yet") {
		t.Errorf("ready %t, missing %q; want not ready because of the observation", s.Ready, s.Missing)
	}
	if !s.Mode.DryRun || len(s.Mode.Why) != 1 {
		t.Errorf("mode %+v; want dry run with one reason", s.Mode)
	}
	if s.PID != os.Getpid() || s.Node.CgroupFS != n.tree || s.Node.CgroupVersion == "" {
		t.Errorf("process %d, node %+v; want this process and the tree of the test", s.PID, s.Node)
	}
	if !slices.ContainsFunc(s.Lanes, func(l control.Lane) bool { return l.Name == "bpf" && !l.Up && l.State == "off" && l.Why != "" }) ||
		!slices.ContainsFunc(s.Lanes, func(l control.Lane) bool { return l.Name == "poll" && l.PeriodSeconds != nil }) {
		t.Errorf("lanes %+v; want bpf that is off, and poll with an interval", s.Lanes)
	}
	if got := n.StatusLine(); !strings.HasPrefix(got, "not ready: observation: ") {
		t.Errorf("StatusLine() = %q; want the reason why evictd is not ready", got)
	}
	if _, err := n.Explain(signal.MemoryAvailable); !errors.Is(err, errNoView) {
		t.Errorf("Explain() = %v; want %v", err, errNoView)
	}
}

// TestStatus checks the status of a node in dry run under pressure.
//
// Complexity: one check for each group of fields.
//
//gocyclo:ignore
func TestStatus(t *testing.T) {
	n := newNode(t, func(o *Options) {
		o.Warnings = []string{"of the start"}
		o.WebWarning = func() string { return "metrics are not served" }
	})
	v := n.step(t, "evictionHard: {memory.available: 1Gi, nodefs.available: 1Gi, nodefs.inodesFree: 5%}\n", pod("web", 2*gib))
	v.Mode = loop.Mode{DryRun: true, Reasons: []string{"--dry-run was given"}}
	v.Orders.Conditions = []signal.Condition{signal.MemoryPressure}
	v.State.DryRunVictims = []evict.DryRunVictim{{UID: "web", Cause: evict.CausePodLimit, OverLimit: true}, {UID: "gone"}}
	v.State.Victims = []evict.Victim{{UID: "old"}}
	at := time.Now().Add(-time.Minute)
	for i := range maxProactiveReports + 1 {
		n.AddProactiveReclaim(evict.ReclaimReport{At: at.Add(time.Duration(i) * time.Second), Kind: evict.ReclaimMemory, Removed: []string{"default/web"}})
	}
	n.o.Reclaimer.RestoreReports([]evict.ReclaimReport{{
		At: at.Add(2500 * time.Millisecond), Kind: evict.ReclaimImages, Reason: reclaim.Pressure, Removed: []string{"a"}, RemovedMore: 7,
		Deficit: 9, Freed: 5, Duration: 1500 * time.Millisecond,
	}})
	n.o.Records.Restore([]evict.Record{{Pod: "default/old", Result: evict.ResultKilled}})
	loaded := time.Now().Add(-time.Hour)
	n.SetLoadResult(LoadResult{At: loaded, Error: "line 3", Changed: []config.Change{{Field: "maxVictims", Before: "1", After: "2"}}, NeedsRestart: []string{"notification"}})

	s := n.Status()
	if !s.Ready || len(s.Missing) != 0 {
		t.Errorf("ready %t, missing %q; want ready", s.Ready, s.Missing)
	}
	if diff := cmp.Diff(control.Mode{DryRun: true, Why: control.List[string]{"--dry-run was given"}}, s.Mode); diff != "" {
		t.Errorf("mode differs (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(control.List[control.DryRunVictim]{{Pod: "default/web", UID: "web", Cause: evict.CausePodLimit}}, s.DryRunVictims); diff != "" {
		t.Errorf("victims of the dry run differ (-want +got):\n%s", diff)
	}
	if m := s.Signals[signal.MemoryAvailable]; m.Status != control.Observed || m.DryRunAdds == 0 || len(m.Thresholds) == 0 {
		t.Errorf("memory.available: %+v; want it observed, with its threshold and with what dry run adds", m)
	}
	if len(s.Conditions) != 1 || len(s.Victims) != 1 || len(s.Records) != 1 || s.Pods.Count != 1 {
		t.Errorf("conditions %v, victims %v, records %v, pods %+v; want one of each", s.Conditions, s.Victims, s.Records, s.Pods)
	}
	// The oldest of the proactive reclaims is dropped.
	if len(s.Reclaims) != maxProactiveReports+1 || !slices.IsSortedFunc(s.Reclaims, func(a, b control.Reclaim) int { return a.At.Compare(b.At) }) {
		t.Errorf("%d reclaims; want %d, sorted by time", len(s.Reclaims), maxProactiveReports+1)
	}
	i := slices.IndexFunc(s.Reclaims, func(r control.Reclaim) bool { return r.Kind == evict.ReclaimImages })
	if want := (control.Reclaim{
		At: at.Add(2500 * time.Millisecond), Kind: evict.ReclaimImages, Reason: reclaim.Pressure, Removed: control.List[string]{"a"}, RemovedMore: 7,
		Deficit: 9, Freed: 5, TookSeconds: 1.5,
	}); i < 0 || !cmp.Equal(want, s.Reclaims[i]) {
		t.Errorf("reclaims %+v; want one of images: %+v", s.Reclaims, want)
	}
	if c := s.Config; !c.LoadedAt.Equal(loaded) || c.LastReloadError != "line 3" || len(c.Changed) != 1 || len(c.NeedsRestart) != 1 || len(c.Files) != 1 {
		t.Errorf("configuration %+v; want the result of the last load", c)
	}
	for _, want := range []string{"of the start", "metrics are not served", "configured but not observed here: nodefs.available, nodefs.inodesFree"} {
		if !contains(s.Warnings, want) {
			t.Errorf("warnings %q; want %q", s.Warnings, want)
		}
	}
	if want := "dry run, nothing is evicted; MemoryPressure"; n.StatusLine() != want {
		t.Errorf("StatusLine() = %q; want %q", n.StatusLine(), want)
	}
}

// TestWarningOfExemptPods checks the warning that no pod can be evicted.
func TestWarningOfExemptPods(t *testing.T) {
	n := newNode(t)
	exempt := pod("web", gib)
	exempt.ProtectedReason = "contains evictd"
	n.step(t, "evictionHard: {memory.available: 1Gi}\n", exempt)
	if s := n.Status(); !contains(s.Warnings, "no pod is eligible for eviction") || s.Pods.Count != 1 || s.Pods.Eligible != 0 {
		t.Errorf("pods %+v, warnings %q; want a warning that no pod is eligible", s.Pods, s.Warnings)
	}
}

// TestStatusOfUnsavedState checks that a state that can't be written is reported.
func TestStatusOfUnsavedState(t *testing.T) {
	n := newNode(t)
	n.o.Store = brokenStore(t)
	n.Backend = New(*n.o)
	if s := n.Status(); !contains(s.Warnings, "state is not saved") {
		t.Errorf("warnings %q; want that the state is not saved", s.Warnings)
	}
}

// TestReload checks that the command reaches the daemon, and its error the operator.
func TestReload(t *testing.T) {
	wrong := errors.New("f.yaml:3: unknown field")
	n := newNode(t, func(o *Options) { o.Reload = func(context.Context) error { return wrong } })
	if err := n.Reload(t.Context()); !errors.Is(err, wrong) {
		t.Errorf("Reload() = %v; want %v", err, wrong)
	}
	if l := n.LoadResult(); l.Error != "" || l.At.IsZero() {
		t.Errorf("LoadResult() = %+v; want the load at the start", l)
	}
}

// TestExplainMemory checks the explanation of a memory signal on a node in dry run.
func TestExplainMemory(t *testing.T) {
	n := newNode(t, func(o *Options) { o.Accounting = config.AccountingKubelet })
	exempt := pod("system.slice", gib)
	exempt.ProtectedReason = "contains evictd"
	v := n.step(t, "evictionHard: {memory.available: 1Gi}\n", pod("web", 2*gib), exempt)
	v.Mode.DryRun = true
	v.State.DryRunVictims = []evict.DryRunVictim{{UID: "web", Signal: signal.MemoryAvailable}}
	handle := v.Snapshot.Handles["system.slice"]
	handle.Containers = append(handle.Containers, evict.RunningContainer{Name: "vm", Unproven: "in a VM"}, evict.RunningContainer{Name: "old", Cgroup: "/gone", CgroupID: 7})
	v.Snapshot.Handles["system.slice"] = handle
	e, err := n.Explain(signal.MemoryAvailable)
	if err != nil {
		t.Fatal(err)
	}
	if e.Signal != signal.MemoryAvailable || e.Observation.Status != control.Observed || e.Memory == nil || e.Memory.SwapTotalBytes == nil {
		t.Errorf("explanation %+v; want an observed signal, and the memory outside it", e)
	}
	for _, want := range []string{"swap is ignored", "active file cache counts as used", "dry run: nothing is evicted", "default/web would have been evicted"} {
		if !contains(e.Notes, want) {
			t.Errorf("notes %q; want %q", e.Notes, want)
		}
	}
	if len(e.Exempt) == 0 || !slices.ContainsFunc(e.Exempt, func(x evict.Exempt) bool { return strings.Contains(x.Pod, "system.slice") }) {
		t.Errorf("exempt pods %+v; want the pod that contains evictd", e.Exempt)
	}
	adjusted, errs := 0, 0
	for _, s := range e.OOMScores {
		if s.Processes == 1 && s.Min != nil && *s.Mismatched == 1 {
			adjusted++
		}
		if s.Error == "in a VM" {
			errs++
		}
	}
	// The container whose cgroup is gone is left out.
	if len(e.OOMScores) != 3 || adjusted != 2 || errs != 1 {
		t.Errorf("oom_score_adj %+v; want two of one process with another value, and one that is not known", e.OOMScores)
	}
}

// TestExplainRanking checks the candidates of memory and disk signals.
func TestExplainRanking(t *testing.T) {
	n := newNode(t)
	v := n.step(t, "evictionHard: {memory.available: 1Gi}\noomScoreAdj: off\n", pod("web", 2*gib))
	v.DiskUsage = podUsage("web", time.Now().Add(-time.Minute))
	for s, want := range map[signal.Signal]control.Container{
		signal.MemoryAvailable:  {Name: "main", Cgroup: "/web", Usage: new(2 * gib), Request: new(gib)},
		signal.NodeFsAvailable:  {Name: "main", Cgroup: "/web", Usage: new(2 * gib / 10)},
		signal.NodeFsInodesFree: {Name: "main", Cgroup: "/web", Usage: new(int64(77))},
		signal.PIDAvailable:     {Name: "main", Cgroup: "/web"},
	} {
		e, err := n.Explain(s)
		if err != nil || len(e.Ranking) != 1 {
			t.Fatalf("Explain(%s) = %+v, %v; want one candidate", s, e, err)
		}
		c := e.Ranking[0]
		if diff := cmp.Diff(control.List[control.Container]{want}, c.Containers); diff != "" {
			t.Errorf("Explain(%s): containers differ (-want +got):\n%s", s, diff)
		}
		if c.Why == "" || c.QoS == "" {
			t.Errorf("Explain(%s): candidate %+v; want the reason of its rank, and its QoS class", s, c)
		}
		if measured := c.Disk != nil && c.Disk.AgeSeconds != nil && *c.Disk.AgeSeconds >= 60; measured != s.IsDisk() {
			t.Errorf("Explain(%s): disk usage %+v; want it for disk signals, a minute old", s, c.Disk)
		}
		if hypothetical := contains(e.Notes, "the ranking is hypothetical"); hypothetical != (s != signal.MemoryAvailable) {
			t.Errorf("Explain(%s): notes %q; want that it is not observed unless it is", s, e.Notes)
		}
		if len(e.OOMScores) != 0 || (e.Memory != nil) != s.IsMemory() {
			t.Errorf("Explain(%s): %d values of oom_score_adj, memory %v; want none, and memory for memory signals only", s, len(e.OOMScores), e.Memory)
		}
	}
}

// TestExplainLargestCgroups checks that explain names the memory of system services.
func TestExplainLargestCgroups(t *testing.T) {
	n := newNode(t)
	n.step(t, "evictionHard: {memory.available: 1Gi}\n")
	e, err := n.Explain(signal.MemoryAvailable)
	if err != nil || !contains(e.Notes, "the largest cgroups outside the pods: ") || !contains(e.Notes, "/system.slice ") {
		t.Errorf("Explain() = notes %q, %v; want /system.slice among the largest cgroups", e.Notes, err)
	}
}

// TestPodsWithoutUsage checks that explain leaves out what is not measured.
func TestPodsWithoutUsage(t *testing.T) {
	n := newNode(t)
	unmeasured := pod("web", 0)
	unmeasured.HasStats, unmeasured.DiskUnknown = false, true
	n.step(t, "evictionHard: {memory.available: 1Gi}\n", unmeasured)
	n.view.Snapshot.Handles = map[string]pods.Handle{}
	for _, s := range []signal.Signal{signal.MemoryAvailable, signal.NodeFsAvailable} {
		e, err := n.Explain(s)
		if err != nil || len(e.Ranking) != 1 || e.Ranking[0].Containers[0].Usage != nil || e.Ranking[0].Containers[0].Cgroup != "" {
			t.Errorf("Explain(%s) = %+v, %v; want one candidate without usage and cgroup", s, e.Ranking, err)
		}
	}
}
