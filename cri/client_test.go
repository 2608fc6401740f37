package cri_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/evictd/evictd/cri"
	"github.com/evictd/evictd/cri/critest"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
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
	s.Implement("Version", false)
	if _, err := c.Version(t.Context()); !errors.Is(err, cri.ErrUnimplemented) {
		t.Errorf("Version = %v; want ErrUnimplemented", err)
	}
}

// addWeb adds a pod with every property, and returns it with the expected Sandbox.
func addWeb(s *critest.Server) (critest.Pod, cri.Sandbox) {
	web := s.AddPod(critest.Pod{
		Name: "web", Namespace: "prod", Attempt: 2, Created: time.Unix(1700000000, 0), RuntimeHandler: "kata",
		Labels: map[string]string{"app": "web"}, Annotations: map[string]string{"evictd.io/priority": "5"},
		CgroupParent: "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podX.slice",
		PID:          100,
		Containers: []critest.Container{
			{Name: "main", PID: 101, OOMScoreAdj: 900, MemoryLimit: 64 << 20, CPUShares: 512, CPUQuota: 50000},
			{Name: "init", State: cri.StateExited},
		},
	})
	return web, cri.Sandbox{ID: web.ID, Name: "web", Namespace: "prod", UID: web.UID, Attempt: 2, Created: web.Created, Ready: true,
		Labels: map[string]string{"app": "web"}, Annotations: map[string]string{"evictd.io/priority": "5"}, RuntimeHandler: "kata"}
}

func TestSandboxes(t *testing.T) {
	s, c := start(t)
	web, want := addWeb(s)
	stopped := s.AddPod(critest.Pod{Name: "stopped", NotReady: true})

	boxes, err := c.Sandboxes(t.Context())
	if err != nil {
		t.Fatalf("Sandboxes: %v", err)
	}
	byName := map[string]cri.Sandbox{}
	for _, b := range boxes {
		byName[b.Name] = b
	}
	if diff := cmp.Diff(want, byName["web"]); diff != "" || len(boxes) != 2 || byName["stopped"].Ready {
		t.Errorf("Sandboxes = %+v; web (-want +got):\n%s", boxes, diff)
	}

	box, err := c.SandboxDetail(t.Context(), web.ID)
	detail := cri.SandboxDetail{Sandbox: want, PID: 100, ProcessStatus: "running", CgroupParent: web.CgroupParent,
		CgroupsPath: "kubepods-burstable-podX.slice:cri-containerd:" + web.ID, NetNSClosed: new(false)}
	if diff := cmp.Diff(detail, box); diff != "" || err != nil {
		t.Errorf("SandboxDetail: %v (-want +got):\n%s", err, diff)
	}
	if box, err := c.SandboxDetail(t.Context(), stopped.ID); err != nil || box.Ready || box.PID != 0 || box.ProcessStatus != "deleted" {
		t.Errorf("SandboxDetail of a stopped sandbox = %+v, %v", box, err)
	}
}

func TestContainers(t *testing.T) {
	s, c := start(t)
	web, _ := addWeb(s)
	containers, err := c.Containers(t.Context())
	if err != nil || len(containers) != 2 {
		t.Fatalf("Containers = %+v, %v; want two", containers, err)
	}
	if containers[0].ID > containers[1].ID {
		t.Errorf("Containers: %s before %s; want them ordered", containers[0].ID, containers[1].ID)
	}

	main := web.Containers[0]
	d, err := c.ContainerDetail(t.Context(), main.ID)
	if err != nil {
		t.Fatalf("ContainerDetail: %v", err)
	}
	if d.Started.IsZero() || !d.Finished.IsZero() {
		t.Errorf("ContainerDetail: started %v, finished %v; want only Started", d.Started, d.Finished)
	}
	d.Started = time.Time{}
	want := cri.ContainerDetail{
		Container: cri.Container{ID: main.ID, SandboxID: web.ID, Name: "main", State: cri.StateRunning, Created: web.Created,
			Image: "localhost/pause:1", ImageRef: d.ImageRef},
		LogPath: "/var/log/pods/prod_web_" + web.UID + "/main.log",
		PID:     101, CgroupsPath: "kubepods-burstable-podX.slice:cri-containerd:" + main.ID, OOMScoreAdj: new(900), ResourcesKnown: true,
		MemoryLimit: new(int64(64 << 20)), MemorySwapLimit: new(int64(64 << 20)), CPUShares: new(uint64(512)), CPUQuota: new(int64(50000)), CPUPeriod: new(uint64(100000)),
	}
	if diff := cmp.Diff(want, d); diff != "" {
		t.Errorf("ContainerDetail (-want +got):\n%s", diff)
	}
	path, systemd, err := cri.CgroupPath(d.CgroupsPath)
	if want := "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podX.slice/cri-containerd-" + main.ID + ".scope"; path != want || !systemd || err != nil {
		t.Errorf("CgroupPath = %q, %v, %v; want %q", path, systemd, err, want)
	}

	exited, err := c.ContainerDetail(t.Context(), web.Containers[1].ID)
	if err != nil || exited.State != cri.StateExited || exited.PID != 0 || exited.ExitCode != 137 || exited.Finished.IsZero() || exited.MemoryLimit != nil || !exited.ResourcesKnown {
		t.Errorf("ContainerDetail of an exited container = %+v, %v", exited, err)
	}
}

// A pod without a cgroup parent and without resources has the runtime's default
// parent and no reported OOM score.
func TestBarePod(t *testing.T) {
	s, c := start(t)
	p := s.AddPod(critest.Pod{CgroupParent: critest.NoCgroupParent, Containers: []critest.Container{{NoResources: true}}})
	d, err := c.ContainerDetail(t.Context(), p.Containers[0].ID)
	if err != nil || d.CgroupsPath != "/k8s.io/"+d.ID || d.OOMScoreAdj != nil || !d.ResourcesKnown || d.MemoryLimit != nil {
		t.Errorf("ContainerDetail = %+v, %v; want a cgroup in /k8s.io, no OOM score, no limit", d, err)
	}
	if box, err := c.SandboxDetail(t.Context(), p.ID); err != nil || box.CgroupParent != "" || box.CgroupsPath != "/k8s.io/"+p.ID {
		t.Errorf("SandboxDetail = %+v, %v; want no parent", box, err)
	}
}

func TestFlavors(t *testing.T) {
	for _, tt := range []struct {
		name        string
		flavor      critest.Flavor
		runtime     string
		cgroupsPath string // "" if neither it nor the limits are reported
	}{
		{"containerd 1.7", critest.Containerd17, "containerd", "kubepods-podX.slice:cri-containerd:"},
		{"CRI-O", critest.CRIO, "cri-o", "kubepods-podX.slice:crio:"},
		{"cri-dockerd", critest.CRIDockerd, "docker", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, c := start(t)
			s.Imitate(tt.flavor)
			p := s.AddPod(critest.Pod{CgroupParent: "/kubepods.slice/kubepods-podX.slice", Containers: []critest.Container{{PID: 4711, MemoryLimit: 7}}})
			if v, err := c.Version(t.Context()); err != nil || v.Runtime != tt.runtime {
				t.Errorf("Version = %+v, %v; want %s", v, err, tt.runtime)
			}
			d, err := c.ContainerDetail(t.Context(), p.Containers[0].ID)
			if err != nil || d.PID != 4711 || d.SandboxID != p.ID {
				t.Errorf("ContainerDetail = %+v, %v; want pid 4711 in sandbox %s", d, err, p.ID)
			}
			reported := tt.cgroupsPath != ""
			want := ""
			if reported {
				want = tt.cgroupsPath + d.ID
			}
			if d.CgroupsPath != want || d.ResourcesKnown != reported || (d.MemoryLimit != nil) != reported || (d.OOMScoreAdj != nil) != reported {
				t.Errorf("ContainerDetail = %+v; want cgroups path %q, limits reported: %v", d, want, reported)
			}
			if box, err := c.SandboxDetail(t.Context(), p.ID); err != nil || (box.CgroupParent == p.CgroupParent) != reported || (box.PID != 0) != reported {
				t.Errorf("SandboxDetail = %+v, %v; want parent and pid reported: %v", box, err, reported)
			}
			if err := c.StopContainer(t.Context(), "gone", 0); err != nil {
				t.Errorf("StopContainer of a missing container = %v; want nil", err)
			}
			if _, err := c.ContainerDetail(t.Context(), "gone"); errors.Is(err, cri.ErrNotFound) != reported || err == nil {
				t.Errorf("ContainerDetail of a missing container = %v; want ErrNotFound: %v", err, reported)
			}
		})
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

	s.ForgetCalls()
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

func TestImageFsInfo(t *testing.T) {
	s, c := start(t)
	got, err := c.ImageFsInfo(t.Context())
	if err != nil || len(got.Image) != 1 || got.Image[0].UsedBytes == nil || got.Container != nil {
		t.Errorf("ImageFsInfo = %+v, %v; want containerd 1.6's one image filesystem", got, err)
	}
	want := cri.ImageFs{
		Image:     []cri.Filesystem{{Mountpoint: "/images", UsedBytes: new(uint64(3)), Measured: time.Unix(5, 0)}},
		Container: []cri.Filesystem{{Mountpoint: "/layers", InodesUsed: new(uint64(0))}},
	}
	s.SetImageFs(want)
	if got, err := c.ImageFsInfo(t.Context()); err != nil || !cmp.Equal(want, got) {
		t.Errorf("ImageFsInfo = %v (-want +got):\n%s", err, cmp.Diff(want, got))
	}
	s.SetImageFs(cri.ImageFs{})
	if got, err := c.ImageFsInfo(t.Context()); !errors.Is(err, cri.ErrMalformed) {
		t.Errorf("ImageFsInfo = %+v, %v; want ErrMalformed", got, err)
	}
}

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
	s.Imitate(critest.Containerd17)
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
			s.Break(method, critest.Fault{Code: code})
			err := call(t.Context())
			s.Heal(method)
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
	s.Imitate(critest.Containerd17)
	for method, call := range methods(c, "s", "c") {
		s.Break(method, critest.Fault{Hang: true})
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		if err := call(ctx); !errors.Is(err, cri.ErrTimeout) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("hanging %s = %v; want ErrTimeout", method, err)
		}
		cancel()

		ctx, cancel = context.WithCancel(t.Context())
		done := make(chan error, 1)
		s.ForgetCalls()
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
	s.Heal("Version")
	c.SetCallTimeout(cri.CallTimeout)
	if _, err := c.Version(t.Context()); err != nil {
		t.Errorf("Version during hanging calls = %v; want nil", err)
	}
}

func TestCancelledBefore(t *testing.T) {
	s, c := start(t)
	s.Imitate(critest.Containerd17)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for method, call := range methods(c, "s", "c") {
		if err := call(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("%s = %v; want context.Canceled", method, err)
		}
	}
}

func TestLateTimeoutStillStops(t *testing.T) {
	s, c := start(t)
	p := s.AddPod(critest.Pod{Containers: make([]critest.Container, 1)})
	s.Break("StopContainer", critest.Fault{Late: true, Hang: true, Times: 1})
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

func TestGarbage(t *testing.T) {
	s, c := start(t)
	p := s.AddPod(critest.Pod{Containers: make([]critest.Container, 2)})
	s.AddPod(critest.Pod{})
	container := p.Containers[0].ID

	for _, text := range []string{"", "{", "\x00", `{"pid":-7}`, `{"pid":1}`, `{"runtimeSpec":{"process":{"oomScoreAdj":5000}}}`} {
		s.Break("ContainerStatus", critest.Fault{Garble: critest.Info(text)})
		s.Break("PodSandboxStatus", critest.Fault{Garble: critest.Info(text)})
		if d, err := c.ContainerDetail(t.Context(), container); !errors.Is(err, cri.ErrMalformed) || d.PID != 0 {
			t.Errorf("ContainerDetail with info %q = %+v, %v; want ErrMalformed", text, d, err)
		}
		if d, err := c.SandboxDetail(t.Context(), p.ID); !errors.Is(err, cri.ErrMalformed) || d.PID != 0 {
			t.Errorf("SandboxDetail with info %q = %+v, %v; want ErrMalformed", text, d, err)
		}
	}
	for _, method := range []string{"ContainerStatus", "PodSandboxStatus", "ListContainers", "ListPodSandbox"} {
		s.Break(method, critest.Fault{Garble: critest.EmptyIDs})
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
	s.Break("ListContainers", critest.Fault{Garble: critest.Duplicates})
	s.Break("ListPodSandbox", critest.Fault{Garble: critest.Duplicates})
	if list, err := c.Containers(t.Context()); !errors.Is(err, cri.ErrMalformed) || len(list) != 1 || list[0].ID != p.Containers[1].ID {
		t.Errorf("Containers with a duplicate = %+v, %v; want the other one and ErrMalformed", list, err)
	}
	if list, err := c.Sandboxes(t.Context()); !errors.Is(err, cri.ErrMalformed) || len(list) != 1 || list[0].ID == p.ID {
		t.Errorf("Sandboxes with a duplicate = %+v, %v; want the other one and ErrMalformed", list, err)
	}
}

func TestDelay(t *testing.T) {
	s, c := start(t)
	s.Break("Version", critest.Fault{Delay: 30 * time.Millisecond, Times: 1})
	before := time.Now()
	if _, err := c.Version(t.Context()); err != nil || time.Since(before) < 30*time.Millisecond {
		t.Errorf("delayed Version = %v after %v; want no error after at least 30ms", err, time.Since(before))
	}
}

func TestFiveThousandContainers(t *testing.T) {
	s, c := start(t)
	annotations := map[string]string{
		"io.kubernetes.container.hash":                     "a1b2c3d4",
		"io.kubernetes.container.restartCount":             "0",
		"io.kubernetes.container.terminationMessagePath":   "/dev/termination-log",
		"io.kubernetes.container.terminationMessagePolicy": "File",
		"io.kubernetes.pod.terminationGracePeriod":         "30",
	}
	for i := range 2500 {
		s.AddPod(critest.Pod{Name: fmt.Sprintf("pod-%d", i), Containers: []critest.Container{{Annotations: annotations}, {Annotations: annotations}}})
	}
	list, err := c.Containers(t.Context())
	if err != nil || len(list) != 5000 {
		t.Fatalf("Containers = %d entries, %v; want 5000", len(list), err)
	}
	boxes, err := c.Sandboxes(t.Context())
	if err != nil || len(boxes) != 2500 {
		t.Fatalf("Sandboxes = %d entries, %v; want 2500", len(boxes), err)
	}
	for _, cont := range list[:10] {
		if d, err := c.ContainerDetail(t.Context(), cont.ID); err != nil || d.SandboxID != cont.SandboxID {
			t.Errorf("ContainerDetail(%s) = sandbox %s, %v; want %s", cont.ID, d.SandboxID, err, cont.SandboxID)
		}
	}
}

// Annotations can make a list larger than the message limit.
func TestListBeyondMessageLimit(t *testing.T) {
	s, c := start(t)
	c.SetCallTimeout(time.Minute) // copying the list is slow on an emulated CPU
	large := map[string]string{"example.com/large": strings.Repeat("x", 256<<10)}
	for range 70 {
		s.AddPod(critest.Pod{Annotations: large, Containers: []critest.Container{{Annotations: large}}})
	}
	for name, list := range map[string]func() (int, error){
		"Sandboxes":  func() (int, error) { l, err := c.Sandboxes(t.Context()); return len(l), err },
		"Containers": func() (int, error) { l, err := c.Containers(t.Context()); return len(l), err },
	} {
		s.Imitate(critest.Containerd17)
		if n, err := list(); err == nil || errors.Is(err, cri.ErrUnimplemented) || !strings.Contains(err.Error(), "ResourceExhausted") {
			t.Errorf("%s without streaming = %d entries, %v; want ResourceExhausted", name, n, err)
		}
		s.Implement("StreamPodSandboxes", true)
		s.Implement("StreamContainers", true)
		if n, err := list(); err != nil || n != 70 {
			t.Errorf("%s with streaming = %d entries, %v; want 70", name, n, err)
		}
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
	s.Break("ListContainers", critest.Fault{Hang: true})
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

func TestEvents(t *testing.T) {
	s, c := start(t)
	s.AddPod(critest.Pod{})
	if err := c.Events(t.Context(), func(cri.Event) {}); !errors.Is(err, cri.ErrUnimplemented) {
		t.Fatalf("Events from containerd 1.6 = %v; want ErrUnimplemented", err)
	}

	s.Imitate(critest.Containerd17)
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
	s.Imitate(critest.Containerd17)
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
