package node

import (
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// NoCgroupParent, as a PodSpec's CgroupParent, gives the runtime none: it makes up a cgroup per container,
// outside of the kubelet's and of the node's.
const NoCgroupParent = "none"

// PodSpec is a pod to run. Only Name and a container are needed.
type PodSpec struct {
	Name string
	// Namespace is "default" if empty, UID is made up.
	Namespace, UID string
	// Labels and Annotations come on top of those that a kubelet writes.
	Labels, Annotations map[string]string
	// QoS decides on the cgroup and the OOM scores; "" derives it from the containers as the kubelet does,
	// from memory alone.
	QoS QoS
	// CgroupParent is below CgroupRoot, and made if it is not there; "" is where the kubelet would put the
	// pod. NoCgroupParent is none. A container that is not below Kubepods needs a MemoryLimit, as nothing
	// else bounds it.
	CgroupParent string
	// PIDLimit of the pod's cgroup; 0 is 1024, so that no fork bomb gets out of hand. Without a cgroup
	// parent there is no limit.
	PIDLimit int64
	// TerminationGracePeriod, in whole seconds; 0 is 30 s.
	TerminationGracePeriod time.Duration
	// HostPID runs the containers in the host's pid namespace, so that the death of one process is not
	// the death of all.
	HostPID bool
	// ShmBytes is the size of /dev/shm; 0 is containerd's 64 MiB.
	ShmBytes   int64
	Containers []ContainerSpec
}

// ContainerSpec is a container to run.
type ContainerSpec struct {
	// Name is "main" if empty.
	Name string
	// Args are the hog's: {"hold", "-bytes", "1048576"}. None is {"pause"}.
	Args []string
	// MemoryRequest and MemoryLimit in bytes; 0 is none. As in Kubernetes, a limit alone is a request too.
	MemoryRequest, MemoryLimit int64
	// OOMScoreAdj overrides the kubelet's formula.
	OOMScoreAdj *int64
	// RunAsUser is the numeric user; 0 is root.
	RunAsUser   int64
	Annotations map[string]string
	Mounts      []Mount
}

// Mount shows a directory or file of the host in a container.
type Mount struct {
	Host, Container string
	ReadOnly        bool
}

// complete fills in what was left out.
func (s *PodSpec) complete() error {
	if s.Name == "" {
		return errors.New("it has no name")
	}
	if len(s.Containers) == 0 {
		return errors.New("it has no container")
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
	s.Containers = slices.Clone(s.Containers) // the caller's stay as they are
	for i := range s.Containers {
		c := &s.Containers[i]
		if c.Name == "" {
			c.Name = "main"
		}
		if len(c.Args) == 0 {
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
		return fmt.Errorf("%q is no QoS class", s.QoS)
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

// memoryLimit is the pod's, which has one if all containers do.
func (s *PodSpec) memoryLimit() (limit int64, ok bool) {
	for _, c := range s.Containers {
		if c.MemoryLimit == 0 {
			return 0, false
		}
		limit += c.MemoryLimit
	}
	return limit, true
}

// namespaces are the kubelet's, with the host's network.
func (s *PodSpec) namespaces() *cri.NamespaceOption {
	pid := cri.NamespaceMode_CONTAINER
	if s.HostPID {
		pid = cri.NamespaceMode_NODE
	}
	return &cri.NamespaceOption{Network: cri.NamespaceMode_NODE, Pid: pid, Ipc: cri.NamespaceMode_POD}
}

// newUID makes up a pod's UID: a random UUID.
func newUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
