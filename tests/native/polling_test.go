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

// TestPollingKills: with all other lanes off, polling detects the crossing.
func TestPollingKills(t *testing.T) {
	n := startNode(t, gibibyte)
	bystander := runPod(t, n, node.PodSpec{Name: "bystander", Containers: oneContainer(holdArgs(100 * mebibyte))}).waitUsage(100 * mebibyte)
	d := startDaemon(t, n, hardThreshold("512Mi")+"\n"+onlyLane(lanes.Polling, ""), bystander)
	s := d.waitStatus("only the polling lane up", func(s *control.Status) bool {
		return !slices.ContainsFunc(s.Lanes, func(l control.Lane) bool { return l.Up != (l.Name == lanes.Polling) })
	})
	if len(s.Lanes) != len(lanes.Names()) {
		t.Errorf("lanes = %+v; want all of %v", s.Lanes, lanes.Names())
	}
	d.checkAlarmBy(lanes.Polling)
	mustLive(t, bystander)
}

// missTimeout is twice the time after which evictd counts a crossing as missed by a lane.
const missTimeout = 2 * time.Second

// TestBrokenLane: the BPF lane fails silently: its timer in the kernel keeps running, but has no thresholds. Polling,
// whose interval is long next to a lane that samples, detects the crossing, counts it as missed and makes evictd
// reopen the lane. The next crossing is detected by that lane.
func TestBrokenLane(t *testing.T) {
	n := startNode(t, gibibyte)
	bystander := runPod(t, n, node.PodSpec{Name: "bystander", Containers: oneContainer(holdArgs(100 * mebibyte))}).waitUsage(100 * mebibyte)
	d := startDaemon(t, n, hardThreshold("512Mi")+"\n"+onlyLane(lanes.BPF, "auto"), bystander)
	d.laneIsUp(lanes.BPF)
	d.sampler().clearThresholds()
	// A hog that is killed immediately after the crossing does not count as a miss.
	const tries = 5
	for i := 0; i < tries && d.lane(lanes.BPF).Missed == 0; i++ {
		hog := runPod(t, n, node.PodSpec{Name: fmt.Sprint("hog", i), Containers: oneContainer(growArgs(700 * mebibyte))})
		d.waitPods(2)
		hog.grow()
		hog.mustDie()
		rec := d.waitRecord(hog)
		checkKilled(t, &rec, hog)
		if rec.Lane == lanes.BPF {
			t.Errorf("raised by %s, which has no threshold; want another lane", rec.Lane)
		}
		t.Logf("lane %s: SIGKILL %v after the last reading above, %d MiB below the threshold", rec.Lane,
			rec.SignalSent.Sub(rec.LastAbove), rec.Overshoot/mebibyte)
		mustLive(t, bystander)
		hog.remove()
		d.waitPods(1)
		end := time.Now().Add(missTimeout)
		eventually(t, "missed crossing of the lane", func() bool { return d.lane(lanes.BPF).Missed > 0 || time.Now().After(end) })
	}
	d.waitLog("lane degraded", "lane="+lanes.BPF, "missed an alarm")
	d.waitStatus("reopened lane", func(s *control.Status) bool {
		return slices.ContainsFunc(s.Lanes, func(l control.Lane) bool {
			return l.Name == lanes.BPF && l.Up && l.Missed > 0 && l.Reopened > 0
		})
	})
	d.checkAlarmBy(lanes.BPF)
	mustLive(t, bystander)
}

// checkAlarmBy runs hogs until the lane is the first to raise an alarm for one: polling may happen to read just after
// a crossing.
func (d *daemon) checkAlarmBy(lane string) {
	d.t.Helper()
	const tries = 5
	var seen []string
	for i := range tries {
		hog := runPod(d.t, d.n, node.PodSpec{Name: fmt.Sprint("next", i), Containers: oneContainer(growArgs(700 * mebibyte))})
		d.waitPods(2)
		hog.grow()
		hog.mustDie()
		rec := d.waitRecord(hog)
		checkKilled(d.t, &rec, hog)
		hog.remove()
		d.waitPods(1)
		if seen = append(seen, rec.Lane); rec.Lane == lane {
			return
		}
	}
	d.t.Errorf("raised by %v; want one by %s", seen, lane)
}
