package evict

import (
	"k8s.io/apimachinery/pkg/api/resource"
)

// Pod is a pod as the decision sees it: who it is, what it asked for and what
// it uses now. It holds no handle to anything that runs.
type Pod struct {
	UID       string
	Namespace string
	Name      string
	Labels    map[string]string

	// Priority ranks pods; nil is unset and ranks as 0.
	Priority          *int32
	PriorityClassName string
	// Static and Mirror mark the pods that a kubelet runs from files, and
	// their images in the API.
	Static bool
	Mirror bool
	// DaemonSet tells that a DaemonSet owns the pod.
	DaemonSet bool
	// Kubelet tells that a kubelet made the pod, which may bring it back.
	Kubelet bool
	// Spared says why whoever lists the pod wants it left alone; empty where
	// nothing speaks against it.
	Spared string

	// TerminationGraceSeconds is the pod's own grace period; nil is unset.
	TerminationGraceSeconds *int64
	Tolerations             []Toleration

	// QoS is the pod's class where its source states it; empty makes
	// QoSClass compute it from the resources.
	QoS QoS
	// Resources are those of the pod as a whole, as opposed to the
	// containers'.
	Resources Resources
	Overhead  Amounts

	Containers          []Container
	InitContainers      []Container
	EphemeralContainers []Container
	Volumes             []Volume

	// LastStart is when the youngest of the pod's containers was created, in
	// nanoseconds since the epoch; 0 is not known. It tells a pod that was
	// brought back from one that never left.
	LastStart int64

	// HasStats tells that Usage was measured.
	HasStats bool
	Usage    PodUsage
	// DiskUnknown tells that nothing of the pod's disk usage was measured. For a
	// disk signal it then ranks as a pod without statistics, and its limits on
	// local storage are not enforced. A pod that was measured in part counts with
	// that part: it uses at least as much.
	DiskUnknown bool
}

// Key returns namespace/name.
func (p *Pod) Key() string { return p.Namespace + "/" + p.Name }

// Container is one container of a pod.
type Container struct {
	Name      string
	Resources Resources
	// MemoryRequestText replaces the memory request in messages where it was
	// deduced, so that no message names an amount that the pod does not state.
	MemoryRequestText string
	// Sidecar marks an init container that is restarted always.
	Sidecar bool
	Usage   ContainerUsage
}

// Amounts are quantities of the resources that matter here; nil is absent,
// which is not 0.
type Amounts struct {
	CPU              *resource.Quantity
	Memory           *resource.Quantity
	EphemeralStorage *resource.Quantity
}

// Resources are what a container or a pod asked for.
type Resources struct {
	Requests Amounts
	Limits   Amounts
}

// PodUsage is what a pod uses as a whole.
type PodUsage struct {
	// Memory is the working set in bytes.
	Memory int64
	// Freeable is how much of it a kill gives back at once, in bytes: the
	// resident anonymous memory.
	Freeable int64
	// PIDs is the number of tasks.
	PIDs int64
}

// ContainerUsage is what one container uses.
type ContainerUsage struct {
	Memory      int64 // working set, bytes
	Rootfs      int64 // writable layer, bytes
	Logs        int64 // bytes
	Inodes      int64 // of the writable layer
	LogsInodes  int64
	ImagesBytes int64 // of images that only this container uses
}

// VolumeType names the source of a volume, in the API's spelling.
type VolumeType string

// The volume types that count as a pod's local storage. Others may be listed
// and count nothing.
const (
	EmptyDir  VolumeType = "emptyDir"
	HostPath  VolumeType = "hostPath"
	ConfigMap VolumeType = "configMap"
	GitRepo   VolumeType = "gitRepo"
)

// Volume is a volume of a pod, with what it holds now.
type Volume struct {
	Name string
	Type VolumeType
	// Medium is an emptyDir's; empty is the node's disk.
	Medium string
	// SizeLimit is an emptyDir's; nil is none.
	SizeLimit *resource.Quantity
	Used      int64 // bytes
	Inodes    int64
}

// Local reports whether the volume's bytes lie on the node's own filesystem
// and count as the pod's.
func (v Volume) Local() bool {
	switch v.Type {
	case EmptyDir:
		return v.Medium == ""
	case HostPath, ConfigMap, GitRepo:
		return true
	}
	return false
}

// Toleration is a pod's toleration of a taint, as in core/v1.
type Toleration struct {
	Key      string
	Operator string // Exists, or Equal where empty
	Value    string
	Effect   string
}
