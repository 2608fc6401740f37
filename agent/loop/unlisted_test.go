package loop

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
)

// A list that was requested before the memory was unaccounted for may lack the pod, so
// awaitList waits for the next one.
func TestAwaitListRequestsAList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, settings)
		n.listDelay = 30 * time.Millisecond
		n.inventory.Refresh()
		time.Sleep(10 * time.Millisecond)
		began := time.Now()
		if !n.awaitList(t.Context(), []evict.Order{{Cause: signal.MemoryAvailable.String()}}) || time.Since(began) != n.listDelay {
			t.Errorf("awaitList() returned after %v; want true after %v, with the list that it requested", time.Since(began), n.listDelay)
		}
	})
}

// A kill waits up to 100 ms for a list, and up to 1 s while at least half of the threshold
// is left. It stops waiting earlier if memory falls fast.
func TestListWait(t *testing.T) {
	const perSecond = 3 << 30
	for _, tc := range []struct {
		name                       string
		threshold, available, rate float64 // in bytes
		least, most                time.Duration
		share                      float64 // that is left in the end, at least
	}{
		{"a hog, the kubelet's threshold", 100 << 20, 95 << 20, perSecond, 20 * time.Millisecond, 25 * time.Millisecond, 0.2},
		{"a hog, a large threshold", 1 << 30, 1 << 30, perSecond, 100 * time.Millisecond, 200 * time.Millisecond, 0.45},
		{"a hog, seen late", 100 << 20, 45 << 20, perSecond, 5 * time.Millisecond, 15 * time.Millisecond, 0.1},
		{"less than half, constant", 100 << 20, 45 << 20, 0, 100 * time.Millisecond, 120 * time.Millisecond, 0.45},
		{"a slow leak", 100 << 20, 95 << 20, 10 << 20, time.Second, 1020 * time.Millisecond, 0.8},
		{"nothing can be read", 100 << 20, 0, 0, 100 * time.Millisecond, 120 * time.Millisecond, 0},
	} {
		began := time.Now()
		w, now, checks := listWait{began: began}, began, 0
		left := func() float64 { return max(0, tc.available-tc.rate*now.Sub(began).Seconds()) / tc.threshold }
		for {
			wait, goOn := w.next(left(), tc.available > 0, now)
			if !goOn {
				break
			}
			if wait < minCheckInterval || wait > settlingInterval {
				t.Fatalf("%s: next() = %v; want %v to %v", tc.name, wait, minCheckInterval, settlingInterval)
			}
			checks++
			now = now.Add(wait)
		}
		if waited := now.Sub(began); waited < tc.least || waited > tc.most || left() < tc.share || checks > 150 {
			t.Errorf("%s: waited %v with %d checks, a fraction of %.2f is left; want %v to %v, %.2f or more", tc.name, waited, checks, left(), tc.least, tc.most, tc.share)
		}
	}
}
