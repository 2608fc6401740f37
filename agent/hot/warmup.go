package hot

import (
	"math"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/lanes"
	"github.com/evictd/evictd/agent/memory"
	"github.com/evictd/evictd/agent/signal"
)

// WarmUp runs the path from an alarm to a kill once, with a threshold that is always met
// and without sending a signal, so that every page of it is resident before the first real
// alarm. The handle of pod is used up.
func WarmUp(o Options, pod Handle) Result {
	const unlimited = math.MaxInt64 / 4
	threshold := signal.Threshold{Signal: signal.MemoryAvailable, Value: signal.Quantity(*resource.NewQuantity(unlimited, resource.BinarySI))}
	in := evict.Inputs{
		Policy: &evict.Policy{Thresholds: []evict.Threshold{{Threshold: threshold}}, MaxVictims: 1, SettleTimeout: time.Second},
		Pods:   []evict.Pod{{UID: "warm-up", HasStats: true, Usage: evict.PodUsage{Memory: unlimited, Freeable: unlimited}}},
		// File cache does not delay a crossing while reclaim stalls. UnaccountedBaseline
		// covers any usage of kubepods, also the largest number, which stands for a reading
		// that came too late: right after the start the reader thread may not have opened
		// kubepods yet, and the warm-up would end before the kill.
		Measured: true, DryRun: true, ReclaimStalled: true, UnaccountedBaseline: math.MaxInt64 - unlimited,
	}
	table := &Table{
		Decision: evict.NewTable(&in, &evict.State{}, time.Time{}), Pods: in.Pods, Guard: &evict.Guard{}, DryRun: true,
		Rows: []Row{{Handle: pod}}, // not [Row.Complete], so that a refresh does not lower its usage
	}
	pod.Usage()
	o.Reader.ReadPod(pod, memory.ReadTimeout)
	o.Arbiter, o.Killer = NewArbiter(), o.DryRunKiller
	var d decider
	d.setUp(&o)
	d.publish(table)
	return d.process(lanes.Alarm{Lane: "warm-up"})
}
