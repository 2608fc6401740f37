package pods

import (
	"strings"

	"github.com/evictd/evictd/agent/evict"
)

// holds begins what is said of a pod that holds a process which must live.
const holds = "holds "

// Vital reports whether a pod holds a process that must live: evictd's own, the
// runtime's, a kubelet's. Such a pod is spared even where others are not.
func Vital(p *evict.Pod) bool { return strings.HasPrefix(p.Spared, holds) }
