package loop

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
)

// A list that was asked for before a pod was found to be missing may lack it: the
// next list is waited for.
func TestAwaitListIsAskedForSince(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, settings)
		n.slow = 30 * time.Millisecond
		n.inventory.Refresh()
		time.Sleep(10 * time.Millisecond)
		began := time.Now()
		if !n.awaitList(t.Context(), []evict.Order{{Cause: signal.MemoryAvailable.String()}}) || time.Since(began) != n.slow {
			t.Errorf("awaitList() returned after %v; want true after %v, with the list that it asked for", time.Since(began), n.slow)
		}
	})
}
