package pods

import (
	"strings"

	"github.com/evictd/evictd/agent/evict"
)

// containsPrefix begins the reason that protects a pod with a guarded process.
const containsPrefix = "contains "

// Essential reports whether a pod contains a process that the node needs: evictd's own, the
// runtime's, a kubelet's. Such a pod is protected even where no other is.
func Essential(p *evict.Pod) bool { return strings.HasPrefix(p.ProtectedReason, containsPrefix) }
