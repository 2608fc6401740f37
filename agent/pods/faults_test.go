package pods

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/evictd/evictd/cri"
	"github.com/evictd/evictd/cri/critest"
)

func names(s Snapshot) string {
	var all []string
	for _, p := range s.Pods {
		all = append(all, p.Name)
	}
	return strings.Join(all, " ")
}

// While the runtime fails the last known list stays, and the status has the error. When the
// runtime has recovered the list is updated.
func TestFaults(t *testing.T) {
	for _, tt := range []struct {
		name      string
		break_    func(n *node)
		heal      func(n *node)
		connected bool
		failure   string
	}{
		{"stopped", func(n *node) { n.runtime.Stop() }, func(n *node) { n.runtime.Restart() }, false, "not reachable"},
		{"crashed", func(n *node) { n.runtime.Crash() }, func(n *node) { n.runtime.Restart() }, false, "not reachable"},
		{"containers fail", func(n *node) { n.runtime.SetFault("ListContainers", critest.Fault{Code: codes.Internal}) },
			func(n *node) { n.runtime.ClearFault("ListContainers") }, false, "injected fault"},
		{"sandboxes fail", func(n *node) { n.runtime.SetFault("ListPodSandbox", critest.Fault{Code: codes.Unknown}) },
			func(n *node) { n.runtime.ClearFault("ListPodSandbox") }, false, "injected fault"},
		{"containers without IDs", func(n *node) { n.runtime.SetFault("ListContainers", critest.Fault{Mutate: critest.EmptyIDs}) },
			func(n *node) { n.runtime.ClearFault("ListContainers") }, true, "not complete"},
		{"containers twice", func(n *node) { n.runtime.SetFault("ListContainers", critest.Fault{Mutate: critest.Duplicates}) },
			func(n *node) { n.runtime.ClearFault("ListContainers") }, true, "not complete"},
		{"sandboxes without IDs", func(n *node) { n.runtime.SetFault("ListPodSandbox", critest.Fault{Mutate: critest.EmptyIDs}) },
			func(n *node) { n.runtime.ClearFault("ListPodSandbox") }, true, "not complete"},
		{"sandboxes twice", func(n *node) { n.runtime.SetFault("ListPodSandbox", critest.Fault{Mutate: critest.Duplicates}) },
			func(n *node) { n.runtime.ClearFault("ListPodSandbox") }, true, "not complete"},
		{"no versions", func(n *node) { n.runtime.SetFault("Version", critest.Fault{Code: codes.Internal}) },
			func(n *node) { n.runtime.ClearFault("Version") }, true, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t, true)
			n.addPod(critest.Pod{Name: "a", Containers: []critest.Container{{Name: "one", PID: 100}, {Name: "two", PID: 101}}})
			n.addPod(critest.Pod{Name: "b", Containers: []critest.Container{{PID: 102}}})
			i := n.synced()
			before := i.Measure(time.Now())

			tt.break_(n)
			err := i.Sync(context.Background())
			if (err == nil) != (tt.failure == "") {
				t.Errorf("Sync() = %v; want an error: %t", err, tt.failure != "")
			}
			s := i.Measure(time.Now())
			if names(s) != "a b" || !s.Pods[0].HasStats || len(s.Handles[s.Pods[0].UID].Containers) != 2 {
				t.Errorf("pods = %q, %+v; want a and b unchanged", names(s), s.Pods)
			}
			if tt.failure != "" && !s.Listed.Equal(before.Listed) {
				t.Errorf("listed = %v; want %v, when the last list was complete", s.Listed, before.Listed)
			}
			if st := i.Status(); st.Connected != tt.connected || !strings.Contains(st.Error, tt.failure) || tt.failure == "" && st.Error != "" {
				t.Errorf("status = connected %t, error %q; want %t, %q", st.Connected, st.Error, tt.connected, tt.failure)
			}

			tt.heal(n)
			n.addPod(critest.Pod{Name: "c", Containers: []critest.Container{{PID: 103}}})
			if err := i.Sync(context.Background()); err != nil {
				t.Errorf("Sync() afterwards = %v", err)
			}
			s = i.Measure(time.Now())
			if st := i.Status(); names(s) != "a b c" || !s.Listed.After(before.Listed) || !st.Connected || st.Error != "" || st.RuntimeName != "containerd" {
				t.Errorf("afterwards: pods %q, listed %v, status %+v; want a b c and no error", names(s), s.Listed, st)
			}
		})
	}
}

// An incomplete list removes what it lists as ended, and after missingRetention what it lacks.
func TestIncompleteList(t *testing.T) {
	n := newNode(t, true)
	a := n.addPod(critest.Pod{Name: "a", Containers: []critest.Container{{Name: "one", PID: 100}, {Name: "two", PID: 101}}})
	i := n.synced()
	two := a.Containers[1].ID
	n.runtime.SetState(two, cri.StateExited)
	n.runtime.SetFault("ListContainers", critest.Fault{Mutate: critest.Duplicates}) // of the first container, which is then left out
	i.Sync(context.Background())
	s := i.Measure(time.Now())
	var left []string
	for _, c := range s.Handles[a.UID].Containers {
		left = append(left, c.ID)
	}
	// The container that is listed twice keeps its last state; the other is as listed.
	if len(left) == 0 || len(left) == 2 && left[0] == left[1] {
		t.Errorf("containers = %q", left)
	}
	if i.Describe(a.UID).KeptSince.IsZero() {
		t.Error("KeptSince of a pod with a missing container is zero")
	}

	var src trackedRuntime
	src.list = List{Pods: []Pod{{Sandbox: Sandbox{SandboxDetail: cri.SandboxDetail{Sandbox: cri.Sandbox{ID: "s"}}}}}}
	now := time.Now()
	for _, step := range []struct {
		after time.Duration
		want  int
	}{{0, 1}, {time.Second, 1}, {missingRetention - time.Second, 1}, {missingRetention, 0}, {missingRetention + time.Second, 0}} {
		src.mergePartial(List{}, now.Add(step.after))
		if len(src.list.Pods) != step.want {
			t.Errorf("%d pods kept %s after the first list without them; want %d", len(src.list.Pods), step.after, step.want)
		}
	}
}

// A runtime may start after evictd.
func TestRuntimeStartsLater(t *testing.T) {
	n := newNode(t, true)
	n.addPod(critest.Pod{Name: "a", Containers: []critest.Container{{PID: 100}}})
	n.runtime.Stop()
	i := n.inventory()
	if st := i.Status(); st.Connected || st.Error == "" || st.DeclaredAbsent {
		t.Errorf("status before the first list = %+v; want not connected, with a reason", st)
	}
	if err := i.Sync(context.Background()); !errors.Is(err, cri.ErrUnreachable) {
		t.Errorf("Sync() = %v; want ErrUnreachable", err)
	}
	if s := i.Measure(time.Now()); len(s.Pods) != 0 || !s.Listed.IsZero() {
		t.Errorf("Measure() = %+v; want nothing, never listed", s)
	}
	n.runtime.Restart()
	if err := i.Sync(context.Background()); err != nil {
		t.Fatal(err)
	}
	if s := i.Measure(time.Now()); names(s) != "a" {
		t.Errorf("pods = %q; want a", names(s))
	}
}

// A list that hangs ends with its context, and the last known list stays.
func TestListHangs(t *testing.T) {
	n := newNode(t, true)
	n.addPod(critest.Pod{Name: "a", Containers: []critest.Container{{PID: 100}}})
	i := n.synced()
	n.runtime.SetFault("ListPodSandbox", critest.Fault{Hang: true})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- i.Sync(ctx) }()
	if err := n.runtime.AwaitCalls(context.Background(), "ListPodSandbox", 2); err != nil {
		t.Fatal(err)
	}
	if s := i.Measure(time.Now()); names(s) != "a" || !s.Pods[0].HasStats {
		t.Errorf("while a list hangs: pods %q", names(s))
	}
	i.Guard()
	i.Describe("x")
	i.Status()
	i.Refresh()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("Sync() = %v; want it cancelled", err)
	}
	if s := i.Measure(time.Now()); names(s) != "a" {
		t.Errorf("afterwards: pods %q; want a", names(s))
	}
}

// A status call that hangs affects that container only, and is made again.
func TestStatusHangs(t *testing.T) {
	n := newNode(t, true)
	n.addPod(critest.Pod{Name: "a", Containers: []critest.Container{{PID: 100}}})
	i := n.synced()
	n.runtime.SetFault("ContainerStatus", critest.Fault{Hang: true, Times: 1})
	n.addPod(critest.Pod{Name: "b", Containers: []critest.Container{{PID: 101}}})
	n.addPod(critest.Pod{Name: "c", Containers: []critest.Container{{PID: 102}}})
	if err := i.Sync(context.Background()); err != nil {
		t.Fatal(err)
	}
	s := i.Measure(time.Now())
	if names(s) != "a b c" || i.Status().Unproven != 1 {
		t.Errorf("pods %q, %d unproven; want a b c, one unproven", names(s), i.Status().Unproven)
	}
	// The call is made again when its back-off is over.
	src := i.runtime.Runtime.(*CRI)
	for _, d := range src.containers.wanted {
		d.next = time.Time{}
	}
	if err := i.Sync(context.Background()); err != nil {
		t.Fatal(err)
	}
	if got := i.Status().Unproven; got != 0 {
		t.Errorf("%d unproven afterwards; want 0", got)
	}
}

// A malformed status of one container affects no other, and yields no values.
func TestMalformedStatus(t *testing.T) {
	for _, info := range []string{"", "{", "null", "[]", `{"pid":-1}`, `{"pid":1}`, `{"pid":4194305}`, `{"runtimeSpec":{"process":{"oomScoreAdj":2000}}}`,
		`{"runtimeSpec":{"linux":{"cgroupsPath":7}}}`, strings.Repeat(`{"a":`, 100_000)} {
		t.Run(fmt.Sprintf("%.20q", info), func(t *testing.T) {
			n := newNode(t, true)
			n.runtime.SetFault("ContainerStatus", critest.Fault{Mutate: critest.Info(info), Times: 1})
			p := n.addPod(critest.Pod{Containers: []critest.Container{{PID: 100, OOMScoreAdj: 900}}})
			i := n.synced()
			s := i.Measure(time.Now())
			if len(s.Pods) != 1 {
				t.Fatalf("%d pods; want 1", len(s.Pods))
			}
			if c := s.Handles[p.UID].Containers[0]; s.Pods[0].HasStats || c.Unproven == "" || c.Cgroup != "" {
				t.Errorf("stats %t, container %+v; want neither statistics nor a proven cgroup", s.Pods[0].HasStats, c)
			}
			if q := s.Pods[0].Containers[0].Resources.Requests.Memory; q != nil {
				t.Errorf("request = %s; want none", q)
			}
		})
	}
}

// Status calls that succeed are not repeated.
func TestStatusCallsAreCached(t *testing.T) {
	n := newNode(t, true)
	n.addPod(critest.Pod{Containers: []critest.Container{{Name: "a", PID: 100}, {Name: "b", PID: 101}}})
	i := n.synced()
	for range 10 {
		if err := i.Sync(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	count := map[string]int{}
	for _, c := range n.runtime.Calls() {
		count[c.Method]++
	}
	if count["ContainerStatus"] != 2 || count["PodSandboxStatus"] != 1 || count["ListContainers"] != 11 || count["Version"] != 1 {
		t.Errorf("calls = %v; want 2 ContainerStatus, 1 PodSandboxStatus, 11 ListContainers, 1 Version", count)
	}
}

// A list of 5,000 containers is used at once. Status calls are spread over several lists,
// one for each container.
func TestManyContainers(t *testing.T) {
	if testing.Short() {
		t.Skip("builds 5,000 containers")
	}
	n := newNode(t, true)
	for k := range 500 {
		p := critest.Pod{Name: fmt.Sprintf("pod-%03d", k)}
		for m := range 10 {
			p.Containers = append(p.Containers, critest.Container{Name: fmt.Sprintf("c%d", m)})
		}
		n.runtime.AddPod(p)
	}
	i := n.inventory()
	seen := 0
	for round := range 3 {
		if err := i.Sync(context.Background()); err != nil {
			t.Fatal(err)
		}
		s := i.Measure(time.Now())
		if st := i.Status(); len(s.Pods) != 500 || st.Containers != 5000 || st.Unproven != 5000 {
			t.Fatalf("%d pods, status %+v; want 500 pods with 5,000 containers, none with a cgroup", len(s.Pods), st)
		}
		calls, ids := 0, map[string]bool{}
		for _, c := range n.runtime.Calls() {
			if c.Method == "ContainerStatus" {
				calls++
				ids[c.ID] = true
			}
		}
		if len(ids) == seen && seen < 5000 {
			t.Errorf("round %d made no new status calls after %d containers", round, seen)
		}
		if seen = len(ids); calls > seen+(round+1)*parallelDetails {
			t.Errorf("%d calls for %d containers; want one each, except calls that a deadline ended", calls, seen)
		}
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("needs /proc/self/fd")
	}
	return len(entries)
}

// The descriptors of removed containers are closed.
func TestDescriptors(t *testing.T) {
	for _, v2 := range []bool{false, true} {
		n := newNode(t, v2)
		permanent := n.addPod(critest.Pod{Name: "permanent", Containers: []critest.Container{{PID: 99}}})
		n.cgroup(permanent.CgroupParent, 1<<20, 0)
		i := n.synced()
		before := descriptors(t)
		for round := range 100 {
			p := n.addPod(critest.Pod{Name: fmt.Sprintf("temporary-%d", round), Containers: []critest.Container{
				{Name: "a", PID: 100 + 2*round}, {Name: "b", PID: 101 + 2*round},
			}})
			if err := i.Sync(context.Background()); err != nil {
				t.Fatal(err)
			}
			if s := i.Measure(time.Now()); len(s.Pods) != 2 || !s.Pods[0].HasStats {
				t.Fatalf("round %d: %d pods; want 2, measured", round, len(s.Pods))
			}
			if round == 0 && descriptors(t) <= before {
				t.Errorf("no descriptors are open for a pod")
			}
			n.runtime.RemovePod(p.ID)
			if err := i.Sync(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		if after := descriptors(t); after > before {
			t.Errorf("%d descriptors after 100 rounds, %d before", after, before)
		}
		i.Close()
		if after := descriptors(t); after >= before {
			t.Errorf("%d descriptors after Close, %d before it", after, before)
		}
		if s := i.Measure(time.Now()); len(s.Pods) != 0 {
			t.Errorf("%d pods after Close; want none", len(s.Pods))
		}
	}
}
