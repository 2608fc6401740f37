package hot

import (
	"math"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/lanes"
	"github.com/evictd/evictd/agent/signal"
)

// Rehearse goes all the way once, from an alarm to a strike that signals nobody,
// at the cost of the pod that it is given: every page of the path has then been
// touched. The threshold is one that is always met.
func Rehearse(o Options, pod Pod) Result {
	const boundless = math.MaxInt64 / 4
	ask := signal.Threshold{Signal: signal.MemoryAvailable, Value: signal.Quantity(*resource.NewQuantity(boundless, resource.BinarySI))}
	in := evict.Inputs{
		Policy: &evict.Policy{Thresholds: []evict.Threshold{{Threshold: ask}}, MaxVictims: 1, SettleTimeout: time.Second},
		Pods:   []evict.Pod{{UID: "rehearsal", HasStats: true, Usage: evict.PodUsage{Memory: boundless, Freeable: boundless}}},
		// File cache does not delay a crossing where reclaim stalls. Unexplained covers
		// any usage of kubepods, also the largest number of a reading that came too late:
		// right after the start the reader thread may not have opened kubepods yet, and
		// the rehearsal would end before the strike.
		Measured: true, DryRun: true, ReclaimStalled: true, Unexplained: math.MaxInt64 - boundless,
	}
	table := &Table{
		Decision: evict.NewTable(&in, &evict.State{}, time.Time{}), Pods: in.Pods, Guard: &evict.Guard{}, DryRun: true,
		Rows: []Row{{Hold: pod}}, // not Known: it keeps the usage that makes it enough
	}
	pod.Usage()
	o.Read.Look(pod, lookLimit)
	o.Desk, o.Strike = NewDesk(), o.Look
	var d decider
	d.setUp(&o)
	d.publish(table)
	return d.handle(lanes.Raise{Lane: "rehearsal"})
}
