package evict

import "fmt"

// ConfigSourceAnnotation is the annotation that a kubelet sets on each pod that it creates (api,
// file or http). It overwrites any value from the pod's author
// (pkg/kubelet/types/pod_update.go).
const ConfigSourceAnnotation = "kubernetes.io/config.source"

// Kubelet is what is known about a kubelet on this node. The inventory updates it with
// each list of pods. All rules about the owner of the node and of its pods use it.
type Kubelet struct {
	// Known is false before the pods have been listed.
	Known bool
	// Absent is set if the configuration declares that no kubelet runs here. evictd
	// then owns the sandboxes that one left behind.
	Absent bool
	// HasSandboxes is set if there is a sandbox, running or not, that a kubelet created.
	HasSandboxes bool
	// Process describes a kubelet process that ran when the pods were listed or up to a
	// minute earlier, or says why this is unknown; "" if there was none.
	Process string
}

// ProtectedNamespace returns why a kubelet's pods in a namespace are exempt from eviction; "" if
// they are not.
func ProtectedNamespace(namespace string) string {
	if namespace == "kube-system" {
		return "a kubelet's pod in " + namespace
	}
	return ""
}

// MadeByKubelet reports whether a kubelet created the sandbox with these annotations.
func MadeByKubelet(annotations map[string]string) bool {
	_, made := annotations[ConfigSourceAnnotation]
	return made
}

// Owns reports whether the sandbox with these annotations belongs to a kubelet, so that
// evictd must not stop or remove it.
func (k Kubelet) Owns(annotations map[string]string) bool {
	return MadeByKubelet(annotations) && !k.Absent
}

// KubeletProcess is a kubelet process that runs or has run.
type KubeletProcess struct {
	PID int `json:"pid"`
	// Executable is the path of its executable, or its name if the path can't be read.
	Executable string `json:"executable"`
	// Start is its start time in clock ticks since boot; 0 if unknown.
	Start uint64 `json:"start"`
}

func (k KubeletProcess) String() string {
	return fmt.Sprintf("kubelet %s (pid %d)", k.Executable, k.PID)
}
