package native_test

import (
	"fmt"
	"testing"

	"github.com/evictd/evictd/agent/lanes"
	"github.com/evictd/evictd/tests/node"
)

// TestReloadWhileGrowing: the threshold is changed repeatedly while a hog grows across it. The lanes stay armed during
// a reload, so the hog gets no further below the threshold than without reloads.
func TestReloadWhileGrowing(t *testing.T) {
	n := startNode(t, gibibyte)
	bystander := runPod(t, n, node.PodSpec{Name: "bystander", Containers: oneContainer(holdArgs(64 * mebibyte))}).waitUsage(64 * mebibyte)
	const rate = 200 * mebibyte
	d := startDaemon(t, n, hardThreshold("512Mi"), bystander)
	d.laneIsUp(lanes.BPF)
	for i := range 2 {
		hog := runPod(t, n, node.PodSpec{Name: fmt.Sprint("hog", i), Containers: oneContainer(growArgs(900*mebibyte, "-rate", fmt.Sprint(rate)))})
		d.waitPods(2)
		hog.grow()
		reloads := 0
		for ; hog.containersLive(); reloads++ {
			// The loop takes a reading with each reload; between two reloads only the lanes do.
			d.configure(hardThreshold(fmt.Sprint((512 - reloads%2) * mebibyte)))
			if s := d.reload(); s.Config.LastReloadError != "" {
				t.Fatalf("reload error = %q; want none", s.Config.LastReloadError)
			}
		}
		hog.mustDie()
		rec := d.waitRecord(hog)
		checkKilled(t, &rec, hog)
		t.Logf("%d reloads; raised by %s, %s; %d KiB below the threshold", reloads, rec.Lane, rec.Confirm, rec.Overshoot>>10)
		if reloads < 10 {
			t.Errorf("%d reloads while the hog grew; want at least 10", reloads)
		}
		// 100 ms without an armed lane would be 20 MiB.
		if most := int64(node.ScaleTimeout(1)) * 8 * mebibyte; rec.Overshoot > most {
			t.Errorf("overshoot = %d MiB; want at most %d", rec.Overshoot/mebibyte, most/mebibyte)
		}
		mustLive(t, bystander)
		hog.remove()
		d.waitPods(1)
	}
}
