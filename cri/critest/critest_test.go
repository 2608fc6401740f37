package critest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/evictd/evictd/cri"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func dial(t *testing.T, s *Server) runtimev1.RuntimeServiceClient {
	t.Helper()
	conn, err := grpc.NewClient(s.Endpoint(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return runtimev1.NewRuntimeServiceClient(conn)
}

// For the pod of the samples, the server returns the same bytes as containerd.
func TestInfoMatchesContainerd(t *testing.T) {
	var sample containerInfo
	mustUnmarshal(containerSample, &sample)
	var sampleBox sandboxInfo
	mustUnmarshal(sandboxSample, &sampleBox)
	s := Start(t)
	p := s.AddPod(Pod{
		ID: sample.SandboxID, Name: "web", Namespace: "default", UID: "8f2a1b3c-0000-4000-8000-00000000c0de", Attempt: 1,
		Labels: map[string]string{"app": "web"}, Annotations: map[string]string{"evictd.io/priority": "5"},
		CgroupParent: "/kubepods/burstable/pod8f2a1b3c-0000-4000-8000-00000000c0de", PID: sampleBox.PID,
		Containers: []Container{{
			ID: sample.SnapshotKey, Name: "main", PID: sample.PID,
			Labels:      map[string]string{"io.kubernetes.container.name": "main"},
			Annotations: map[string]string{"io.kubernetes.pod.terminationGracePeriod": "30"},
			OOMScoreAdj: 900, MemoryLimit: 64 << 20, CPUShares: 512, CPUQuota: 50000,
		}},
	})
	c := dial(t, s)
	ctr, err := c.ContainerStatus(t.Context(), &runtimev1.ContainerStatusRequest{ContainerId: p.Containers[0].ID, Verbose: true})
	if err != nil {
		t.Fatal(err)
	}
	box, err := c.PodSandboxStatus(t.Context(), &runtimev1.PodSandboxStatusRequest{PodSandboxId: p.ID, Verbose: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		got  map[string]string
		want []byte
	}{
		{"container", ctr.GetInfo(), containerSample},
		{"sandbox", box.GetInfo(), sandboxSample},
	} {
		if want := string(bytes.TrimSpace(tt.want)); tt.got["info"] != want || len(tt.got) != 1 {
			t.Errorf("%s info =\n%s\nwant\n%s", tt.name, tt.got["info"], want)
		}
	}

	if resp, err := c.ContainerStatus(t.Context(), &runtimev1.ContainerStatusRequest{ContainerId: p.Containers[0].ID}); err != nil || resp.GetInfo() != nil {
		t.Errorf("ContainerStatus without verbose = %v, %v; want no info", resp.GetInfo(), err)
	}
}

func TestPodsDoNotShareASpec(t *testing.T) {
	s := Start(t)
	a, b := s.AddPod(Pod{Containers: []Container{{OOMScoreAdj: 1}}}), s.AddPod(Pod{Containers: []Container{{OOMScoreAdj: 2}}})
	c := dial(t, s)
	for _, p := range []Pod{a, b, a} {
		resp, err := c.ContainerStatus(t.Context(), &runtimev1.ContainerStatusRequest{ContainerId: p.Containers[0].ID, Verbose: true})
		if err != nil {
			t.Fatal(err)
		}
		var info containerInfo
		if err := json.Unmarshal([]byte(resp.GetInfo()["info"]), &info); err != nil {
			t.Fatal(err)
		}
		if *info.RuntimeSpec.Process.OOMScoreAdj != p.Containers[0].OOMScoreAdj || info.RuntimeSpec.Linux.CgroupsPath != p.CgroupParent+"/"+p.Containers[0].ID {
			t.Errorf("spec of %s: score %d, path %s", p.Name, *info.RuntimeSpec.Process.OOMScoreAdj, info.RuntimeSpec.Linux.CgroupsPath)
		}
	}
}

func TestFaultTimes(t *testing.T) {
	s := Start(t)
	c := dial(t, s)
	s.SetFault("Version", Fault{Code: codes.Internal, Times: 2})
	for i, want := range []codes.Code{codes.Internal, codes.Internal, codes.OK} {
		if _, err := c.Version(t.Context(), &runtimev1.VersionRequest{}); status.Code(err) != want {
			t.Errorf("call %d = %v; want %v", i, err, want)
		}
	}
	s.SetFault("Version", Fault{Code: codes.Internal})
	s.ClearFault("Version")
	if _, err := c.Version(t.Context(), &runtimev1.VersionRequest{}); err != nil {
		t.Errorf("Version after ClearFault = %v; want nil", err)
	}
}

func TestUnknownMethodPanics(t *testing.T) {
	s := Start(t)
	defer func() {
		if recover() == nil {
			t.Error("SetFault of an unknown method did not panic")
		}
	}()
	s.SetFault("ListPods", Fault{})
}

func TestStopEndsHangingCalls(t *testing.T) {
	s := Start(t)
	c := dial(t, s)
	s.SetFault("Version", Fault{Hang: true})
	done := make(chan error, 1)
	go func() {
		_, err := c.Version(context.Background(), &runtimev1.VersionRequest{})
		done <- err
	}()
	if err := s.AwaitCalls(t.Context(), "Version", 1); err != nil {
		t.Fatal(err)
	}
	s.Stop()
	s.Stop()
	if err := <-done; status.Code(err) != codes.Unavailable {
		t.Errorf("Version = %v; want Unavailable", err)
	}
}

func TestAwaitCallsEndsWithContext(t *testing.T) {
	s := Start(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.AwaitCalls(ctx, "Version", 1); !errors.Is(err, context.Canceled) {
		t.Errorf("AwaitCalls = %v; want context.Canceled", err)
	}
}

func TestInventoryChanges(t *testing.T) {
	s := Start(t)
	p := s.AddPod(Pod{})
	added := s.AddContainer(p.ID, Container{State: cri.StateCreated})
	if state, ok := s.State(added.ID); !ok || state != cri.StateCreated {
		t.Errorf("State = %v, %v; want created", state, ok)
	}
	s.SetReady(p.ID, false)
	if ready, ok := s.Ready(p.ID); ready || !ok {
		t.Errorf("Ready = %v, %v; want false, true", ready, ok)
	}
	s.RemoveContainer(added.ID)
	if _, ok := s.State(added.ID); ok {
		t.Error("the container exists after its removal")
	}
	s.RemovePod(p.ID)
	if _, ok := s.Ready(p.ID); ok {
		t.Error("the pod exists after its removal")
	}
}

// The OnStop function is called once per running container, whichever call stops it.
func TestOnStop(t *testing.T) {
	s := Start(t)
	p := s.AddPod(Pod{Containers: []Container{{Name: "a"}, {Name: "b"}, {Name: "c", State: cri.StateExited}}})
	var stopped []string
	s.OnStop(func(id string, grace time.Duration) { stopped = append(stopped, id+" "+grace.String()) })
	c := dial(t, s)
	if _, err := c.StopContainer(t.Context(), &runtimev1.StopContainerRequest{ContainerId: p.Containers[0].ID, Timeout: 3}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.RemovePodSandbox(t.Context(), &runtimev1.RemovePodSandboxRequest{PodSandboxId: p.ID}); err != nil {
		t.Fatal(err)
	}
	want := p.Containers[0].ID + " 3s\n" + p.Containers[1].ID + " 0s"
	if got := strings.Join(stopped, "\n"); got != want {
		t.Errorf("OnStop function called with\n%s\nwant\n%s", got, want)
	}
}

// The name of this test is longer than the limit of a socket path.
func TestAVeryLongNameThatLeavesNoRoomForASocketPathWhichTheKernelLimitsToOneHundredAndSevenBytes(t *testing.T) {
	s := Start(t)
	if path := strings.TrimPrefix(s.Endpoint(), "unix://"); len(path) > 107 || !filepath.IsAbs(path) {
		t.Errorf("Endpoint = %s (%d bytes)", s.Endpoint(), len(path))
	}
	if _, err := dial(t, s).Version(t.Context(), &runtimev1.VersionRequest{}); err != nil {
		t.Errorf("Version: %v", err)
	}
}
