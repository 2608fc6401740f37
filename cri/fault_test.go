package cri_test

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/evictd/evictd/cri"
	"github.com/evictd/evictd/cri/critest"
)

// methods are the calls of a client, by their CRI method names.
func methods(c *cri.Client, sandbox, container string) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"Version":          func(ctx context.Context) error { _, err := c.Version(ctx); return err },
		"ListPodSandbox":   func(ctx context.Context) error { _, err := c.Sandboxes(ctx); return err },
		"ListContainers":   func(ctx context.Context) error { _, err := c.Containers(ctx); return err },
		"ContainerStatus":  func(ctx context.Context) error { _, err := c.ContainerDetail(ctx, container); return err },
		"PodSandboxStatus": func(ctx context.Context) error { _, err := c.SandboxDetail(ctx, sandbox); return err },
		"ImageFsInfo":      func(ctx context.Context) error { _, err := c.ImageFsInfo(ctx); return err },
		"StopContainer":    func(ctx context.Context) error { return c.StopContainer(ctx, container, 0) },
		"RemoveContainer":  func(ctx context.Context) error { return c.RemoveContainer(ctx, container) },
		"StopPodSandbox":   func(ctx context.Context) error { return c.StopSandbox(ctx, sandbox) },
		"RemovePodSandbox": func(ctx context.Context) error { return c.RemoveSandbox(ctx, sandbox) },
		"GetContainerEvents": func(ctx context.Context) error {
			return c.Events(ctx, func(cri.Event) {})
		},
	}
}

func TestErrorCodes(t *testing.T) {
	s, c := start(t)
	s.SetFlavor(critest.Containerd17)
	sentinels := map[string]error{"unreachable": cri.ErrUnreachable, "timeout": cri.ErrTimeout, "unimplemented": cri.ErrUnimplemented, "not found": cri.ErrNotFound,
		"malformed": cri.ErrMalformed, "canceled": context.Canceled, "deadline": context.DeadlineExceeded, "closed": net.ErrClosed}
	for code, want := range map[codes.Code][]string{
		codes.Unavailable:      {"unreachable"},
		codes.DeadlineExceeded: {"timeout", "deadline"},
		codes.Unimplemented:    {"unimplemented"},
		codes.Internal:         nil,
		codes.Canceled:         nil,
		codes.PermissionDenied: nil,
	} {
		for method, call := range methods(c, "s", "c") {
			s.SetFault(method, critest.Fault{Code: code})
			err := call(t.Context())
			s.ClearFault(method)
			if err == nil {
				t.Errorf("%s with %v = nil; want an error", method, code)
				continue
			}
			for name, sentinel := range sentinels {
				is := errors.Is(err, sentinel)
				var expected bool
				for _, w := range want {
					expected = expected || w == name
				}
				if is != expected {
					t.Errorf("%s with %v = %q; errors.Is %s: %v, want %v", method, code, err, name, is, expected)
				}
			}
			if msg := err.Error(); !strings.Contains(msg, "injected fault") || strings.Contains(msg, "rpc error") {
				t.Errorf("%s with %v = %q; want the runtime's message without gRPC's prefix", method, code, msg)
			}
		}
	}
}

func TestHang(t *testing.T) {
	s, c := start(t)
	s.SetFlavor(critest.Containerd17)
	for method, call := range methods(c, "s", "c") {
		s.SetFault(method, critest.Fault{Hang: true})
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		if err := call(ctx); !errors.Is(err, cri.ErrTimeout) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("hanging %s = %v; want ErrTimeout", method, err)
		}
		cancel()

		ctx, cancel = context.WithCancel(t.Context())
		done := make(chan error, 1)
		s.ResetCalls()
		go func() { done <- call(ctx) }()
		if err := s.AwaitCalls(t.Context(), method, 1); err != nil {
			t.Fatal(err)
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) || errors.Is(err, cri.ErrTimeout) {
			t.Errorf("cancelled %s = %v; want context.Canceled", method, err)
		}
	}
	// The client's own timeout, with a context without a deadline.
	c.SetCallTimeout(20 * time.Millisecond)
	if _, err := c.Containers(context.Background()); !errors.Is(err, cri.ErrTimeout) {
		t.Errorf("Containers = %v; want ErrTimeout", err)
	}
	// A method that hangs does not block another.
	if _, err := c.SandboxDetail(t.Context(), "s"); !errors.Is(err, cri.ErrTimeout) {
		t.Errorf("SandboxDetail = %v; want ErrTimeout", err)
	}
	s.ClearFault("Version")
	c.SetCallTimeout(cri.CallTimeout)
	if _, err := c.Version(t.Context()); err != nil {
		t.Errorf("Version during hanging calls = %v; want nil", err)
	}
}

func TestCancelledBefore(t *testing.T) {
	s, c := start(t)
	s.SetFlavor(critest.Containerd17)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for method, call := range methods(c, "s", "c") {
		if err := call(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("%s = %v; want context.Canceled", method, err)
		}
	}
}

func TestTimeoutAfterCallStillStops(t *testing.T) {
	s, c := start(t)
	p := s.AddPod(critest.Pod{Containers: make([]critest.Container, 1)})
	s.SetFault("StopContainer", critest.Fault{AfterCall: true, Hang: true, Times: 1})
	// The call must reach the server before its timeout, which may take long on an
	// emulated CPU.
	stopped := func(c critest.Call) bool { return c.Method == "StopContainer" }
	for timeout := 250 * time.Millisecond; !slices.ContainsFunc(s.Calls(), stopped); timeout *= 2 {
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		defer cancel()
		if err := c.StopContainer(ctx, p.Containers[0].ID, 0); !errors.Is(err, cri.ErrTimeout) {
			t.Fatalf("StopContainer = %v; want ErrTimeout", err)
		}
	}
	if err := c.StopContainer(t.Context(), p.Containers[0].ID, 0); err != nil {
		t.Errorf("StopContainer again: %v", err)
	}
	if state, _ := s.State(p.Containers[0].ID); state != cri.StateExited {
		t.Errorf("state = %v; want exited", state)
	}
}

func TestMalformedResponses(t *testing.T) {
	s, c := start(t)
	p := s.AddPod(critest.Pod{Containers: make([]critest.Container, 2)})
	s.AddPod(critest.Pod{})
	container := p.Containers[0].ID

	for _, text := range []string{"", "{", "\x00", `{"pid":-7}`, `{"pid":1}`, `{"runtimeSpec":{"process":{"oomScoreAdj":5000}}}`} {
		s.SetFault("ContainerStatus", critest.Fault{Mutate: critest.Info(text)})
		s.SetFault("PodSandboxStatus", critest.Fault{Mutate: critest.Info(text)})
		if d, err := c.ContainerDetail(t.Context(), container); !errors.Is(err, cri.ErrMalformed) || d.PID != 0 {
			t.Errorf("ContainerDetail with info %q = %+v, %v; want ErrMalformed", text, d, err)
		}
		if d, err := c.SandboxDetail(t.Context(), p.ID); !errors.Is(err, cri.ErrMalformed) || d.PID != 0 {
			t.Errorf("SandboxDetail with info %q = %+v, %v; want ErrMalformed", text, d, err)
		}
	}
	for _, method := range []string{"ContainerStatus", "PodSandboxStatus", "ListContainers", "ListPodSandbox"} {
		s.SetFault(method, critest.Fault{Mutate: critest.EmptyIDs})
	}
	if d, err := c.ContainerDetail(t.Context(), container); !errors.Is(err, cri.ErrMalformed) {
		t.Errorf("ContainerDetail without id = %+v, %v; want ErrMalformed", d, err)
	}
	if d, err := c.SandboxDetail(t.Context(), p.ID); !errors.Is(err, cri.ErrMalformed) {
		t.Errorf("SandboxDetail without id = %+v, %v; want ErrMalformed", d, err)
	}
	if list, err := c.Containers(t.Context()); !errors.Is(err, cri.ErrMalformed) || len(list) != 0 {
		t.Errorf("Containers without ids = %+v, %v; want ErrMalformed", list, err)
	}
	if list, err := c.Sandboxes(t.Context()); !errors.Is(err, cri.ErrMalformed) || len(list) != 0 {
		t.Errorf("Sandboxes without ids = %+v, %v; want ErrMalformed", list, err)
	}
	s.SetFault("ListContainers", critest.Fault{Mutate: critest.Duplicates})
	s.SetFault("ListPodSandbox", critest.Fault{Mutate: critest.Duplicates})
	if list, err := c.Containers(t.Context()); !errors.Is(err, cri.ErrMalformed) || len(list) != 1 || list[0].ID != p.Containers[1].ID {
		t.Errorf("Containers with a duplicate = %+v, %v; want the other one and ErrMalformed", list, err)
	}
	if list, err := c.Sandboxes(t.Context()); !errors.Is(err, cri.ErrMalformed) || len(list) != 1 || list[0].ID == p.ID {
		t.Errorf("Sandboxes with a duplicate = %+v, %v; want the other one and ErrMalformed", list, err)
	}
}

func TestDelay(t *testing.T) {
	s, c := start(t)
	s.SetFault("Version", critest.Fault{Delay: 30 * time.Millisecond, Times: 1})
	before := time.Now()
	if _, err := c.Version(t.Context()); err != nil || time.Since(before) < 30*time.Millisecond {
		t.Errorf("delayed Version = %v after %v; want no error after at least 30ms", err, time.Since(before))
	}
}

func TestUnreachable(t *testing.T) {
	dir := t.TempDir()
	missing := filepath.Join(dir, "s")
	c := connect(t, "unix://"+missing)
	for method, call := range methods(c, "s", "c") {
		before := time.Now()
		err := call(t.Context())
		if !errors.Is(err, cri.ErrUnreachable) || !strings.Contains(err.Error(), missing) {
			t.Errorf("%s without a socket = %v; want ErrUnreachable and the path", method, err)
		}
		if d := time.Since(before); d > time.Second {
			t.Errorf("%s without a socket took %v; want at most 1s", method, d)
		}
	}
	if _, err := c.Version(t.Context()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Version without a socket = %v; want fs.ErrNotExist", err)
	}
}

func TestRestart(t *testing.T) {
	s, c := start(t)
	p := s.AddPod(critest.Pod{Containers: make([]critest.Container, 1)})
	for round, down := range []struct {
		name string
		stop func()
		want error
	}{
		{"stopped", s.Stop, fs.ErrNotExist},
		{"crashed", s.Crash, syscall.ECONNREFUSED},
		{"stopped again", s.Stop, fs.ErrNotExist},
	} {
		if list, err := c.Containers(t.Context()); err != nil || len(list) != 1 {
			t.Fatalf("round %d: Containers = %+v, %v; want one", round, list, err)
		}
		down.stop()
		for range 3 {
			if _, err := c.Containers(t.Context()); !errors.Is(err, cri.ErrUnreachable) || !errors.Is(err, down.want) {
				t.Errorf("%s: Containers = %v; want ErrUnreachable and %v", down.name, err, down.want)
			}
		}
		s.Restart()
		if err := c.StopContainer(t.Context(), p.Containers[0].ID, 0); err != nil {
			t.Errorf("%s: first call after the restart: %v", down.name, err)
		}
	}
	// Restarts that the client can't have noticed yet.
	for range 20 {
		s.Restart()
		if _, err := c.Containers(t.Context()); err != nil {
			t.Fatalf("Containers right after a restart: %v", err)
		}
	}
}

func TestRestartDuringCall(t *testing.T) {
	s, c := start(t)
	s.SetFault("ListContainers", critest.Fault{Hang: true})
	done := make(chan error, 1)
	go func() { _, err := c.Containers(t.Context()); done <- err }()
	if err := s.AwaitCalls(t.Context(), "ListContainers", 1); err != nil {
		t.Fatal(err)
	}
	s.Stop()
	if err := <-done; !errors.Is(err, cri.ErrUnreachable) {
		t.Errorf("Containers when the server stops = %v; want ErrUnreachable", err)
	}
}

// The kernel accepts connections into the socket's backlog even if the runtime is
// stopped (SIGSTOP).
func TestFrozenRuntime(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := connect(t, socket)
	c.SetCallTimeout(50 * time.Millisecond)
	if _, err := c.Version(t.Context()); !errors.Is(err, cri.ErrTimeout) {
		t.Errorf("Version = %v; want ErrTimeout", err)
	}
}

func TestNotARuntime(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	var served sync.WaitGroup
	served.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conn.Write([]byte("220 smtp.example.com ESMTP\r\n"))
			conn.Close()
		}
	})
	t.Cleanup(func() { l.Close(); served.Wait() })
	c := connect(t, socket)
	c.SetCallTimeout(200 * time.Millisecond)
	if v, err := c.Version(t.Context()); !errors.Is(err, cri.ErrUnreachable) && !errors.Is(err, cri.ErrTimeout) {
		t.Errorf("Version = %+v, %v; want ErrUnreachable or ErrTimeout", v, err)
	}
}
