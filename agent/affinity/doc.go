// Package affinity decides which pods no longer fit their node, and when they are evicted for it: node affinity that
// is enforced during execution, not only during scheduling.
//
// A pod carries the requirement in [Annotation]. [NewRequirement] parses it and adds what Kubernetes enforces at
// scheduling; [Requirement.Match] compares it with a Node; [Step] decides on evictions: the state, what was observed
// and the time in, new state and orders out. The package does no I/O, reads no clock, starts no goroutine and imports
// no other package of evictd. agent/controller observes, and carries the orders out by the eviction API.
//
// What holds everywhere:
//
//   - Terms have the meaning that Kubernetes gives them: a null term, an empty term and an empty list match no node. The
//     matching itself is that of k8s.io/component-helpers.
//   - nodeSelector, requiredDuringSchedulingIgnoredDuringExecution and the annotation are ANDed.
//   - An annotation that does not parse is no violation, nor is one that is absent or could not be read.
//   - Nothing is decided on a difference of interpretation, and no state outlives the process: after a restart the
//     debounce begins again.
package affinity

// Annotation is the annotation of a pod with the node selector that is enforced during execution, as JSON or YAML: a
// NodeSelector in the spelling of the Kubernetes API.
const Annotation = "evictd.io/required-during-execution"

// AnnotationEvictBare is "true" on a pod without a controller that may be evicted all the same.
const AnnotationEvictBare = "evictd.io/evict-bare"
