package native_test

import (
	"testing"

	"github.com/evictd/evictd/tests/node"
)

// A pod that has come since the last list is not in the ranking: nobody else dies
// in its place.
func TestNewcomer(t *testing.T) {
	n := startNode(t, gibibyte)
	other := runPod(t, n, node.PodSpec{Name: "other", Containers: one(holding(64 * mebibyte))}).uses(64 * mebibyte)
	d := startDaemon(t, n, below("512Mi"), other)
	hog := runPod(t, n, node.PodSpec{Name: "hog", Containers: one(holding(600 * mebibyte))})
	hog.mustDie()
	d.victims(hog)
	mustLive(t, other)
}
