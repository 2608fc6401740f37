package fence

import (
	"fmt"
	"time"
)

// Policy bounds what happens to the cluster at once. It is cluster-wide: ConfigMap cluster-fence-config.
type Policy struct {
	// Enforce is false in dry run, the default.
	Enforce bool
	// Percentage of the nodes that may be unhealthy, rounded down to a number of nodes: in the cluster, and in each zone.
	Percentage int32
	// MaxUnhealthy is the number of nodes that may be unhealthy, in place of Percentage; nil if it is not set.
	MaxUnhealthy *int32
	// MaxConcurrent is the number of fences that act at the same time.
	MaxConcurrent int32
	// Rate is the time in which one fence may begin, and Burst the number of those that may begin at once. With 0 no
	// fence begins.
	Rate  time.Duration
	Burst int32
	// Cooldown is how long the number of unhealthy nodes must be allowed again after it was not.
	Cooldown time.Duration
	// AppliesTo says which nodes are fenced.
	AppliesTo Scope
	Timings   Timings
}

// allowed returns how many of the nodes may be unhealthy.
func (p Policy) allowed(nodes int) int {
	if p.MaxUnhealthy != nil {
		return int(*p.MaxUnhealthy)
	}
	return nodes * int(max(p.Percentage, 0)) / 100
}

// limit describes what is allowed.
func (p Policy) limit(nodes int) string {
	if p.MaxUnhealthy != nil {
		return fmt.Sprintf("max_unhealthy allows %d", *p.MaxUnhealthy)
	}
	return fmt.Sprintf("%d %% allow %d", p.Percentage, p.allowed(nodes))
}

// Scope says which nodes are fenced.
type Scope string

// The scopes.
const (
	StatefulSets Scope = "statefulsets" // nodes with a pod of a StatefulSet
	Volumes      Scope = "volumes"      // nodes with a VolumeAttachment, too
	All          Scope = "all"
)
