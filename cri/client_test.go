package cri_test

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/cri"
	"github.com/evictd/evictd/cri/critest"
)

// start starts a server and returns it with a client.
func start(t *testing.T) (*critest.Server, *cri.Client) {
	t.Helper()
	s := critest.Start(t)
	return s, connect(t, s.Endpoint())
}

func connect(t *testing.T, endpoint string) *cri.Client {
	t.Helper()
	c, err := cri.Connect(endpoint)
	if err != nil {
		t.Fatalf("Connect(%q): %v", endpoint, err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return c
}

func TestVersion(t *testing.T) {
	s, c := start(t)
	got, err := c.Version(t.Context())
	want := cri.Version{Runtime: "containerd", Version: "1.6.20~ds1", API: "v1"}
	if err != nil || got != want {
		t.Errorf("Version = %+v, %v; want %+v", got, err, want)
	}
	s.SetImplemented("Version", false)
	if _, err := c.Version(t.Context()); !errors.Is(err, cri.ErrUnimplemented) {
		t.Errorf("Version = %v; want ErrUnimplemented", err)
	}
}

func TestStopAndRemove(t *testing.T) {
	s, c := start(t)
	p := s.AddPod(critest.Pod{Containers: make([]critest.Container, 3)})
	id := func(n int) string { return p.Containers[n].ID }
	stopped := map[string]time.Duration{}
	s.OnStop(func(id string, grace time.Duration) { stopped[id] = grace })

	steps := []struct {
		name string
		do   func() error
		want critest.Call
	}{
		{"stop", func() error { return c.StopContainer(t.Context(), id(0), 0) }, critest.Call{Method: "StopContainer", ID: id(0)}},
		{"stop again", func() error { return c.StopContainer(t.Context(), id(0), time.Second) }, critest.Call{Method: "StopContainer", ID: id(0), Grace: time.Second}},
		{"round up", func() error { return c.StopContainer(t.Context(), id(1), 1500*time.Millisecond) }, critest.Call{Method: "StopContainer", ID: id(1), Grace: 2 * time.Second}},
		{"huge grace", func() error { return c.StopContainer(t.Context(), id(1), 1<<63-1) }, critest.Call{Method: "StopContainer", ID: id(1), Grace: 9223372036 * time.Second}},
		{"remove", func() error { return c.RemoveContainer(t.Context(), id(0)) }, critest.Call{Method: "RemoveContainer", ID: id(0)}},
		{"stop removed", func() error { return c.StopContainer(t.Context(), id(0), 0) }, critest.Call{Method: "StopContainer", ID: id(0)}},
		{"remove removed", func() error { return c.RemoveContainer(t.Context(), id(0)) }, critest.Call{Method: "RemoveContainer", ID: id(0)}},
		{"stop sandbox", func() error { return c.StopSandbox(t.Context(), p.ID) }, critest.Call{Method: "StopPodSandbox", ID: p.ID}},
		{"remove sandbox", func() error { return c.RemoveSandbox(t.Context(), p.ID) }, critest.Call{Method: "RemovePodSandbox", ID: p.ID}},
		{"stop removed sandbox", func() error { return c.StopSandbox(t.Context(), p.ID) }, critest.Call{Method: "StopPodSandbox", ID: p.ID}},
		{"remove removed sandbox", func() error { return c.RemoveSandbox(t.Context(), p.ID) }, critest.Call{Method: "RemovePodSandbox", ID: p.ID}},
	}
	for i, step := range steps {
		if err := step.do(); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if calls := s.Calls(); len(calls) != i+1 || calls[i] != step.want {
			t.Fatalf("%s: calls = %+v; want %+v last", step.name, calls, step.want)
		}
	}
	want := map[string]time.Duration{id(0): 0, id(1): 2 * time.Second, id(2): 0}
	if diff := cmp.Diff(want, stopped); diff != "" {
		t.Errorf("stopped with grace (-want +got):\n%s", diff)
	}
	if _, exists := s.Ready(p.ID); exists {
		t.Error("the sandbox exists after its removal")
	}

	s.ResetCalls()
	if err := c.StopContainer(t.Context(), id(0), -1); err == nil {
		t.Error("StopContainer with negative grace = nil; want an error")
	}
	for name, do := range map[string]func(context.Context, string) error{
		"stop":           func(ctx context.Context, id string) error { return c.StopContainer(ctx, id, 0) },
		"remove":         c.RemoveContainer,
		"stop sandbox":   c.StopSandbox,
		"remove sandbox": c.RemoveSandbox,
	} {
		if err := do(t.Context(), ""); err == nil {
			t.Errorf("%s of an empty id = nil; want an error", name)
		}
	}
	if calls := s.Calls(); len(calls) != 0 {
		t.Errorf("calls = %+v; want none", calls)
	}
}

func TestNotFound(t *testing.T) {
	_, c := start(t)
	if _, err := c.ContainerDetail(t.Context(), "x"); !errors.Is(err, cri.ErrNotFound) {
		t.Errorf("ContainerDetail = %v; want ErrNotFound", err)
	}
	if _, err := c.SandboxDetail(t.Context(), "x"); !errors.Is(err, cri.ErrNotFound) {
		t.Errorf("SandboxDetail = %v; want ErrNotFound", err)
	}
}

func TestEvents(t *testing.T) {
	s, c := start(t)
	s.AddPod(critest.Pod{})
	if err := c.Events(t.Context(), func(cri.Event) {}); !errors.Is(err, cri.ErrUnimplemented) {
		t.Fatalf("Events from containerd 1.6 = %v; want ErrUnimplemented", err)
	}

	s.SetFlavor(critest.Containerd17)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	events, done := make(chan cri.Event, 16), make(chan error, 1)
	go func() { done <- c.Events(ctx, func(e cri.Event) { events <- e }) }()
	if err := s.AwaitSubscribers(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	p := s.AddPod(critest.Pod{Containers: make([]critest.Container, 1)})
	id := p.Containers[0].ID
	s.SetState(id, cri.StateExited)
	s.RemovePod(p.ID)
	for _, want := range []cri.EventType{cri.EventCreated, cri.EventStarted, cri.EventStopped, cri.EventDeleted} {
		if got := <-events; got.Type != want || got.ContainerID != id || got.SandboxID != p.ID || got.Time.IsZero() {
			t.Errorf("event = %+v; want %v of %s", got, want, id)
		}
	}
	s.Stop()
	if err := <-done; !errors.Is(err, cri.ErrUnreachable) {
		t.Errorf("Events when the runtime stops = %v; want ErrUnreachable", err)
	}

	s.Restart()
	if _, err := c.Version(t.Context()); err != nil {
		t.Fatal(err)
	}
	go func() { done <- c.Events(ctx, func(e cri.Event) { events <- e }) }()
	if err := s.AwaitSubscribers(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled Events = %v; want context.Canceled", err)
	}
}

func TestClose(t *testing.T) {
	s, c := start(t)
	s.SetFlavor(critest.Containerd17)
	done := make(chan error, 1)
	go func() { done <- c.Events(context.Background(), func(cri.Event) {}) }()
	if err := s.AwaitSubscribers(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := c.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	if err := <-done; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Events of a closed client = %v; want net.ErrClosed", err)
	}
	if _, err := c.Containers(t.Context()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Containers of a closed client = %v; want net.ErrClosed", err)
	}
}

func TestConcurrentUse(t *testing.T) {
	s, c := start(t)
	p := s.AddPod(critest.Pod{Containers: make([]critest.Container, 1)})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 20 {
				if _, err := c.Containers(t.Context()); err != nil {
					t.Errorf("Containers: %v", err)
				}
				if _, err := c.ContainerDetail(t.Context(), p.Containers[0].ID); err != nil {
					t.Errorf("ContainerDetail: %v", err)
				}
			}
		})
	}
	wg.Wait()
}

func TestPeerIsThisProcess(t *testing.T) {
	s := critest.Start(t)
	if pid, err := cri.PeerPID(s.Endpoint()); err != nil || pid != os.Getpid() {
		t.Errorf("PeerPID = %d, %v; want %d", pid, err, os.Getpid())
	}
	s.Crash()
	if pid, err := cri.PeerPID(s.Endpoint()); !errors.Is(err, cri.ErrUnreachable) || !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("PeerPID of a crashed server = %d, %v; want ErrUnreachable", pid, err)
	}
}

func TestConnectErrors(t *testing.T) {
	for _, endpoint := range []string{"", "tcp://127.0.0.1:1", "relative.sock"} {
		if c, err := cri.Connect(endpoint); err == nil {
			c.Close()
			t.Errorf("Connect(%q) = nil; want an error", endpoint)
		}
	}
}
