package native_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/lanes"
	"github.com/evictd/evictd/tests/node"
)

// TestPollingKills: with every other lane switched off it is polling that learns of a hog.
func TestPollingKills(t *testing.T) {
	n := startNode(t, gibibyte)
	calm := runPod(t, n, node.PodSpec{Name: "calm", Containers: one(holding(100 * mebibyte))}).uses(100 * mebibyte)
	d := startDaemon(t, n, below("512Mi")+"\n"+onlyLane(lanes.Polling, ""), calm)
	s := d.until("all lanes off but polling", func(s *control.Status) bool {
		return !slices.ContainsFunc(s.Lanes, func(l control.Lane) bool { return l.Up != (l.Name == lanes.Polling) })
	})
	if len(s.Lanes) != len(lanes.Names()) {
		t.Errorf("lanes = %+v; want all of %v told", s.Lanes, lanes.Names())
	}
	d.learns(lanes.Polling)
	mustLive(t, calm)
}

// judgement is how long evictd may take to find out that a lane has missed a crossing: twice what it waits for it.
const judgement = 2 * time.Second

// TestDeafLane: the only lane beside polling fails where nobody is told of it: the timer in the kernel ticks on, and
// has forgotten what it was to watch. Polling, which is at ease beside a lane that samples, kills the hog all the same,
// finds the lane out and has it opened anew; the next hog is that lane's again.
func TestDeafLane(t *testing.T) {
	n := startNode(t, gibibyte)
	calm := runPod(t, n, node.PodSpec{Name: "calm", Containers: one(holding(100 * mebibyte))}).uses(100 * mebibyte)
	d := startDaemon(t, n, below("512Mi")+"\n"+onlyLane(lanes.BPF, "auto"), calm)
	d.laneIsUp(lanes.BPF)
	d.sampler().forget()
	// One that is killed as soon as it is below proves nothing against the lane.
	const tries = 5
	for i := 0; i < tries && d.lane(lanes.BPF).Missed == 0; i++ {
		hog := runPod(t, n, node.PodSpec{Name: fmt.Sprint("hog", i), Containers: one(growing(700 * mebibyte))})
		d.knows(2)
		hog.press()
		hog.mustDie()
		rec := d.ended(hog)
		killed(t, &rec, hog)
		if rec.Lane == lanes.BPF {
			t.Errorf("raised by %s, which knows of no threshold; want another", rec.Lane)
		}
		t.Logf("lane %s: SIGKILL %v after the last reading above, %d MiB below the threshold", rec.Lane,
			rec.SignalSent.Sub(rec.LastAbove), rec.Overshoot/mebibyte)
		mustLive(t, calm)
		hog.remove()
		d.knows(1)
		judged := time.Now().Add(judgement)
		eventually(t, "judgement of the lane", func() bool { return d.lane(lanes.BPF).Missed > 0 || time.Now().After(judged) })
	}
	d.logged("lane degraded", "lane="+lanes.BPF, "missed an alarm")
	d.until("lane opened anew", func(s *control.Status) bool {
		return slices.ContainsFunc(s.Lanes, func(l control.Lane) bool {
			return l.Name == lanes.BPF && l.Up && l.Missed > 0 && l.Reopened > 0
		})
	})
	d.learns(lanes.BPF)
	mustLive(t, calm)
}

// learns has hogs cross the threshold until it is the lane that learns of one first: another may happen to look just
// after the crossing.
func (d *daemon) learns(lane string) {
	d.t.Helper()
	const tries = 5
	var seen []string
	for i := range tries {
		hog := runPod(d.t, d.n, node.PodSpec{Name: fmt.Sprint("next", i), Containers: one(growing(700 * mebibyte))})
		d.knows(2)
		hog.press()
		hog.mustDie()
		rec := d.ended(hog)
		killed(d.t, &rec, hog)
		hog.remove()
		d.knows(1)
		if seen = append(seen, rec.Lane); rec.Lane == lane {
			return
		}
	}
	d.t.Errorf("raised by %v; want one by %s", seen, lane)
}
