package evict

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/resource"
)

// The causes of evictions of pods that exceed their own local-storage limits. They are
// used instead of a signal's name.
const (
	CauseEmptyDirLimit  = "emptydirfs.limit"
	CausePodLimit       = "ephemeralpodfs.limit"
	CauseContainerLimit = "ephemeralcontainerfs.limit"
)

// overLimit returns the cause and message of the first local-storage limit that the pod
// exceeds: the size of an emptyDir, then the pod's limit, then a container's
// (pkg/kubelet/eviction/eviction_manager.go); cause "" if there is none. Like the
// kubelet, it counts a container's writable layer against the container's limit only if
// everything is on one filesystem. Unlike older kubelets, it checks sidecars too.
func (p *Pod) overLimit(l Layout) (cause, message string) {
	if !p.HasStats || p.DiskUnknown {
		return "", ""
	}
	for i := range p.Volumes {
		v := &p.Volumes[i]
		if v.Type == EmptyDir && v.SizeLimit != nil && v.SizeLimit.Sign() > 0 && exceeds(v.Used, v.SizeLimit) {
			return CauseEmptyDirLimit, fmt.Sprintf("Usage of EmptyDir volume %q exceeds the limit %q. ", v.Name, v.SizeLimit)
		}
	}
	if used := p.ephemeralUsage(); !p.withinOneLimit(used) {
		if limit := p.storageLimit(); limit != nil && exceeds(used, limit) {
			return CausePodLimit, fmt.Sprintf("Pod ephemeral local storage usage exceeds the total limit of containers %s. ", limit)
		}
	}
	for i := range p.Containers {
		if cause, message := p.Containers[i].overLimit(l); cause != "" {
			return cause, message
		}
	}
	for i := range p.InitContainers {
		if c := &p.InitContainers[i]; c.Sidecar {
			if cause, message := c.overLimit(l); cause != "" {
				return cause, message
			}
		}
	}
	return "", ""
}

// HasStorageLimit reports whether the pod, a container or a volume of it has a local-storage
// limit.
func (p *Pod) HasStorageLimit() bool {
	for i := range p.Volumes {
		if p.Volumes[i].SizeLimit != nil {
			return true
		}
	}
	for _, cs := range [][]Container{p.Containers, p.InitContainers} {
		for i := range cs {
			if cs[i].Resources.Limits.EphemeralStorage != nil {
				return true
			}
		}
	}
	return false
}

// ephemeralUsage returns the pod's usage of local disks that is removed with the pod.
// That excludes the node's own directories (pkg/volume/util: IsLocalEphemeralVolume).
func (p *Pod) ephemeralUsage() int64 {
	used := p.disk(partRootfs|partLogs, false)
	for i := range p.Volumes {
		if v := &p.Volumes[i]; v.Local() && v.Type != HostPath {
			used = saturatingAdd(used, v.Used)
		}
	}
	return used
}

// withinOneLimit reports whether the limit of one container covers the usage of the
// whole pod. The pod's limit is at least as large, so most pods need no sum of
// quantities, which would allocate.
func (p *Pod) withinOneLimit(used int64) bool {
	for _, cs := range [][]Container{p.Containers, p.InitContainers} {
		for i := range cs {
			if limit := cs[i].Resources.Limits.EphemeralStorage; limit != nil && !exceeds(used, limit) {
				return true
			}
		}
	}
	return false
}

// overLimit is Pod.overLimit for the container's own limit.
func (c *Container) overLimit(l Layout) (cause, message string) {
	limit := c.Resources.Limits.EphemeralStorage
	if limit == nil || limit.IsZero() {
		return "", ""
	}
	used := c.Usage.Logs
	if l == SingleFs {
		used = saturatingAdd(used, c.Usage.Rootfs)
	}
	if !exceeds(used, limit) {
		return "", ""
	}
	return CauseContainerLimit, fmt.Sprintf("Container %s exceeded its local ephemeral storage limit %q. ", c.Name, limit)
}

func exceeds(used int64, limit *resource.Quantity) bool { return limit.CmpInt64(used) < 0 }
