package evictions

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/evictd/evictd/agent/kube"
)

// An evictd that crashes before it has saved its state leaves the mark of the fence alone, whose
// times no evictd converts: after the clock was set back they are in the future. The killed container
// is older than its kill all the same.
func TestRestartFromMarkClockSetBack(t *testing.T) {
	n := newNode(t)
	n.fence()
	n.running.LastStart = time.Now().Add(-10 * time.Minute).UnixNano()
	synctest.Test(t, func(*testing.T) { // whose clock begins in the year 2000
		n.restart(false)
		n.checkNow()
		n.decided = true
		n.checkNow()
		n.wantStage(kube.StageKilled)
		n.wantFenced(true)
		if len(n.resumed) != 1 {
			t.Errorf("killed again: %+v; want the pod, which was not started again\n%s", n.resumed, n.log)
		}
	})
}

// A container can be created, the clock set back, and the container killed. It is not taken for one
// that was started again, also not after a restart.
func TestKilledBeforeItsCreation(t *testing.T) {
	n := newNode(t)
	n.running.LastStart = time.Now().Add(30 * time.Minute).UnixNano()
	n.fence()
	n.check(n.t.Context(), time.Now().Add(2*lateStart))
	if s := n.Status(); s.Revived != 0 || len(n.resumed) > 0 {
		t.Errorf("status %+v, killed again %+v; want that nothing was started again", s, n.resumed)
	}
	n.restart(false)
	n.decided = true
	n.checkNow()
	n.wantStage(kube.StageKilled)
	n.wantFenced(true)
}
