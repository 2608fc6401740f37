package evict

import (
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Pod is a pod as the decision uses it: its identity, its requests and its current
// usage. It has no reference to processes or cgroups.
type Pod struct {
	UID       string
	Namespace string
	Name      string
	Labels    map[string]string
	// RuntimeLabels are the labels that the container runtime was given, if Labels are
	// newer ones from another source. A pod is exempt by either.
	RuntimeLabels map[string]string

	// Priority is the pod's priority; nil means unset and ranks as 0.
	Priority          *int32
	PriorityClassName string
	// Static is set for a pod that a kubelet runs from a file, Mirror for such a pod's
	// object in the API.
	Static bool
	Mirror bool
	// DaemonSet is set if a DaemonSet owns the pod.
	DaemonSet bool
	// Kubelet is set if a kubelet created the pod. It may start the pod again.
	Kubelet bool
	// ProtectedReason is why the source of the pod exempts it from eviction; empty if it does
	// not.
	ProtectedReason string
	// Unreportable is why the eviction of this pod of a kubelet can't be reported to the API
	// server; empty if it can, or if there is no source of facts about pods at all.
	Unreportable string
	// Essential is set if a container of the pod contains a process that the node needs: evictd,
	// the runtime, a kubelet. A shutdown does not stop such a pod either, though it stops others
	// that are protected.
	Essential bool

	// Ending is set if the pod ends without evictd: it is being deleted, or it has ended or is no
	// longer there according to the API server while its containers run. EndsBy is when its grace
	// period ends; zero if that is not known.
	Ending bool
	EndsBy time.Time
	// Arrived is when the pod came to this node; zero if unknown.
	Arrived time.Time

	// TerminationGraceSeconds is the pod's own grace period; nil means unset.
	TerminationGraceSeconds *int64
	Tolerations             []Toleration

	// QoS is the pod's class if its source states it. If it is empty, QoSClass computes
	// it from the resources.
	QoS QoS
	// Resources are the pod-level resources.
	Resources Resources
	// SummedRequests is set if Resources.Requests are the requests of the whole pod, overhead
	// and ephemeral storage included, and those of its containers are not known.
	SummedRequests bool
	Overhead       Amounts

	Containers          []Container
	InitContainers      []Container
	EphemeralContainers []Container
	Volumes             []Volume

	// LastStart is when the newest of the pod's containers was created, in nanoseconds
	// since the epoch; 0 if unknown. It distinguishes a pod that was started again from
	// one that never stopped.
	LastStart int64

	// HasStats is set if Usage was measured.
	HasStats bool
	Usage    PodUsage
	// DiskUnknown is set if none of the pod's disk usage was measured. For a disk
	// signal the pod then ranks as one without statistics, and its local-storage limits
	// are not enforced. A pod that was measured in part counts with that part, because
	// it uses at least as much.
	DiskUnknown bool
}

// Key returns namespace/name.
func (p *Pod) Key() string { return p.Namespace + "/" + p.Name }

// Container is one container of a pod.
type Container struct {
	Name      string
	Resources Resources
	// MemoryRequestText replaces the memory request in messages if the request was
	// deduced, so that no message shows an amount that the pod does not specify.
	MemoryRequestText string
	// Sidecar is set for an init container with restartPolicy Always.
	Sidecar bool
	Usage   ContainerUsage
}

// Amounts are quantities of the resources that eviction uses. Nil means absent, which
// is not 0.
type Amounts struct {
	CPU              *resource.Quantity
	Memory           *resource.Quantity
	EphemeralStorage *resource.Quantity
}

// Resources are the requests and limits of a container or a pod.
type Resources struct {
	Requests Amounts
	Limits   Amounts
}

// PodUsage is the usage of a pod as a whole.
type PodUsage struct {
	// Memory is the working set in bytes.
	Memory int64
	// Freeable is the part of it that a kill frees at once, in bytes: the resident
	// anonymous memory.
	Freeable int64
	// PIDs is the number of tasks.
	PIDs int64
}

// ContainerUsage is the usage of one container.
type ContainerUsage struct {
	Memory      int64 // working set, bytes
	Rootfs      int64 // writable layer, bytes
	Logs        int64 // bytes
	Inodes      int64 // of the writable layer
	LogsInodes  int64
	ImagesBytes int64 // of images that only this container uses
}

// VolumeType is the kind of a volume's source, as it is written in the API.
type VolumeType string

// The volume types that count as a pod's local storage. Volumes of other types may be
// listed and are not counted.
const (
	EmptyDir  VolumeType = "emptyDir"
	HostPath  VolumeType = "hostPath"
	ConfigMap VolumeType = "configMap"
	GitRepo   VolumeType = "gitRepo"
)

// Volume is a volume of a pod and its usage.
type Volume struct {
	Name string
	Type VolumeType
	// Medium is the medium of an emptyDir; empty means the node's disk.
	Medium string
	// SizeLimit is the limit of an emptyDir; nil means none.
	SizeLimit *resource.Quantity
	Used      int64 // bytes
	Inodes    int64
}

// Local reports whether the volume is on the node's own filesystem and counts as the
// pod's local storage.
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
