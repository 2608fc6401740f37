package cgroup

import (
	"errors"
	"fmt"
	"path"
	"strings"
)

// PodPath returns the cgroup that the kubelet made for the pod with a UID: the parent of
// the cgroups of its containers. It fails if they have no common parent, and unless
// [IsPod] holds for the parent.
func PodPath(uid string, containers []string) (string, error) {
	if len(containers) == 0 {
		return "", errors.New("find cgroup of pod: no container")
	}
	parent := ""
	for _, name := range containers {
		name, err := clean(name)
		if err != nil {
			return "", fmt.Errorf("find cgroup of pod: %w", err)
		}
		if parent != "" && path.Dir(name) != parent {
			return "", fmt.Errorf("find cgroup of pod: cgroup %s is not below %s like the first container's", name, parent)
		}
		parent = path.Dir(name)
	}
	if !IsPod(parent, uid) {
		return "", fmt.Errorf("find cgroup of pod: cgroup %s is not named as the kubelet names that of pod %q", parent, uid)
	}
	return parent, nil
}

// IsPod reports whether a clean path has the name that the kubelet, with either driver,
// gives to the cgroup of the pod with a UID (pkg/kubelet/cm/pod_container_manager_linux.go:
// GetPodContainerName; cgroup_manager_linux.go: ToSystemd):
//
//	/kubepods/burstable/pod8f2a-11         /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod8f2a_11.slice
//	/kubepods/pod8f2a-11                   /kubepods.slice/kubepods-pod8f2a_11.slice
//
// The kubelet's cgroupRoot may precede both. IsPod returns false for the cgroup of a
// container, of a QoS class and of all pods.
func IsPod(name, uid string) bool {
	if uid == "" || strings.ContainsAny(uid, "/\x00") || !strings.HasPrefix(name, "/") || path.Clean(name) != name {
		return false
	}
	parent, base := path.Split(name)
	parent = path.Clean(parent)
	if slice, ok := strings.CutSuffix(base, ".slice"); ok {
		above, ok := strings.CutSuffix(slice, "-pod"+strings.ReplaceAll(uid, "-", "_"))
		// systemd nests a slice in that of its name without the last part.
		return ok && path.Base(parent) == above+".slice" && isPodsParent(strings.Split(above, "-"))
	}
	return base == "pod"+uid && isPodsParent(strings.Split(parent, "/"))
}

// isPodsParent reports whether the parts of a name end in kubepods, or in kubepods and a
// QoS class with a cgroup of its own: the pods' parents.
func isPodsParent(parts []string) bool {
	n := len(parts)
	switch parts[n-1] {
	case "kubepods":
		return true
	case "burstable", "besteffort":
		return n > 1 && parts[n-2] == "kubepods"
	}
	return false
}
