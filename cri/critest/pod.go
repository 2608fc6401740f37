package critest

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"path"
	"strings"
	"time"

	"github.com/evictd/evictd/cri"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	// UnusedPID is PID_MAX_LIMIT of 64-bit kernels: one more than the largest pid.
	UnusedPID = 1 << 22
	// NoCgroupParent is the CgroupParent of a pod without one, as crictl creates it
	// without cgroup_parent. The parent is then containerd's /k8s.io or CRI-O's /crio.
	NoCgroupParent = "none"
)

// Pod is a sandbox and its containers. Zero fields get the value that a runtime would
// report. IDs are 64 hex digits derived from the names, so they are deterministic.
type Pod struct {
	ID             string
	Name           string // default pod-N
	Namespace      string // default "default"
	UID            string // default derived from the ID
	Attempt        uint32
	Created        time.Time // default an hour ago
	NotReady       bool
	Labels         map[string]string
	Annotations    map[string]string
	RuntimeHandler string
	BinaryName     string // the option of that name of containerd's shim
	CgroupParent   string // default /kubepods/besteffort/podUID
	PID            int    // default UnusedPID
	Containers     []Container
}

// Container is a container of a Pod.
type Container struct {
	ID          string
	Name        string // default main, main-1, …
	Attempt     uint32
	State       cri.State // default cri.StateRunning; cri.StateUnknown is not possible
	Created     time.Time // default the pod's
	Image       string    // default localhost/pause:1
	Labels      map[string]string
	Annotations map[string]string
	PID         int    // default UnusedPID; reported as 0 unless running
	CgroupsPath string // default derived from the pod's parent and the ID, as by the runtime
	OOMScoreAdj int
	MemoryLimit int64  // bytes, 0: none
	CPUShares   uint64 // 0: none
	CPUQuota    int64  // µs per 100 ms, 0: none
	// NoResources creates a container as crictl does without resources: containerd
	// then reports neither limits nor an OOM score.
	NoResources bool
}

// sandbox and container are the server's copies, protected by its mutex.
type sandbox struct {
	Pod
	containers []*container
}

type container struct {
	Container
	sandbox  *sandbox
	started  time.Time
	finished time.Time
	exitCode int32
	reason   string
}

func (p Pod) withDefaults(n int) Pod {
	if p.Name == "" {
		p.Name = fmt.Sprintf("pod-%d", n)
	}
	if p.Namespace == "" {
		p.Namespace = "default"
	}
	if p.ID == "" {
		p.ID = hexID("sandbox", fmt.Sprint(n), p.Namespace, p.Name)
	}
	if p.UID == "" {
		h := hexID("uid", p.ID)
		p.UID = h[:8] + "-" + h[8:12] + "-4" + h[12:15] + "-8" + h[15:18] + "-" + h[18:30]
	}
	if p.Created.IsZero() {
		p.Created = time.Now().Add(-time.Hour)
	}
	switch p.CgroupParent {
	case "":
		p.CgroupParent = "/kubepods/besteffort/pod" + p.UID
	case NoCgroupParent:
		p.CgroupParent = ""
	}
	if p.PID == 0 && !p.NotReady {
		p.PID = UnusedPID
	}
	p.Labels, p.Annotations = maps.Clone(p.Labels), maps.Clone(p.Annotations)
	return p
}

func (c Container) withDefaults(pod *sandbox, n int) Container {
	if c.Name == "" {
		c.Name = "main"
		if n > 0 {
			c.Name = fmt.Sprintf("main-%d", n)
		}
	}
	if c.ID == "" {
		c.ID = hexID("container", fmt.Sprint(n), pod.ID, c.Name, fmt.Sprint(c.Attempt))
	}
	if c.State == cri.StateUnknown {
		c.State = cri.StateRunning
	}
	if c.Created.IsZero() {
		c.Created = pod.Created
	}
	if c.Image == "" {
		c.Image = pauseImage
	}
	if c.PID == 0 {
		c.PID = UnusedPID
	}
	c.Labels, c.Annotations = maps.Clone(c.Labels), maps.Clone(c.Annotations)
	return c
}

// cgroupsPath returns the OCI cgroupsPath that containerd and CRI-O set for a
// container: in systemd's form if the parent is a slice, otherwise a directory below
// the parent, or below the runtime's own directory if there is no parent.
func (f Flavor) cgroupsPath(parent, id string) string {
	prefix, directory, defaultParent := "cri-containerd", id, "/k8s.io"
	if f == CRIO {
		prefix, directory, defaultParent = "crio", "crio-"+id, "/crio"
	}
	if parent == "" {
		parent = defaultParent
	}
	if base := path.Base(parent); strings.HasSuffix(base, ".slice") {
		return base + ":" + prefix + ":" + id
	}
	return path.Join(parent, directory)
}

func hexID(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:])
}

func imageRef(image string) string { return "sha256:" + hexID("image", image) }

func (c *container) state() runtimev1.ContainerState {
	switch c.State {
	case cri.StateCreated:
		return runtimev1.ContainerState_CONTAINER_CREATED
	case cri.StateRunning:
		return runtimev1.ContainerState_CONTAINER_RUNNING
	case cri.StateExited:
		return runtimev1.ContainerState_CONTAINER_EXITED
	}
	return runtimev1.ContainerState_CONTAINER_UNKNOWN
}

// set sets the state of the container, and its times, exit code and reason
// accordingly.
func (c *container) set(state cri.State) {
	c.State = state
	switch state {
	case cri.StateCreated:
		c.started, c.finished, c.exitCode, c.reason = time.Time{}, time.Time{}, 0, ""
	case cri.StateRunning:
		c.started, c.finished, c.exitCode, c.reason = time.Now(), time.Time{}, 0, ""
	case cri.StateExited:
		if c.started.IsZero() {
			c.started = c.Created
		}
		c.finished, c.exitCode, c.reason = time.Now(), 137, "Error"
	}
}

func (c *container) pid() int {
	if c.State != cri.StateRunning {
		return 0
	}
	return c.PID
}

func (s *sandbox) state() runtimev1.PodSandboxState {
	if s.NotReady {
		return runtimev1.PodSandboxState_SANDBOX_NOTREADY
	}
	return runtimev1.PodSandboxState_SANDBOX_READY
}

func (s *sandbox) pid() int {
	if s.NotReady {
		return 0
	}
	return s.PID
}

// logDirectory returns the log directory that the kubelet sets for a pod.
func (s *sandbox) logDirectory() string {
	return "/var/log/pods/" + s.Namespace + "_" + s.Name + "_" + s.UID
}

func (s *sandbox) metadata() *runtimev1.PodSandboxMetadata {
	return &runtimev1.PodSandboxMetadata{Name: s.Name, Uid: s.UID, Namespace: s.Namespace, Attempt: s.Attempt}
}

func (s *sandbox) status() *runtimev1.PodSandboxStatus {
	return &runtimev1.PodSandboxStatus{
		Id:             s.ID,
		Metadata:       s.metadata(),
		State:          s.state(),
		CreatedAt:      s.Created.UnixNano(),
		Network:        &runtimev1.PodSandboxNetworkStatus{},
		Linux:          &runtimev1.LinuxPodSandboxStatus{Namespaces: &runtimev1.Namespace{Options: hostNetwork()}},
		Labels:         maps.Clone(s.Labels),
		Annotations:    maps.Clone(s.Annotations),
		RuntimeHandler: s.RuntimeHandler,
	}
}

func (s *sandbox) listed() *runtimev1.PodSandbox {
	return &runtimev1.PodSandbox{
		Id:             s.ID,
		Metadata:       s.metadata(),
		State:          s.state(),
		CreatedAt:      s.Created.UnixNano(),
		Labels:         maps.Clone(s.Labels),
		Annotations:    maps.Clone(s.Annotations),
		RuntimeHandler: s.RuntimeHandler,
	}
}

func (c *container) listed() *runtimev1.Container {
	return &runtimev1.Container{
		Id:           c.ID,
		PodSandboxId: c.sandbox.ID,
		Metadata:     &runtimev1.ContainerMetadata{Name: c.Name, Attempt: c.Attempt},
		Image:        &runtimev1.ImageSpec{Image: c.Image},
		ImageRef:     imageRef(c.Image),
		State:        c.state(),
		CreatedAt:    c.Created.UnixNano(),
		Labels:       maps.Clone(c.Labels),
		Annotations:  maps.Clone(c.Annotations),
	}
}

func (c *container) status(f Flavor) *runtimev1.ContainerStatus {
	status := &runtimev1.ContainerStatus{
		Id:          c.ID,
		Metadata:    &runtimev1.ContainerMetadata{Name: c.Name, Attempt: c.Attempt},
		State:       c.state(),
		CreatedAt:   c.Created.UnixNano(),
		StartedAt:   unixNano(c.started),
		FinishedAt:  unixNano(c.finished),
		ExitCode:    c.exitCode,
		Image:       &runtimev1.ImageSpec{Image: c.Image},
		ImageRef:    imageRef(c.Image),
		Reason:      c.reason,
		Labels:      maps.Clone(c.Labels),
		Annotations: maps.Clone(c.Annotations),
		LogPath:     c.sandbox.logDirectory() + "/" + c.Name + ".log",
	}
	if f != CRIDockerd {
		status.Resources = &runtimev1.ContainerResources{Linux: c.resources(true)}
	}
	return status
}

// resources returns the limits of the container, as requested or as in effect:
// containerd sets the swap limit to the memory limit, which disables swap.
func (c *container) resources(inEffect bool) *runtimev1.LinuxContainerResources {
	if c.NoResources {
		return nil
	}
	r := &runtimev1.LinuxContainerResources{
		CpuShares:          int64(c.CPUShares),
		CpuQuota:           c.CPUQuota,
		MemoryLimitInBytes: c.MemoryLimit,
		OomScoreAdj:        int64(c.OOMScoreAdj),
	}
	if c.CPUQuota != 0 {
		r.CpuPeriod = cpuPeriod
	}
	if inEffect {
		r.MemorySwapLimitInBytes = c.MemoryLimit
	}
	return r
}

const cpuPeriod = 100_000 // µs, the kubelet's

func unixNano(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}
