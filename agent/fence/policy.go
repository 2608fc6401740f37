package fence

// Policy bounds what happens to the cluster at once. It is cluster-wide: ConfigMap cluster-fence-config.
type Policy struct {
	// Enforce is false in dry run, the default.
	Enforce bool
	// Percentage of the nodes that may be unhealthy, rounded down to a number of nodes.
	Percentage int32
	// MaxConcurrent is the number of fences that act at the same time.
	MaxConcurrent int32
	// AppliesTo says which nodes are fenced.
	AppliesTo Scope
	Timings   Timings
}

// Scope says which nodes are fenced.
type Scope string

// The scopes.
const (
	StatefulSets Scope = "statefulsets" // nodes with a pod of a StatefulSet
	Volumes      Scope = "volumes"      // nodes with a VolumeAttachment, too
	All          Scope = "all"
)
