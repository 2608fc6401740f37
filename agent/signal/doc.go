// Package signal is the vocabulary of node pressure: the nine eviction
// signals, thresholds on them with the identity of each ([Mark]), and what was
// observed of them.
//
// It is pure arithmetic on values: nothing here reads a file or a clock, and
// nothing here knows a pod. Names, resources, conditions and number formats are
// the kubelet's (pkg/kubelet/eviction/api/types.go and helpers.go).
package signal
