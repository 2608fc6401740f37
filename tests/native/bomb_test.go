package native_test

import (
	"fmt"
	"testing"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/tests/node"
)

// TestForkBomb: each process allocates memory and starts further processes, up to pids.max, so that killing only some
// of them makes room for new ones. All of them are killed, and no other pod.
func TestForkBomb(t *testing.T) {
	n := startNode(t, gibibyte)
	bystander := runPod(t, n, node.PodSpec{Name: "bystander", Containers: oneContainer(holdArgs(100 * mebibyte))}).waitUsage(100 * mebibyte)
	hog := runPod(t, n, node.PodSpec{
		Name: "hog", PIDLimit: 400, Containers: oneContainer([]string{"bomb", "-delay", "1h", "-bytes", fmt.Sprint(16 * mebibyte)}),
	})
	d := startDaemon(t, n, hardThreshold("512Mi"), bystander, hog)
	hog.grow()
	hog.mustDie()
	d.checkVictims(hog)
	mustLive(t, bystander)
	if t.Failed() {
		s, _ := d.status()
		t.Fatalf("records: %+v", s.Records)
	}
	rec := d.waitRecord(hog)
	checkRecord(t, &rec, hog)
	if rec.Result != evict.ResultKilled || rec.Processes < 4 {
		t.Errorf("record of the hog: result %s, %d processes; want killed, at least 4", rec.Result, rec.Processes)
	}
	t.Logf("%d processes, the last exited %v after the signal", rec.Processes, rec.LastGone.Sub(rec.SignalSent))
}
