package native_test

import (
	"fmt"
	"testing"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/tests/node"
)

// TestForkBomb: processes that take memory and start others that do the same, as many as pids.max allows: whoever kills
// some of them makes room for new ones. All of them end, and nobody else.
func TestForkBomb(t *testing.T) {
	n := startNode(t, gibibyte)
	calm := runPod(t, n, node.PodSpec{Name: "calm", Containers: one(holding(100 * mebibyte))}).uses(100 * mebibyte)
	hog := runPod(t, n, node.PodSpec{
		Name: "hog", PIDLimit: 400, Containers: one([]string{"bomb", "-delay", "1h", "-bytes", fmt.Sprint(16 * mebibyte)}),
	})
	d := startDaemon(t, n, below("512Mi"), calm, hog)
	hog.press()
	hog.mustDie()
	d.victims(hog)
	mustLive(t, calm)
	if t.Failed() {
		s, _ := d.status()
		t.Fatalf("records: %+v", s.Records)
	}
	rec := d.ended(hog)
	plausible(t, &rec, hog)
	if rec.Result != evict.ResultKilled || rec.Processes < 4 {
		t.Errorf("record of the hog: result %s, %d processes; want killed, at least 4", rec.Result, rec.Processes)
	}
	t.Logf("%d processes, the last gone %v after the signal", rec.Processes, rec.LastGone.Sub(rec.SignalSent))
}
