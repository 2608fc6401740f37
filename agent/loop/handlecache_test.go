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

// inCgroup runs a process in a new cgroup, and returns a snapshot in which that is a pod.
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
		Taken: time.Unix(2000, 0), ReadAt: []time.Time{time.Unix(1900, 0), time.Unix(1950, 0)},
		Handles: map[string]pods.Handle{
			"gone": {Containers: []evict.RunningContainer{{ID: "c0", Name: "c", Cgroup: path + "/not-there", CgroupID: 1}}},
			"u":    {Containers: []evict.RunningContainer{{ID: "c1", Name: "c", Cgroup: path, CgroupID: g.ID()}}},
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
	// A handle has the processes in the order of their sizes, which change until it sleeps.
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
func TestHandleCache(t *testing.T) {
	hierarchy, s := inCgroup(t)
	before := descriptors(t)
	cache := newHandleCache(func(j act.Job) (*act.KillHandle, error) { return act.Prepare(hierarchy, "/proc", j) }, "/proc")
	defer cache.close()
	ranked := []evict.Ranked{{UID: "gone"}, {UID: "u"}}
	now := time.Now()
	cache.update(&s, ranked, &evict.Guard{}, now)
	if len(cache.byUID) != 1 || cache.byUID["u"] == nil {
		t.Fatalf("cached = %v; want u alone", cache.byUID)
	}
	first := cache.byUID["u"].handle
	cache.update(&s, ranked, &evict.Guard{}, now.Add(2*idleInterval))
	if cache.byUID["u"].handle != first {
		t.Error("the handle of an unchanged pod was opened again; want it kept")
	}

	policy := &evict.Policy{}
	order, _ := policy.Rank(s.Pods, signal.MemoryAvailable, &evict.State{}, now)
	for victims, want := range map[int]time.Time{1: s.ReadAt[order[0].Index()], 2: s.ReadAt[0]} {
		in := &evict.Inputs{Policy: &evict.Policy{MaxVictims: victims}, Pods: s.Pods}
		if got := cache.table(in, &View{Snapshot: s}, order, &evict.Guard{}, 3).Decision.UsageTime; !got.Equal(want) {
			t.Errorf("with %d victims at most, UsageTime = %v; want %v, the oldest reading of them", victims, got, want)
		}
	}
	table := cache.table(&evict.Inputs{Policy: policy, Pods: s.Pods}, &View{Snapshot: s}, nil, &evict.Guard{}, 3)
	if r := table.Rows[1]; r.Handle != first || !r.Complete || r.WorkingSet != 5 || r.Memory != 7 || r.Freeable != 6 || len(r.Cgroups) != 1 || r.Cgroups[0] != s.Handles["u"].Containers[0].CgroupID {
		t.Errorf("row of u = %+v; want its handle and its readings", r)
	}
	if r := table.Rows[0]; r.Handle != nil || r.Complete || table.Generation != 3 {
		t.Errorf("row of the pod that has gone = %+v of generation %d; want none, of 3", r, table.Generation)
	}
	unprepared, err := table.Prepare(1)
	if err != nil {
		t.Fatalf("Prepare(1) = %v; want u's", err)
	}
	unprepared.Close()
	if _, err := table.Prepare(0); err == nil {
		t.Error("Prepare(0) of a pod that has gone is no error; want one")
	}

	cache.update(&s, ranked, &evict.Guard{}, now.Add(3*idleInterval))
	was := descriptors(t)
	join(t, hierarchy, s.Handles["u"].Containers[0].Cgroup)
	before += descriptors(t) - was
	checked := now.Add(3 * idleInterval)
	if cache.processesChanged(checked.Add(idleHandleCheckInterval - 1)) {
		t.Errorf("processesChanged() less than %v after a check = true; want false", idleHandleCheckInterval)
	}
	if !cache.processesChanged(checked.Add(idleHandleCheckInterval)) {
		t.Error("processesChanged() with another process in the cgroup = false; want true")
	}
	cache.update(&s, ranked, &evict.Guard{}, checked.Add(idleHandleCheckInterval))
	if cache.byUID["u"].handle == first {
		t.Error("the handle of a pod with another process was kept; want it opened again")
	}
	first = cache.byUID["u"].handle
	if cache.processesChanged(checked.Add(2 * idleHandleCheckInterval)) {
		t.Error("processesChanged() after the handle was opened again = true; want false")
	}

	handle := s.Handles["u"]
	handle.Containers[0].ID = "c2" // it was restarted in place
	restarted := pods.Snapshot{Pods: s.Pods, Handles: map[string]pods.Handle{"u": {Containers: append([]evict.RunningContainer{}, handle.Containers...)}}}
	cache.byUID["u"].containers = []evict.RunningContainer{{ID: "c1"}}
	cache.update(&restarted, ranked[1:], &evict.Guard{}, now)
	if cache.byUID["u"] == nil || cache.byUID["u"].handle == first || first.Ref() {
		t.Error("the handle of a pod with another container was kept; want it opened again, and the old one closed")
	}
	taken := cache.take("u")
	if taken == nil || cache.take("u") != nil {
		t.Errorf("take() twice = %v; want a handle once", taken)
	}
	taken.Close()
	cache.update(&pods.Snapshot{}, nil, &evict.Guard{}, now)
	if after := descriptors(t); after != before {
		t.Errorf("descriptors went from %d to %d; want all closed", before, after)
	}
}

// A full cache makes room for pods that rank higher, and pods whose handle can't be opened
// don't delay the others.
func TestHandleCacheMakesRoom(t *testing.T) {
	h, s := inCgroup(t)
	handle := s.Handles["u"]
	for i := range maxOpenedPerStep + 4 {
		s.Handles[fmt.Sprint("gone", i)] = s.Handles["gone"]
	}
	for i := range 8 {
		s.Handles[fmt.Sprint("u", i)] = handle
	}
	cache := newHandleCache(func(j act.Job) (*act.KillHandle, error) { return act.Prepare(h, "/proc", j) }, "/proc")
	cache.maxPods = 4
	defer cache.close()
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
	cached := func() []string { return slices.Sorted(maps.Keys(cache.byUID)) }
	cache.update(&s, ranking("u0", "u1", "u2", "u3"), &evict.Guard{}, now)
	cache.update(&s, ranking("u0", "u1", "u2", "u3"), &evict.Guard{}, now.Add(time.Second))
	if got := cached(); !slices.Equal(got, []string{"u0", "u1", "u2", "u3"}) {
		t.Errorf("after two updates, cached = %q; want all four", got)
	}
	if len(cache.failed) != maxOpenedPerStep+4 {
		t.Errorf("%d handles known to fail; want %d", len(cache.failed), maxOpenedPerStep+4)
	}
	update := func(want []string, uids ...string) {
		t.Helper()
		cache.update(&s, ranking(uids...)[maxOpenedPerStep+4:], &evict.Guard{}, now.Add(time.Second))
		if got := cached(); !slices.Equal(got, want) {
			t.Errorf("ranking %q: cached = %q; want %q", uids, got, want)
		}
	}
	update([]string{"u0", "u1", "u2", "u5"}, "u5", "u0", "u1", "u2", "u3")
	update([]string{"u0", "u2", "u5", "u6"}, "u5", "u6", "u0", "u2") // u1 is not to be evicted any more
	update([]string{"u0", "u2", "u5", "u6"}, "u5", "u6", "u7", "u0", "u2")
	cache.update(&s, nil, &evict.Guard{}, now.Add(2*reopenInterval))
	if len(cache.failed) > 0 {
		t.Errorf("after %v, %d handles known to fail; want none, so that they are tried again", 2*reopenInterval, len(cache.failed))
	}
}

// The row of a pod without a handle has the containers whose cgroups are proven, with
// their readings, so that a walk can refresh it.
func TestRowWithoutAHandle(t *testing.T) {
	pod := evict.Pod{
		HasStats: true, Usage: evict.PodUsage{Memory: 100, Freeable: 60},
		Containers:     []evict.Container{{Name: "a", Usage: evict.ContainerUsage{Memory: 40}}, {Name: "b", Usage: evict.ContainerUsage{Memory: 30}}},
		InitContainers: []evict.Container{{Name: "side", Usage: evict.ContainerUsage{Memory: 20}}},
	}
	row := newRow(&pod, nil, []evict.RunningContainer{{Name: "a", CgroupID: 7}, {Name: "b", Unproven: "shared"}, {Name: "side", CgroupID: 9}})
	if !slices.Equal(row.Cgroups, []uint64{7, 9}) || row.WorkingSet != 60 || row.Memory != 100 || !row.Walkable || row.Complete || row.Handle != nil {
		t.Errorf("newRow() = %+v; want one of the cgroups 7 and 9 with 60 bytes, to be refreshed by a walk", row)
	}
	if row := newRow(&pod, nil, nil); row.Walkable {
		t.Errorf("newRow() without a proven cgroup = %+v; want one that no walk refreshes", row)
	}
}
