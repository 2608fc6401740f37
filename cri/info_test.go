package cri

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	sampleSandbox   = "0ca0c9cb73332e714acb97195211ae1a7d81e53bc555c80149d4652430561e8a"
	sampleContainer = "0f015e94ce5e5f2447eead525a890c4382492538f4f86a83081c47756f812a80"
	samplePod       = "/kubepods/burstable/pod8f2a1b3c-0000-4000-8000-00000000c0de"
)

// The CRI-O documents follow its server/container_status.go and sandbox_status.go,
// the cri-dockerd one its core/convert.go.
var containerInfos = []struct {
	name   string
	info   map[string]string
	status *runtimev1.LinuxContainerResources
	want   ContainerDetail
	err    bool
}{
	{
		name: "CRI-O",
		info: map[string]string{"info": `{"sandboxID":"0ca0","pid":4711,"runtimeSpec":{"ociVersion":"1.1.0","process":{"oomScoreAdj":-997},` +
			`"linux":{"resources":{"memory":{"limit":1048576},"cpu":{"shares":1024}},"cgroupsPath":"kubepods-podX.slice:crio:ID"}},"privileged":false}`},
		want: ContainerDetail{Container: Container{ID: "c", SandboxID: "0ca0"}, PID: 4711, CgroupsPath: "kubepods-podX.slice:crio:ID",
			OOMScoreAdj: new(-997), ResourcesKnown: true, MemoryLimit: new(int64(1048576)), CPUShares: new(uint64(1024))},
	},
	{
		name: "cri-dockerd",
		info: map[string]string{"info": `{"sandboxID":"0ca0","pid":4711}`},
		want: ContainerDetail{Container: Container{ID: "c", SandboxID: "0ca0"}, PID: 4711},
	},
	{
		name: "no info",
		want: ContainerDetail{Container: Container{ID: "c"}},
	},
	{
		name:   "no info, limits in the status",
		status: &runtimev1.LinuxContainerResources{MemoryLimitInBytes: 7, CpuShares: 2, CpuQuota: -1, CpuPeriod: 100000, OomScoreAdj: 1000},
		want: ContainerDetail{Container: Container{ID: "c"}, ResourcesKnown: true, MemoryLimit: new(int64(7)), CPUShares: new(uint64(2)),
			CPUPeriod: new(uint64(100000)), OOMScoreAdj: new(1000)},
	},
	{
		name:   "status with zeros only has no OOM score",
		status: &runtimev1.LinuxContainerResources{},
		want:   ContainerDetail{Container: Container{ID: "c"}, ResourcesKnown: true},
	},
	{
		name:   "the spec takes precedence over the status",
		info:   map[string]string{"info": `{"runtimeSpec":{"process":{"oomScoreAdj":0},"linux":{"resources":{}}}}`},
		status: &runtimev1.LinuxContainerResources{MemoryLimitInBytes: 7, OomScoreAdj: 1000},
		want:   ContainerDetail{Container: Container{ID: "c"}, ResourcesKnown: true, OOMScoreAdj: new(0)},
	},
	{
		name: "unlimited is nil",
		info: map[string]string{"info": `{"runtimeSpec":{"linux":{"resources":{"memory":{"limit":-1,"swap":0},"cpu":{"shares":0,"quota":-1}}}}}`},
		want: ContainerDetail{Container: Container{ID: "c"}, ResourcesKnown: true},
	},
	{
		name: "empty document",
		info: map[string]string{"info": `{}`},
		want: ContainerDetail{Container: Container{ID: "c"}},
	},
	{
		name: "another key",
		info: map[string]string{"sandboxID": `"x"`},
		want: ContainerDetail{Container: Container{ID: "c"}},
	},
	{
		name: "unexpected types in unused fields",
		info: map[string]string{"info": `{"pid":2,"runtimeOptions":7,"runtimeSpec":{"hooks":"new","mounts":{}}}`},
		want: ContainerDetail{Container: Container{ID: "c"}, PID: 2},
	},
	{name: "empty text", info: map[string]string{"info": ""}, err: true},
	{name: "cut off", info: map[string]string{"info": `{"pid":12,`}, err: true},
	{name: "not an object", info: map[string]string{"info": `[]`}, err: true},
	{name: "pid as text", info: map[string]string{"info": `{"pid":"12"}`}, err: true},
	{name: "pid negative", info: map[string]string{"info": `{"pid":-1}`}, err: true},
	{name: "pid of init", info: map[string]string{"info": `{"pid":1}`}, err: true},
	{name: "pid above PID_MAX_LIMIT", info: map[string]string{"info": `{"pid":4194305}`}, err: true},
	{name: "pid beyond int64", info: map[string]string{"info": `{"pid":99999999999999999999}`}, err: true},
	{name: "pid fraction", info: map[string]string{"info": `{"pid":1.5}`}, err: true},
	{name: "OOM score", info: map[string]string{"info": `{"runtimeSpec":{"process":{"oomScoreAdj":1001}}}`}, err: true},
	{name: "memory as text", info: map[string]string{"info": `{"runtimeSpec":{"linux":{"resources":{"memory":{"limit":"1Gi"}}}}}`}, err: true},
	{name: "sandbox id", info: map[string]string{"info": `{"sandboxID":"../x"}`}, err: true},
}

func TestContainerDetailOf(t *testing.T) {
	for _, tt := range containerInfos {
		t.Run(tt.name, func(t *testing.T) {
			resp := &runtimev1.ContainerStatusResponse{
				Status: &runtimev1.ContainerStatus{Id: "c", State: runtimev1.ContainerState_CONTAINER_UNKNOWN},
				Info:   tt.info,
			}
			if tt.status != nil {
				resp.Status.Resources = &runtimev1.ContainerResources{Linux: tt.status}
			}
			got, err := containerDetailOf("c", resp)
			if tt.err {
				if !errors.Is(err, ErrMalformed) {
					t.Fatalf("containerDetailOf = %+v, %v; want ErrMalformed", got, err)
				}
				return
			}
			if err != nil {
				t.Fatalf("containerDetailOf: %v", err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("containerDetailOf (-want +got):\n%s", diff)
			}
		})
	}
}

func readSample(t testing.TB, name string) map[string]string {
	b, err := os.ReadFile("critest/testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return map[string]string{"info": string(b)}
}

func TestContainerdSample(t *testing.T) {
	got, err := containerDetailOf(sampleContainer, &runtimev1.ContainerStatusResponse{
		Status: &runtimev1.ContainerStatus{
			Id:        sampleContainer,
			Metadata:  &runtimev1.ContainerMetadata{Name: "main"},
			State:     runtimev1.ContainerState_CONTAINER_RUNNING,
			CreatedAt: 1795207002223312215,
			StartedAt: 1795207002273545519,
			Image:     &runtimev1.ImageSpec{Image: "localhost/pause:1"},
			ImageRef:  "sha256:1038",
		},
		Info: readSample(t, "containerd-1.6.20-container.json"),
	})
	if err != nil {
		t.Fatalf("containerDetailOf: %v", err)
	}
	want := ContainerDetail{
		Container: Container{ID: sampleContainer, SandboxID: sampleSandbox, Name: "main", State: StateRunning,
			Created: nanoseconds(1795207002223312215), Image: "localhost/pause:1", ImageRef: "sha256:1038"},
		Started:         nanoseconds(1795207002273545519),
		PID:             5367,
		CgroupsPath:     samplePod + "/" + sampleContainer,
		OOMScoreAdj:     new(900),
		ResourcesKnown:  true,
		MemoryLimit:     new(int64(64 << 20)),
		MemorySwapLimit: new(int64(64 << 20)),
		CPUShares:       new(uint64(512)),
		CPUQuota:        new(int64(50000)),
		CPUPeriod:       new(uint64(100000)),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("containerDetailOf (-want +got):\n%s", diff)
	}

	box, err := sandboxDetailOf(sampleSandbox, &runtimev1.PodSandboxStatusResponse{
		Status: &runtimev1.PodSandboxStatus{
			Id:       sampleSandbox,
			Metadata: &runtimev1.PodSandboxMetadata{Name: "web", Namespace: "default", Uid: "8f2a1b3c-0000-4000-8000-00000000c0de", Attempt: 1},
		},
		Info: readSample(t, "containerd-1.6.20-sandbox.json"),
	})
	if err != nil {
		t.Fatalf("sandboxDetailOf: %v", err)
	}
	wantBox := SandboxDetail{
		Sandbox:       Sandbox{ID: sampleSandbox, Name: "web", Namespace: "default", UID: "8f2a1b3c-0000-4000-8000-00000000c0de", Attempt: 1, Ready: true},
		PID:           5330,
		ProcessStatus: "running",
		CgroupParent:  samplePod,
		CgroupsPath:   samplePod + "/" + sampleSandbox,
		NetNSClosed:   new(false),
	}
	if diff := cmp.Diff(wantBox, box); diff != "" {
		t.Errorf("sandboxDetailOf (-want +got):\n%s", diff)
	}
}

func TestSandboxDetailOf(t *testing.T) {
	for _, tt := range []struct {
		name, id, info string
		want           SandboxDetail
		err            bool
	}{
		{name: "CRI-O", id: "s", info: `{"image":"pause","pid":99,"runtimeSpec":{"annotations":{"io.kubernetes.cri-o.CgroupParent":"kubepods-podX.slice"},"linux":{"cgroupsPath":"kubepods-podX.slice:crio:s"}}}`,
			want: SandboxDetail{Sandbox: Sandbox{ID: "s", Ready: true}, PID: 99, CgroupParent: "kubepods-podX.slice", CgroupsPath: "kubepods-podX.slice:crio:s"}},
		{name: "CRI-O without an infra container", id: "s", info: `{"runtimeSpec":{"ociVersion":"1.1.0"}}`,
			want: SandboxDetail{Sandbox: Sandbox{ID: "s", Ready: true}}},
		{name: "handler", id: "s", info: `{"runtimeHandler":"kata","netNamespaceClosed":true}`,
			want: SandboxDetail{Sandbox: Sandbox{ID: "s", Ready: true, RuntimeHandler: "kata"}, NetNSClosed: new(true)}},
		{name: "crun", id: "s", info: `{"runtimeOptions":{"binary_name":"/usr/bin/crun","systemd_cgroup":true}}`,
			want: SandboxDetail{Sandbox: Sandbox{ID: "s", Ready: true}, OCIRuntime: "crun"}},
		{name: "options of another type", id: "s", info: `{"pid":99,"runtimeOptions":{"binary_name":7}}`,
			want: SandboxDetail{Sandbox: Sandbox{ID: "s", Ready: true}, PID: 99}},
		{name: "options as text", id: "s", info: `{"pid":99,"runtimeOptions":"crun"}`,
			want: SandboxDetail{Sandbox: Sandbox{ID: "s", Ready: true}, PID: 99}},
		{name: "another sandbox", id: "other", info: `{}`, err: true},
		{name: "no sandbox", id: "", info: `{}`, err: true},
		{name: "broken", id: "s", info: `{`, err: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := sandboxDetailOf("s", &runtimev1.PodSandboxStatusResponse{
				Status: &runtimev1.PodSandboxStatus{Id: tt.id},
				Info:   map[string]string{"info": tt.info},
			})
			if tt.err {
				if !errors.Is(err, ErrMalformed) {
					t.Fatalf("sandboxDetailOf = %+v, %v; want ErrMalformed", got, err)
				}
				return
			}
			if err != nil {
				t.Fatalf("sandboxDetailOf: %v", err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("sandboxDetailOf (-want +got):\n%s", diff)
			}
		})
	}
	if _, err := sandboxDetailOf("s", nil); !errors.Is(err, ErrMalformed) {
		t.Errorf("sandboxDetailOf(nil) = %v; want ErrMalformed", err)
	}
}

func FuzzParseInfo(f *testing.F) {
	for _, tt := range containerInfos {
		f.Add(tt.info["info"])
	}
	f.Add(readSample(f, "containerd-1.6.20-container.json")["info"])
	f.Add(readSample(f, "containerd-1.6.20-sandbox.json")["info"])
	f.Fuzz(func(t *testing.T, text string) {
		verbose := map[string]string{"info": text}
		d, err := containerDetailOf("c", &runtimev1.ContainerStatusResponse{Status: &runtimev1.ContainerStatus{Id: "c"}, Info: verbose})
		if err != nil {
			if !errors.Is(err, ErrMalformed) || d.PID != 0 || d.CgroupsPath != "" {
				t.Fatalf("containerDetailOf(%q) = %+v, %v; want no values and ErrMalformed", text, d, err)
			}
			return
		}
		if d.PID < 0 || d.PID == 1 || d.PID > maxPID {
			t.Fatalf("containerDetailOf(%q): pid %d", text, d.PID)
		}
		if d.OOMScoreAdj != nil && (*d.OOMScoreAdj < -1000 || *d.OOMScoreAdj > 1000) {
			t.Fatalf("containerDetailOf(%q): OOM score %d", text, *d.OOMScoreAdj)
		}
		if d.MemoryLimit != nil && *d.MemoryLimit <= 0 {
			t.Fatalf("containerDetailOf(%q): memory limit %d", text, *d.MemoryLimit)
		}
		if _, err := sandboxDetailOf("s", &runtimev1.PodSandboxStatusResponse{Status: &runtimev1.PodSandboxStatus{Id: "s"}, Info: verbose}); err != nil {
			t.Fatalf("sandboxDetailOf(%q) = %v; want nil as from containerDetailOf", text, err)
		}
	})
}

func TestCheckID(t *testing.T) {
	for _, id := range []string{sampleContainer, "c", "k8s.io_x-1"} {
		if err := checkID(id); err != nil {
			t.Errorf("checkID(%q) = %v; want no error", id, err)
		}
	}
	for _, id := range []string{"", "a b", "a/b", "a\x00", "ä", "a\n", strings.Repeat("x", 256), "\xff"} {
		if err := checkID(id); err == nil {
			t.Errorf("checkID(%q) = nil; want an error", id)
		}
	}
}
