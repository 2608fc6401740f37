package tasks

import (
	"sync"
	"time"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
)

// lookupInterval is how often the pods' cgroup is looked up: it moves only when the kubelet is
// configured again.
const lookupInterval = 10 * time.Second

// PodsCgroup returns a function for [Options], which finds the cgroup of all pods below
// cgroupRoot.
func PodsCgroup(h *cgroup.Hierarchy, cgroupRoot string) func() (tree kernel.FS, path string, ok bool) {
	tree := h.Memory // v2 has one tree for all
	if h.Version != cgroup.V2 {
		tree = h.Pids
	}
	var mu sync.Mutex
	var path string
	var lookedUp time.Time
	return func() (kernel.FS, string, bool) {
		mu.Lock()
		defer mu.Unlock()
		if lookedUp.IsZero() || time.Since(lookedUp) > lookupInterval {
			lookedUp, path = time.Now(), ""
			if found, ok, err := h.Kubepods(cgroupRoot); err == nil && ok {
				path = found.Path
			}
		}
		return tree, path, tree != "" && path != ""
	}
}
