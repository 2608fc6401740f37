// Package proactive reclaims memory of pods proactively, while a soft threshold is
// crossed and its grace period runs. It writes memory.reclaim of the pods' cgroups:
// the kernel then drops file cache that counts as used, and swaps out anonymous
// memory if there is swap. Memory that is reclaimed need not be evicted.
//
// It reclaims from the pods that would be evicted first, one after the other, from
// each for half a minute at most and then not for ten minutes: a pod reads in again
// what it needs, and a second reclaim would only slow it down and delay its eviction.
// It reclaims in small steps, so that it stops as soon as there is enough memory, or
// a hard threshold is crossed. It never delays a hard eviction, which is decided and
// carried out elsewhere.
package proactive
