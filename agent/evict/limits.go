package evict

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/resource"
)

// The causes of evictions over a pod's own limits on local storage, in the
// place of a signal's name.
const (
	CauseEmptyDirLimit  = "emptydirfs.limit"
	CausePodLimit       = "ephemeralpodfs.limit"
	CauseContainerLimit = "ephemeralcontainerfs.limit"
)

// overLimit returns whether the pod uses more local storage than it may: an
// emptyDir's size, then the pod's limit, then a container's, the first that is
// exceeded (pkg/kubelet/eviction/eviction_manager.go). As the kubelet does, it
// counts a container's writable layer against the container's limit only where
// that layer shares the node's filesystem with everything else; unlike older
// kubelets it looks at sidecars too.
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
	if used := p.ephemeral(); !p.withinOneLimit(used) {
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

// Limited reports whether the pod, or a part of it, has a limit on local storage.
func (p *Pod) Limited() bool {
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

// ephemeral sums what ends with the pod: what it has on local disks without the
// node's own directories, which eviction does not empty
// (pkg/volume/util: IsLocalEphemeralVolume).
func (p *Pod) ephemeral() int64 {
	used := p.disk(partRootfs|partLogs, false)
	for i := range p.Volumes {
		if v := &p.Volumes[i]; v.Local() && v.Type != HostPath {
			used = saturatingAdd(used, v.Used)
		}
	}
	return used
}

// withinOneLimit reports whether the limit of one container alone covers what
// the pod uses. The pod's is never less, so that this clears most pods without
// summing quantities, which allocates.
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
