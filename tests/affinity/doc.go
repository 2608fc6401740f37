// Package affinity tests the eviction of pods that violate their node affinity end to end. The control plane and
// evictd-controller are real. The test writes what the kubelets of its nodes would write.
package affinity
