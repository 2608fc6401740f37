package evict

import "fmt"

// ConfigSource is the annotation by which a kubelet marks every pod that it makes,
// over whatever the pod's author wrote there: api, file or http
// (pkg/kubelet/types/pod_update.go).
const ConfigSource = "kubernetes.io/config.source"

// Kubelet is what is known of a kubelet on this node. The inventory finds it out with
// each list of the pods; every rule on whose the node and its pods are goes by it.
type Kubelet struct {
	// Known is false before the pods have been listed.
	Known bool
	// Absent is the declaration that no kubelet runs here: what one has left behind is
	// evictd's.
	Absent bool
	// Pods tells that there is a sandbox, dead or alive, that a kubelet made.
	Pods bool
	// Process describes a kubelet's process that was there when the pods were listed,
	// or a minute before, or says why that can't be told; "" is none.
	Process string
}

// MadeByKubelet reports whether a kubelet made the sandbox with these annotations.
func MadeByKubelet(annotations map[string]string) bool {
	_, made := annotations[ConfigSource]
	return made
}

// Owns reports whether the sandbox with these annotations is a kubelet's, so that
// evictd must not stop or remove it.
func (k Kubelet) Owns(annotations map[string]string) bool {
	return MadeByKubelet(annotations) && !k.Absent
}

// KubeletProcess is a kubelet that runs, or has run.
type KubeletProcess struct {
	PID int `json:"pid"`
	// Executable is the file that it runs, or the name that it goes by where that
	// can't be read.
	Executable string `json:"executable"`
	// Start is when it began, in clock ticks since boot; 0 is not known.
	Start uint64 `json:"start"`
}

func (k KubeletProcess) String() string {
	return fmt.Sprintf("kubelet %s (pid %d)", k.Executable, k.PID)
}
