package pods

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/cri"
	"github.com/evictd/evictd/cri/critest"
)

// fakeRuntime is a Runtime that returns one list and records when it was requested.
type fakeRuntime struct {
	list      List
	err       error
	watch     func(ctx context.Context, changed func()) error
	requested []time.Duration
	slow      time.Duration // how long a list takes
	began     time.Time
	inFlight  bool
}

func (s *fakeRuntime) Name() string { return "fake" }

func (s *fakeRuntime) List(context.Context) (List, error) {
	if s.inFlight {
		panic("List called concurrently")
	}
	s.inFlight = true
	defer func() { s.inFlight = false }()
	s.requested = append(s.requested, time.Since(s.began))
	time.Sleep(s.slow)
	return s.list, s.err
}

func (s *fakeRuntime) Watch(ctx context.Context, changed func()) error { return s.watch(ctx, changed) }

func unwatchable(context.Context, func()) error { return ErrUnwatchable }

func silent(ctx context.Context, _ func()) error {
	<-ctx.Done()
	return ctx.Err()
}

// runInventory runs an Inventory of the runtime for a time of the synctest bubble, and calls
// do at the same time.
func runInventory(t *testing.T, s *fakeRuntime, d time.Duration, do func(i *Inventory)) {
	t.Helper()
	n := &node{t: t, v2: true, proc: t.TempDir(), cgroups: t.TempDir()}
	n.build()
	i := n.inventory(func(o *Options) { o.Runtime = s })
	s.began = time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	done := make(chan error)
	go func() { done <- i.Run(ctx) }()
	if do != nil {
		do(i)
	}
	if err := <-done; err != nil {
		t.Errorf("Run() = %v; want nil when its context ends", err)
	}
}

// Without reports of changes pods are listed each second, with them each ten seconds.
func TestRunLists(t *testing.T) {
	const ms = time.Millisecond
	broken := errors.New("broken")
	for _, tt := range []struct {
		name  string
		err   error
		watch func(ctx context.Context, changed func()) error
		do    func(i *Inventory)
		d     time.Duration
		want  []time.Duration
	}{
		{"unwatchable", nil, unwatchable, nil, 3500 * ms, []time.Duration{0, 1000 * ms, 2000 * ms, 3000 * ms}},
		{"watched", nil, silent, nil, 25 * time.Second, []time.Duration{0, 1000 * ms, 11000 * ms, 21000 * ms}},
		{"watched, but the list fails", broken, silent, nil, 3500 * ms, []time.Duration{0, 1000 * ms, 2000 * ms, 3000 * ms}},
		{"changes", nil, func(ctx context.Context, changed func()) error {
			time.Sleep(1500 * ms)
			for range 50 { // a burst, 250 ms long
				changed()
				time.Sleep(5 * ms)
			}
			return silent(ctx, changed)
		}, nil, 5 * time.Second, []time.Duration{0, 1000 * ms, 1500 * ms, 1600 * ms, 1700 * ms, 1800 * ms}},
		{"refresh", nil, silent, func(i *Inventory) {
			time.Sleep(1010 * ms)
			i.Refresh()
			time.Sleep(5 * ms)
			i.Refresh()
		}, 5 * time.Second, []time.Duration{0, 1000 * ms, 1010 * ms, 1015 * ms}},
		{"watch fails", nil, func(context.Context, func()) error {
			time.Sleep(1500 * ms)
			return broken
		}, nil, 3900 * ms, []time.Duration{0, 1000 * ms, 1500 * ms, 2500 * ms, 3500 * ms}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &fakeRuntime{err: tt.err, watch: tt.watch}
				runInventory(t, s, tt.d, tt.do)
				if diff := cmp.Diff(tt.want, s.requested); diff != "" {
					t.Errorf("listed at (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// A list that is requested during another follows it: the other may lack pods that were
// started since, and LastAttempt returns when it was requested.
func TestRefreshDuringList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeRuntime{watch: silent, slow: 200 * time.Millisecond}
		runInventory(t, s, 900*time.Millisecond, func(i *Inventory) {
			time.Sleep(50 * time.Millisecond)
			refreshed, listed := time.Now(), i.Changed()
			i.Refresh()
			for n, before := range []bool{true, false} {
				<-listed
				listed = i.Changed()
				if attempted := i.LastAttempt(); attempted.Before(refreshed) != before {
					t.Errorf("list %d: LastAttempt() is %v after Refresh(); want before: %t", n, attempted.Sub(refreshed), before)
				}
			}
		})
	})
}

// Without a runtime the empty list is complete.
func TestDeclaredAbsent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &node{t: t, v2: true, proc: t.TempDir(), cgroups: t.TempDir()}
		n.build()
		i := n.inventory(func(o *Options) { o.Runtime = nil })
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := i.Run(ctx); err != nil {
			t.Errorf("Run() = %v", err)
		}
		if st := i.Status(); !st.DeclaredAbsent || st.Connected || st.Error != "" {
			t.Errorf("status = %+v; want it declared absent", st)
		}
		if s := i.Measure(time.Now()); len(s.Pods) != 0 || s.Kubelet.HasSandboxes {
			t.Errorf("Measure() = %+v; want nothing", s)
		}
	})
}

// A runtime with events is listed at once after a change, also after its restart.
func TestRunFollowsEvents(t *testing.T) {
	n := newNode(t, true)
	n.runtime.SetFlavor(critest.Containerd17)
	i := n.inventory()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- i.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v", err)
		}
	}()
	await := func(want string) {
		t.Helper()
		timeout := time.After(20 * time.Second)
		for {
			changed := i.Changed()
			if names(i.Measure(time.Now())) == want {
				return
			}
			select {
			case <-changed:
			case <-timeout:
				t.Fatalf("pods = %q; want %q", names(i.Measure(time.Now())), want)
			}
		}
	}
	if err := n.runtime.AwaitSubscribers(ctx, 1); err != nil {
		t.Fatal(err)
	}
	a := n.addPod(critest.Pod{Name: "a", Containers: []critest.Container{{PID: 100}}})
	await("a")
	n.runtime.Crash()
	n.runtime.Restart()
	n.addPod(critest.Pod{Name: "b", Containers: []critest.Container{{PID: 101}}})
	await("a b")
	n.runtime.SetState(a.Containers[0].ID, cri.StateExited)
	await("b")
}

// specMap are Specifications in a map.
type specMap map[string]*evict.Pod

func (s specMap) Specification(running *evict.Pod) *evict.Pod { return s[running.UID] }

// The specification of a pod takes precedence over what is deduced from the runtime.
func TestSpecification(t *testing.T) {
	n := newNode(t, true)
	p := n.addPod(critest.Pod{
		Name: "web", UID: "u1", Annotations: map[string]string{evict.ConfigSourceAnnotation: "api", annotationPriority: "1"},
		Containers: []critest.Container{{Name: "main", PID: 100, OOMScoreAdj: 900}, {Name: "sidecar", PID: 101}, {Name: "debug", PID: 102}},
	})
	spec := &evict.Pod{
		UID: "u1", Namespace: "default", Name: "web", Priority: new(int32(7)), QoS: evict.Burstable, TerminationGraceSeconds: new(int64(9)),
		Containers:     []evict.Container{{Name: "main", Resources: evict.Resources{Requests: evict.Amounts{Memory: bytes(5 << 20)}}}, {Name: "not started"}},
		InitContainers: []evict.Container{{Name: "sidecar", Sidecar: true}},
		HasStats:       true, Usage: evict.PodUsage{Memory: 1 << 60},
	}
	i := n.synced(func(o *Options) { o.Specifications = specMap{"u1": spec, "elsewhere": spec} })
	s := i.Measure(time.Now())
	if len(s.Pods) != 1 || len(s.Handles[p.UID].Containers) != 3 {
		t.Fatalf("pods %q, handle %+v; want web with three containers", names(s), s.Handles[p.UID])
	}
	got := s.Pods[0]
	want := evict.Pod{
		UID: "u1", Namespace: "default", Name: "web", Priority: new(int32(7)), QoS: evict.Burstable, TerminationGraceSeconds: new(int64(9)), Kubelet: true,
		LastStart: got.LastStart,
		Containers: []evict.Container{
			{Name: "main", Resources: spec.Containers[0].Resources, Usage: evict.ContainerUsage{Memory: 80 << 20}},
			{Name: "not started"},
			{Name: "debug", Usage: evict.ContainerUsage{Memory: 80 << 20}},
		},
		InitContainers: []evict.Container{{Name: "sidecar", Sidecar: true, Usage: evict.ContainerUsage{Memory: 80 << 20}}},
		HasStats:       true,
		Usage:          evict.PodUsage{Memory: 240 << 20, Freeable: 180 << 20, PIDs: 6},
	}
	if diff := cmp.Diff(want, got, quantities); diff != "" {
		t.Errorf("pod (-want +got):\n%s", diff)
	}
	if explanation := i.Describe("u1"); len(explanation.Ignored) != 1 || explanation.RequestOrigin != "the pod's specification" {
		t.Errorf("Describe() = %+v; want the annotation ignored, and the request from the specification", explanation)
	}
	if spec.Containers[0].Usage.Memory != 0 {
		t.Error("the specification itself was changed")
	}
}

// fetchedSpec are Specifications of one pod that arrive with a fetch.
type fetchedSpec struct {
	uid    string
	answer chan *evict.Pod // of the fetch
	pod    atomic.Pointer[evict.Pod]
}

func (f *fetchedSpec) fetch() { f.pod.Store(<-f.answer) }

func (f *fetchedSpec) Specification(running *evict.Pod) *evict.Pod {
	if running.UID != f.uid {
		return nil
	}
	return f.pod.Load()
}

// A list does not wait for specifications that are being fetched, and a specification that
// arrives while the runtime fails is applied.
func TestSpecificationArrivesLater(t *testing.T) {
	n := newNode(t, true)
	n.addPod(critest.Pod{Name: "web", UID: "u1", Containers: []critest.Container{{Name: "main", PID: 100}}})
	specs := &fetchedSpec{uid: "u1", answer: make(chan *evict.Pod)}
	fetched := make(chan struct{})
	go func() { specs.fetch(); close(fetched) }()

	i := n.synced(func(o *Options) { o.Specifications = specs })
	if s := i.Measure(time.Now()); names(s) != "web" || s.Pods[0].Priority != nil {
		t.Fatalf("while the fetch hangs: pods %+v; want web of unknown priority", s.Pods)
	}
	specs.answer <- &evict.Pod{Priority: new(int32(7))}
	<-fetched
	if err := i.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if p := i.Measure(time.Now()).Pods[0]; p.Priority == nil || *p.Priority != 7 {
		t.Errorf("priority after the fetch = %v; want 7", p.Priority)
	}

	n.runtime.SetFault("ListContainers", critest.Fault{Code: codes.Internal})
	specs.pod.Store(&evict.Pod{Priority: new(int32(9))})
	if err := i.Sync(t.Context()); err == nil {
		t.Fatal("Sync() with a runtime that fails = nil")
	}
	if s := i.Measure(time.Now()); names(s) != "web" || *s.Pods[0].Priority != 9 {
		t.Errorf("pods while the runtime fails: %+v; want web of priority 9", s.Pods)
	}
}
