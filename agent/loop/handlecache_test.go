package loop

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/act"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/pods"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/kernel/cgroup"
)

// inCgroup runs a process in a cgroup of the test's own, and returns a snapshot
// of a node on which that is a pod.
func inCgroup(t *testing.T) (*cgroup.Hierarchy, pods.Snapshot) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: to make a cgroup")
	}
	h, err := cgroup.Find("/sys/fs/cgroup")
	if err != nil {
		t.Skip("needs cgroups: ", err)
	}
	path := fmt.Sprintf("/evictd-test-agent-%d-%d", os.Getpid(), time.Now().UnixNano())
	dir := h.Memory.Path(path)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Skip("needs to make a cgroup: ", err)
	}
	t.Cleanup(func() {
		for end := time.Now().Add(20 * time.Second); os.Remove(dir) != nil; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Errorf("left behind: %s", dir)
				return
			}
		}
	})
	join(t, h, path)
	g, err := h.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	return h, pods.Snapshot{
		Pods: []evict.Pod{
			{UID: "gone", HasStats: true, Containers: []evict.Container{{Name: "c"}}},
			{UID: "u", HasStats: true, Usage: evict.PodUsage{Memory: 7, Freeable: 6}, Containers: []evict.Container{{Name: "c", Usage: evict.ContainerUsage{Memory: 5}}}},
		},
		Taken: time.Unix(2000, 0), Read: []time.Time{time.Unix(1900, 0), time.Unix(1950, 0)},
		Handles: map[string]pods.Handle{
			"gone": {Containers: []evict.ContainerHandle{{ID: "c0", Name: "c", Cgroup: path + "/not-there", CgroupID: 1}}},
			"u":    {Containers: []evict.ContainerHandle{{ID: "c1", Name: "c", Cgroup: path, CgroupID: g.ID()}}},
		},
	}
}

// join runs another process in a cgroup until the test ends.
func join(t *testing.T, h *cgroup.Hierarchy, path string) {
	t.Helper()
	cmd := exec.Command("sh", "-c", "echo $$ > "+filepath.Join(h.Memory.Path(path), "cgroup.procs")+"; echo; exec sleep 1000")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	// Processes are held in the order of their sizes, which change until it sleeps.
	wchan := fmt.Sprintf("/proc/%d/wchan", cmd.Process.Pid)
	for asleep := []byte(nil); !bytes.Contains(asleep, []byte("nanosleep")); time.Sleep(time.Millisecond) {
		if asleep, err = os.ReadFile(wchan); err != nil {
			t.Fatal(err)
		}
	}
}

// Complexity: the life of one handle, with a check after each step.
//
//gocyclo:ignore
func TestHolds(t *testing.T) {
	h, s := inCgroup(t)
	before := descriptors(t)
	held := newHandleCache(func(j act.Job) (*act.Hold, error) { return act.Prepare(h, "/proc", j) }, "/proc")
	defer held.close()
	ranked := []evict.Ranked{{UID: "gone"}, {UID: "u"}}
	now := time.Now()
	held.update(&s, ranked, &evict.Guard{}, now)
	if len(held.byUID) != 1 || held.byUID["u"] == nil {
		t.Fatalf("held = %v; want u alone", held.byUID)
	}
	first := held.byUID["u"].handle
	held.update(&s, ranked, &evict.Guard{}, now.Add(2*recheckInterval))
	if held.byUID["u"].handle != first {
		t.Error("a pod whose processes are the same was prepared anew; want it kept")
	}

	policy := &evict.Policy{}
	order, _ := policy.Rank(s.Pods, signal.MemoryAvailable, &evict.State{}, now)
	for victims, want := range map[int]time.Time{1: s.Read[order[0].Index()], 2: s.Read[0]} {
		in := &evict.Inputs{Policy: &evict.Policy{MaxVictims: victims}, Pods: s.Pods}
		if got := held.table(in, &View{Snapshot: s}, order, &evict.Guard{}, 3).Decision.Taken; !got.Equal(want) {
			t.Errorf("%d may be chosen: the table is of %v; want %v, when what they hold was read", victims, got, want)
		}
	}
	table := held.table(&evict.Inputs{Policy: policy, Pods: s.Pods}, &View{Snapshot: s}, nil, &evict.Guard{}, 3)
	if r := table.Rows[1]; r.Hold != first || !r.Known || r.WorkingSet != 5 || r.Memory != 7 || r.Freeable != 6 || len(r.Cgroups) != 1 || r.Cgroups[0] != s.Handles["u"].Containers[0].CgroupID {
		t.Errorf("row of u = %+v; want its Hold and what was read of it", r)
	}
	if r := table.Rows[0]; r.Hold != nil || r.Known || table.Generation != 3 {
		t.Errorf("row of the pod that has gone = %+v of generation %d; want none, of 3", r, table.Generation)
	}
	cold, err := table.Prepare(1)
	if err != nil {
		t.Fatalf("Prepare(1) = %v; want u's", err)
	}
	cold.Close()
	if _, err := table.Prepare(0); err == nil {
		t.Error("Prepare(0) of a pod that has gone is no error; want one")
	}

	held.update(&s, ranked, &evict.Guard{}, now.Add(3*recheckInterval))
	was := descriptors(t)
	join(t, h, s.Handles["u"].Containers[0].Cgroup)
	before += descriptors(t) - was
	looked := now.Add(3 * recheckInterval)
	if held.processesChanged(looked.Add(idleHandleCheckInterval - 1)) {
		t.Errorf("outdated() right after a look = true; want it looked at every %v", idleHandleCheckInterval)
	}
	if !held.processesChanged(looked.Add(idleHandleCheckInterval)) {
		t.Error("outdated() with another process in the cgroup = false; want true")
	}
	held.update(&s, ranked, &evict.Guard{}, looked.Add(idleHandleCheckInterval))
	if held.byUID["u"].handle == first {
		t.Error("after that the pod is held as it was; want it prepared anew")
	}
	first = held.byUID["u"].handle
	if held.processesChanged(looked.Add(2 * idleHandleCheckInterval)) {
		t.Error("outdated() of a pod that was prepared anew = true; want false")
	}

	handle := s.Handles["u"]
	handle.Containers[0].ID = "c2" // it was restarted in place
	restarted := pods.Snapshot{Pods: s.Pods, Handles: map[string]pods.Handle{"u": {Containers: append([]evict.ContainerHandle{}, handle.Containers...)}}}
	held.byUID["u"].containers = []evict.ContainerHandle{{ID: "c1"}}
	held.update(&restarted, ranked[1:], &evict.Guard{}, now)
	if held.byUID["u"] == nil || held.byUID["u"].handle == first || first.Grab() {
		t.Error("a pod with another container is held as it was; want it prepared anew, and the old one given up")
	}
	taken := held.take("u")
	if taken == nil || held.take("u") != nil {
		t.Errorf("take() twice = %v; want a Hold once", taken)
	}
	taken.Close()
	held.update(&pods.Snapshot{}, nil, &evict.Guard{}, now)
	if after := descriptors(t); after != before {
		t.Errorf("descriptors went from %d to %d; want all given back", before, after)
	}
}

// Whoever comes first in the ranking is held, also when as many are as may be, and
// those that can't be held do not keep the others waiting.
func TestHoldsMakeRoom(t *testing.T) {
	h, s := inCgroup(t)
	handle := s.Handles["u"]
	for i := range maxOpenedPerStep + 4 {
		s.Handles[fmt.Sprint("gone", i)] = s.Handles["gone"]
	}
	for i := range 8 {
		s.Handles[fmt.Sprint("u", i)] = handle
	}
	held := newHandleCache(func(j act.Job) (*act.Hold, error) { return act.Prepare(h, "/proc", j) }, "/proc")
	held.maxPods = 4
	defer held.close()
	ranking := func(uids ...string) (list []evict.Ranked) {
		for i := range maxOpenedPerStep + 4 {
			list = append(list, evict.Ranked{UID: fmt.Sprint("gone", i)})
		}
		for _, uid := range uids {
			list = append(list, evict.Ranked{UID: uid})
		}
		return list
	}
	now := time.Now()
	holding := func() []string { return slices.Sorted(maps.Keys(held.byUID)) }
	held.update(&s, ranking("u0", "u1", "u2", "u3"), &evict.Guard{}, now)
	held.update(&s, ranking("u0", "u1", "u2", "u3"), &evict.Guard{}, now.Add(time.Second))
	if got := holding(); !slices.Equal(got, []string{"u0", "u1", "u2", "u3"}) {
		t.Errorf("in the second turn held = %q; want all four", got)
	}
	if len(held.failed) != maxOpenedPerStep+4 {
		t.Errorf("%d are known not to be held; want %d", len(held.failed), maxOpenedPerStep+4)
	}
	follow := func(want []string, uids ...string) {
		t.Helper()
		held.update(&s, ranking(uids...)[maxOpenedPerStep+4:], &evict.Guard{}, now.Add(time.Second))
		if got := holding(); !slices.Equal(got, want) {
			t.Errorf("ranking %q: held = %q; want %q", uids, got, want)
		}
	}
	follow([]string{"u0", "u1", "u2", "u5"}, "u5", "u0", "u1", "u2", "u3")
	follow([]string{"u0", "u2", "u5", "u6"}, "u5", "u6", "u0", "u2") // u1 is not to be evicted any more
	follow([]string{"u0", "u2", "u5", "u6"}, "u5", "u6", "u7", "u0", "u2")
	held.update(&s, nil, &evict.Guard{}, now.Add(2*reopenInterval))
	if len(held.failed) > 0 {
		t.Errorf("after %v %d are known not to be held; want them tried again", 2*reopenInterval, len(held.failed))
	}
}

// The row of a pod that is not held names the containers whose cgroups are proven, with
// what was read of those: a walk brings it up to date.
func TestRowOfAPodThatIsNotHeld(t *testing.T) {
	pod := evict.Pod{
		HasStats: true, Usage: evict.PodUsage{Memory: 100, Freeable: 60},
		Containers:     []evict.Container{{Name: "a", Usage: evict.ContainerUsage{Memory: 40}}, {Name: "b", Usage: evict.ContainerUsage{Memory: 30}}},
		InitContainers: []evict.Container{{Name: "side", Usage: evict.ContainerUsage{Memory: 20}}},
	}
	row := newRow(&pod, nil, []evict.ContainerHandle{{Name: "a", CgroupID: 7}, {Name: "b", Unproven: "shared"}, {Name: "side", CgroupID: 9}})
	if !slices.Equal(row.Cgroups, []uint64{7, 9}) || row.WorkingSet != 60 || row.Memory != 100 || !row.Walkable || row.Known || row.Hold != nil {
		t.Errorf("newRow() = %+v; want one of the cgroups 7 and 9 with 60 bytes, to be brought up to date by a walk", row)
	}
	if row := newRow(&pod, nil, nil); row.Walkable {
		t.Errorf("newRow() without a proven cgroup = %+v; want one that no walk brings up to date", row)
	}
}
