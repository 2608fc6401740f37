package node

import (
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// NoCgroupParent, as a PodSpec's CgroupParent, sends the runtime no cgroup parent. It then creates a cgroup per
// container outside of the node's private root.
const NoCgroupParent = "none"

// PodSpec is a pod to run. Only Name and one container are required.
type PodSpec struct {
	Name string
	// Namespace is "default" if empty; UID is random if empty.
	Namespace, UID string
	// Labels and Annotations are added to those that a kubelet writes.
	Labels, Annotations map[string]string
	// QoS determines the cgroup and oom_score_adj; "" derives it from the containers' memory as the kubelet does.
	QoS QoS
	// CgroupParent is a cgroup below CgroupRoot, created if it does not exist; "" is the kubelet's location for
	// the pod; NoCgroupParent sends none. A container that is not below Kubepods needs a MemoryLimit, because
	// nothing else limits it.
	CgroupParent string
	// PIDLimit is the limit of the pod's cgroup; 0 is 1024, which contains a fork bomb. Without a cgroup parent
	// there is no limit.
	PIDLimit int64
	// TerminationGracePeriod, in whole seconds; 0 is 30 s.
	TerminationGracePeriod time.Duration
	// HostPID runs the containers in the host's PID namespace, so that the exit of a container's first process
	// does not kill its other processes.
	HostPID bool
	// ShmBytes is the size of /dev/shm; 0 is containerd's 64 MiB.
	ShmBytes   int64
	Containers []ContainerSpec
}

// ContainerSpec is a container to run.
type ContainerSpec struct {
	// Name is "main" if empty.
	Name string
	// Image is HogImage if empty. Another image must have been imported, and needs Command.
	Image   string
	Command []string
	// Args are the arguments of the hog: {"hold", "-bytes", "1048576"}. The default is {"pause"}.
	Args []string
	// MemoryRequest and MemoryLimit in bytes; 0 is none. As in Kubernetes, the request defaults to the limit.
	MemoryRequest, MemoryLimit int64
	// OOMScoreAdj overrides the kubelet's formula.
	OOMScoreAdj *int64
	// RunAsUser is the numeric user; 0 is root.
	RunAsUser   int64
	Annotations map[string]string
	Mounts      []Mount
}

// Mount is a bind mount of a host directory or file into a container.
type Mount struct {
	Host, Container string
	ReadOnly        bool
}

// setDefaults sets the defaults of empty fields. It fails for an incomplete or invalid spec.
func (s *PodSpec) setDefaults() error {
	if s.Name == "" {
		return errors.New("no name given")
	}
	if len(s.Containers) == 0 {
		return errors.New("no container given")
	}
	if s.Namespace == "" {
		s.Namespace = "default"
	}
	if s.UID == "" {
		s.UID = newUID()
	}
	if s.PIDLimit == 0 {
		s.PIDLimit = 1024
	}
	if s.TerminationGracePeriod == 0 {
		s.TerminationGracePeriod = 30 * time.Second
	}
	s.Containers = slices.Clone(s.Containers) // don't change the caller's
	for i := range s.Containers {
		c := &s.Containers[i]
		if c.Name == "" {
			c.Name = "main"
		}
		if c.Image == "" {
			c.Image = HogImage
		}
		if len(c.Args) == 0 && c.Image == HogImage {
			c.Args = []string{"pause"}
		}
		if c.MemoryRequest == 0 {
			c.MemoryRequest = c.MemoryLimit
		}
	}
	switch s.QoS {
	case Guaranteed, Burstable, BestEffort:
	case "":
		s.QoS = s.derivedQoS()
	default:
		return fmt.Errorf("%q is not a QoS class", s.QoS)
	}
	return nil
}

func (s *PodSpec) derivedQoS() QoS {
	guaranteed, bestEffort := true, true
	for _, c := range s.Containers {
		guaranteed = guaranteed && c.MemoryLimit > 0 && c.MemoryRequest == c.MemoryLimit
		bestEffort = bestEffort && c.MemoryRequest == 0
	}
	switch {
	case guaranteed:
		return Guaranteed
	case bestEffort:
		return BestEffort
	}
	return Burstable
}

// memoryLimit returns the pod's memory limit. A pod has one if all of its containers have one.
func (s *PodSpec) memoryLimit() (limit int64, ok bool) {
	for _, c := range s.Containers {
		if c.MemoryLimit == 0 {
			return 0, false
		}
		limit += c.MemoryLimit
	}
	return limit, true
}

// namespaces returns the kubelet's default namespaces, but with the host's network.
func (s *PodSpec) namespaces() *cri.NamespaceOption {
	pid := cri.NamespaceMode_CONTAINER
	if s.HostPID {
		pid = cri.NamespaceMode_NODE
	}
	return &cri.NamespaceOption{Network: cri.NamespaceMode_NODE, Pid: pid, Ipc: cri.NamespaceMode_POD}
}

// newUID returns a random UUID for a pod.
func newUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
