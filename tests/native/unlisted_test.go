package native_test

import (
	"testing"

	"github.com/evictd/evictd/tests/node"
)

// TestUnlistedPod: a hog that was created since the last list is evicted, and no listed pod instead of it.
func TestUnlistedPod(t *testing.T) {
	n := startNode(t, gibibyte)
	other := runPod(t, n, node.PodSpec{Name: "other", Containers: oneContainer(holdArgs(64 * mebibyte))}).waitUsage(64 * mebibyte)
	d := startDaemon(t, n, hardThreshold("512Mi"), other)
	hog := runPod(t, n, node.PodSpec{Name: "hog", Containers: oneContainer(holdArgs(600 * mebibyte))})
	hog.mustDie()
	d.checkVictims(hog)
	mustLive(t, other)
}
