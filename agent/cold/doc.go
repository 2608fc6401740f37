// Package cold has the kernel take back memory of pods that nobody has used
// lately, where a soft threshold is met and its grace period runs: file cache that
// counts as used, and anonymous memory where there is swap. What comes back so
// need not be evicted.
//
// It asks the pods that would be evicted first, in turn, each for half a minute at
// most and then not for ten: what a pod needs it reads in again, and to take it away
// a second time would only slow the pod down and put its eviction off. It asks for a
// little at a time, so that it stops as soon as there is enough, or something that
// matters more: it never holds up a hard eviction, which is decided and carried out
// elsewhere.
package cold
