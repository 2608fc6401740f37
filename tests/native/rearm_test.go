package native_test

import (
	"fmt"
	"testing"

	"github.com/evictd/evictd/agent/lanes"
	"github.com/evictd/evictd/tests/node"
)

// TestReloadWhileGrowing: evictd is told of another threshold again and again while a hog grows across it. There is no
// moment at which nobody watches: the hog comes no further than without that.
func TestReloadWhileGrowing(t *testing.T) {
	n := startNode(t, gibibyte)
	calm := runPod(t, n, node.PodSpec{Name: "calm", Containers: one(holding(64 * mebibyte))}).uses(64 * mebibyte)
	const rate = 200 * mebibyte
	d := startDaemon(t, n, below("512Mi"), calm)
	d.laneIsUp(lanes.BPF)
	for i := range 2 {
		hog := runPod(t, n, node.PodSpec{Name: fmt.Sprint("hog", i), Containers: one(growing(900*mebibyte, "-rate", fmt.Sprint(rate)))})
		d.knows(2)
		hog.press()
		reloads := 0
		for ; hog.containersLive(); reloads++ {
			// The loop itself looks with each reload: between two of them only the lanes do.
			d.configure(below(fmt.Sprint((512 - reloads%2) * mebibyte)))
			if s := d.reload(); s.Config.LastReloadError != "" {
				t.Fatalf("reload error = %q; want none", s.Config.LastReloadError)
			}
		}
		hog.mustDie()
		rec := d.ended(hog)
		killed(t, &rec, hog)
		t.Logf("%d reloads; raised by %s, %s; %d KiB below the threshold", reloads, rec.Lane, rec.Confirm, rec.Overshoot>>10)
		if reloads < 10 {
			t.Errorf("%d reloads while the hog grew; want at least 10", reloads)
		}
		// A tenth of a second without anybody would be 20 MiB. An emulated machine takes its time for everything.
		if most := int64(node.Slow(1)) * 8 * mebibyte; rec.Overshoot > most {
			t.Errorf("the hog came %d MiB below the threshold; want at most %d", rec.Overshoot/mebibyte, most/mebibyte)
		}
		mustLive(t, calm)
		hog.remove()
		d.knows(1)
	}
}
