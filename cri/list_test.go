package cri_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/cri"
	"github.com/evictd/evictd/cri/critest"
)

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
			s.SetFlavor(tt.flavor)
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
		s.SetFlavor(critest.Containerd17)
		if n, err := list(); err == nil || errors.Is(err, cri.ErrUnimplemented) || !strings.Contains(err.Error(), "ResourceExhausted") {
			t.Errorf("%s without streaming = %d entries, %v; want ResourceExhausted", name, n, err)
		}
		s.SetImplemented("StreamPodSandboxes", true)
		s.SetImplemented("StreamContainers", true)
		if n, err := list(); err != nil || n != 70 {
			t.Errorf("%s with streaming = %d entries, %v; want 70", name, n, err)
		}
	}
}
