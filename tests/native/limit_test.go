package native_test

import (
	"fmt"
	"testing"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/lanes"
	"github.com/evictd/evictd/tests/node"
)

// TestLimitRaises: all pods together reach their memory limit, which cgroup v2 counts in memory.events. The usage is
// file cache, which the kernel reclaims: evictd does not confirm the alarm and evicts no pod.
func TestLimitRaises(t *testing.T) {
	n := startNode(t, 256*mebibyte)
	bystander := runPod(t, n, node.PodSpec{Name: "bystander", Containers: oneContainer(holdArgs(32 * mebibyte))}).waitUsage(32 * mebibyte)
	d := startDaemon(t, n, hardThreshold("64Mi")+"\n"+onlyLane(lanes.Events, "auto"), bystander)
	d.laneIsUp(lanes.Events)
	before := d.lane(lanes.Events).Raised
	cache := runPod(t, n, node.PodSpec{Name: "cache", Containers: oneContainer([]string{"file", "-path", "/cache", "-bytes", fmt.Sprint(384 * mebibyte), "-passes", "0"})})
	d.waitStatus("alarm of the limit", func(s *control.Status) bool { return alarmsOf(s, lanes.Events) > before })
	if s := d.waitReadings(3); len(s.Records) > 0 {
		t.Errorf("records %+v; want none", s.Records)
	}
	mustLive(t, bystander, cache)
}
