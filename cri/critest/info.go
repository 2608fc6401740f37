package critest

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The verbose information of a container and its sandbox from containerd 1.6.20, with
// host network, a memory limit and a CPU quota. Every spec that this server returns
// is derived from the specs in it.
var (
	//go:embed testdata/containerd-1.6.20-container.json
	containerSample []byte
	//go:embed testdata/containerd-1.6.20-sandbox.json
	sandboxSample []byte
)

const pauseImage = "localhost/pause:1"

// containerInfo and sandboxInfo are containerd's documents, in its field order.
type containerInfo struct {
	SandboxID      string                     `json:"sandboxID"`
	PID            int                        `json:"pid"`
	Removing       bool                       `json:"removing"`
	SnapshotKey    string                     `json:"snapshotKey"`
	Snapshotter    string                     `json:"snapshotter"`
	RuntimeType    string                     `json:"runtimeType"`
	RuntimeOptions struct{}                   `json:"runtimeOptions"`
	Config         *runtimev1.ContainerConfig `json:"config"`
	RuntimeSpec    *specs.Spec                `json:"runtimeSpec"`
}

type sandboxInfo struct {
	PID                int                         `json:"pid"`
	ProcessStatus      string                      `json:"processStatus"`
	NetNamespaceClosed bool                        `json:"netNamespaceClosed"`
	Image              string                      `json:"image"`
	SnapshotKey        string                      `json:"snapshotKey"`
	Snapshotter        string                      `json:"snapshotter"`
	RuntimeHandler     string                      `json:"runtimeHandler"`
	RuntimeType        string                      `json:"runtimeType"`
	RuntimeOptions     runcOptions                 `json:"runtimeOptions"`
	Config             *runtimev1.PodSandboxConfig `json:"config"`
	RuntimeSpec        *specs.Spec                 `json:"runtimeSpec"`
	CNIResult          *struct{}                   `json:"cniResult"`
}

// runcOptions are of the shim io.containerd.runc.v2.
type runcOptions struct {
	BinaryName string `json:"binary_name,omitempty"`
}

// crioContainerInfo and crioSandboxInfo are CRI-O's documents.
type crioContainerInfo struct {
	SandboxID   string      `json:"sandboxID"`
	PID         int         `json:"pid"`
	RuntimeSpec *specs.Spec `json:"runtimeSpec"`
	Privileged  bool        `json:"privileged"`
}

type crioSandboxInfo struct {
	Image       string      `json:"image"`
	PID         int         `json:"pid"`
	RuntimeSpec *specs.Spec `json:"runtimeSpec"`
}

// dockerContainerInfo is cri-dockerd's document. It has none for sandboxes.
type dockerContainerInfo struct {
	SandboxID string `json:"sandboxID"`
	PID       int    `json:"pid"`
}

func (c *container) info(f Flavor) map[string]string {
	switch f {
	case CRIDockerd:
		return verbose(dockerContainerInfo{SandboxID: c.sandbox.ID, PID: c.pid()})
	case CRIO:
		return verbose(crioContainerInfo{SandboxID: c.sandbox.ID, PID: c.pid(), RuntimeSpec: c.spec(f)})
	}
	return verbose(containerInfo{
		SandboxID:   c.sandbox.ID,
		PID:         c.pid(),
		SnapshotKey: c.ID,
		Snapshotter: "overlayfs",
		RuntimeType: "io.containerd.runc.v2",
		Config: &runtimev1.ContainerConfig{
			Metadata:    &runtimev1.ContainerMetadata{Name: c.Name, Attempt: c.Attempt},
			Image:       &runtimev1.ImageSpec{Image: c.Image},
			Labels:      c.Labels,
			Annotations: c.Annotations,
			LogPath:     c.Name + ".log",
			Linux: &runtimev1.LinuxContainerConfig{
				Resources:       c.resources(false),
				SecurityContext: &runtimev1.LinuxContainerSecurityContext{NamespaceOptions: hostNetwork()},
			},
		},
		RuntimeSpec: c.spec(f),
	})
}

func (s *sandbox) info(f Flavor) map[string]string {
	switch f {
	case CRIDockerd:
		return nil
	case CRIO:
		return verbose(crioSandboxInfo{Image: pauseImage, PID: s.pid(), RuntimeSpec: s.spec(f)})
	}
	processStatus := "running"
	if s.NotReady {
		processStatus = "deleted"
	}
	return verbose(sandboxInfo{
		PID:            s.pid(),
		ProcessStatus:  processStatus,
		Image:          pauseImage,
		SnapshotKey:    s.ID,
		Snapshotter:    "overlayfs",
		RuntimeHandler: s.RuntimeHandler,
		RuntimeType:    "io.containerd.runc.v2",
		RuntimeOptions: runcOptions{BinaryName: s.BinaryName},
		Config: &runtimev1.PodSandboxConfig{
			Metadata:     s.metadata(),
			LogDirectory: s.logDirectory(),
			Labels:       s.Labels,
			Annotations:  s.Annotations,
			Linux: &runtimev1.LinuxPodSandboxConfig{
				CgroupParent:    s.CgroupParent,
				SecurityContext: &runtimev1.LinuxSandboxSecurityContext{NamespaceOptions: hostNetwork()},
			},
		},
		RuntimeSpec: s.spec(f),
	})
}

// spec returns the sample's spec with the values of this container.
func (c *container) spec(f Flavor) *specs.Spec {
	var sample containerInfo
	mustUnmarshal(containerSample, &sample)
	spec := sample.RuntimeSpec
	for i := range spec.Mounts {
		spec.Mounts[i].Source = strings.ReplaceAll(spec.Mounts[i].Source, sample.SandboxID, c.sandbox.ID)
	}
	for i := range spec.Linux.Namespaces {
		if kind := spec.Linux.Namespaces[i].Type; spec.Linux.Namespaces[i].Path != "" {
			spec.Linux.Namespaces[i].Path = fmt.Sprintf("/proc/%d/ns/%s", c.sandbox.PID, namespaceFile(kind))
		}
	}
	spec.Annotations = map[string]string{
		"io.kubernetes.cri.container-name":    c.Name,
		"io.kubernetes.cri.container-type":    "container",
		"io.kubernetes.cri.image-name":        c.Image,
		"io.kubernetes.cri.sandbox-id":        c.sandbox.ID,
		"io.kubernetes.cri.sandbox-name":      c.sandbox.Name,
		"io.kubernetes.cri.sandbox-namespace": c.sandbox.Namespace,
		"io.kubernetes.cri.sandbox-uid":       c.sandbox.UID,
	}
	spec.Process.OOMScoreAdj, spec.Linux.Resources.Memory, spec.Linux.Resources.CPU = c.limits()
	spec.Linux.CgroupsPath = c.CgroupsPath
	if spec.Linux.CgroupsPath == "" {
		spec.Linux.CgroupsPath = f.cgroupsPath(c.sandbox.CgroupParent, c.ID)
	}
	return spec
}

// limits returns the values that containerd derives from a container's resources:
// empty if nothing is limited, nil if no resources were given.
func (c *container) limits() (*int, *specs.LinuxMemory, *specs.LinuxCPU) {
	if c.NoResources {
		return nil, nil, nil
	}
	memory, cpu := &specs.LinuxMemory{}, &specs.LinuxCPU{}
	if c.MemoryLimit != 0 {
		memory.Limit, memory.Swap = new(c.MemoryLimit), new(c.MemoryLimit)
	}
	if c.CPUShares != 0 {
		cpu.Shares = new(c.CPUShares)
	}
	if c.CPUQuota != 0 {
		cpu.Quota, cpu.Period = new(c.CPUQuota), new(uint64(cpuPeriod))
	}
	return new(c.OOMScoreAdj), memory, cpu
}

func (s *sandbox) spec(f Flavor) *specs.Spec {
	var sample sandboxInfo
	mustUnmarshal(sandboxSample, &sample)
	spec := sample.RuntimeSpec
	for i := range spec.Mounts {
		spec.Mounts[i].Source = strings.ReplaceAll(spec.Mounts[i].Source, sample.SnapshotKey, s.ID)
	}
	spec.Annotations = map[string]string{
		"io.kubernetes.cri.container-type":        "sandbox",
		"io.kubernetes.cri.sandbox-id":            s.ID,
		"io.kubernetes.cri.sandbox-log-directory": s.logDirectory(),
		"io.kubernetes.cri.sandbox-name":          s.Name,
		"io.kubernetes.cri.sandbox-namespace":     s.Namespace,
		"io.kubernetes.cri.sandbox-uid":           s.UID,
	}
	if f == CRIO {
		spec.Annotations["io.kubernetes.cri-o.CgroupParent"] = s.CgroupParent
	}
	spec.Linux.CgroupsPath = f.cgroupsPath(s.CgroupParent, s.ID)
	return spec
}

func hostNetwork() *runtimev1.NamespaceOption {
	return &runtimev1.NamespaceOption{Network: runtimev1.NamespaceMode_NODE}
}

// namespaceFile returns the name of a namespace under /proc/PID/ns.
func namespaceFile(kind specs.LinuxNamespaceType) string {
	if kind == specs.NetworkNamespace {
		return "net"
	}
	return string(kind)
}

// verbose encodes v with encoding/json, as both runtimes do.
func verbose(v any) map[string]string {
	b, err := json.Marshal(v)
	if err != nil {
		panic("critest: " + err.Error())
	}
	return map[string]string{"info": string(b)}
}

func mustUnmarshal(b []byte, v any) {
	if err := json.Unmarshal(b, v); err != nil {
		panic("critest: " + err.Error())
	}
}
