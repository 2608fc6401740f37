// Package signal defines the nine eviction signals, thresholds on them with the
// identity of each ([ThresholdID]), and observations of them.
//
// The package is pure arithmetic on values. It reads no file and no clock and does
// not know pods. Names, resources, conditions and number formats are the kubelet's
// (pkg/kubelet/eviction/api/types.go and helpers.go).
package signal
