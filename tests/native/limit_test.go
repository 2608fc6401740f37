package native_test

import (
	"fmt"
	"testing"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/lanes"
	"github.com/evictd/evictd/tests/node"
)

// TestLimitRaises: all pods together run into their limit, of which cgroup v2's counts tell at once. It is file cache
// that does it, which gives way: the alarm is not confirmed, and nobody dies.
func TestLimitRaises(t *testing.T) {
	n := startNode(t, 256*mebibyte)
	calm := runPod(t, n, node.PodSpec{Name: "calm", Containers: one(holding(32 * mebibyte))}).uses(32 * mebibyte)
	d := startDaemon(t, n, below("64Mi")+"\n"+onlyLane(lanes.Events, "auto"), calm)
	d.laneIsUp(lanes.Events)
	before := d.lane(lanes.Events).Raised
	cache := runPod(t, n, node.PodSpec{Name: "cache", Containers: one([]string{"file", "-path", "/cache", "-bytes", fmt.Sprint(384 * mebibyte), "-passes", "0"})})
	d.until("alarm of the limit", func(s *control.Status) bool { return raised(s, lanes.Events) > before })
	if s := d.looks(3); len(s.Records) > 0 {
		t.Errorf("records %+v; want none", s.Records)
	}
	mustLive(t, calm, cache)
}
