package evictions

import (
	"testing"
	"time"

	"github.com/evictd/evictd/agent/kube"
)

// A pod is killed again, because a container had been started before its fence was set. The next
// evictd does not take that container for one that was started after the last kill.
func TestRestartAfterSecondKill(t *testing.T) {
	n := newNode(t, exclusive)
	n.fence()
	n.running.LastStart = time.Now().UnixNano()
	n.fence()
	n.save()
	n.restart(false)
	n.decided = true
	n.checkNow()
	n.wantFenced(true)
	n.wantStage(kube.StageKilled)
	if len(n.resumed) != 1 {
		t.Errorf("killed again %d times; want once\n%s", len(n.resumed), n.log)
	}
}
