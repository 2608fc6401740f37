package status

import (
	"fmt"
	"slices"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/loop"
)

// arrivalNotes explains which pods are refused when they come to the node.
func arrivalNotes(v *loop.View, now time.Time) []string {
	since := v.Policy.PressureSince(&v.State, now)
	if !v.Policy.RefuseArrivals || since.IsZero() || !v.Mode.Reporting && !v.Mode.DryRun {
		return nil
	}
	return []string{fmt.Sprintf("admission: BestEffort pods that come are refused; the node has had MemoryPressure for %v", now.Sub(since).Round(time.Second))}
}

// maxEndingNotes is how many pods that end without evictd are named.
const maxEndingNotes = 10

// endingNotes names the pods that end without evictd.
func endingNotes(v *loop.View, now time.Time) (notes []string) {
	for _, e := range v.State.Ending {
		i := slices.IndexFunc(v.Snapshot.Pods, func(p evict.Pod) bool { return p.UID == e.UID })
		if i < 0 {
			continue
		}
		if len(notes) == maxEndingNotes {
			return append(notes, fmt.Sprintf("and %d other pods are being deleted", len(v.State.Ending)-maxEndingNotes))
		}
		pod := &v.Snapshot.Pods[i]
		what := "is no longer in the API, and its kubelet ends it"
		if left := e.EndsBy.Sub(now).Round(time.Second); !pod.EndsBy.IsZero() && left >= 0 {
			what = fmt.Sprintf("is being deleted, with a grace period of another %v", left)
		} else if !pod.EndsBy.IsZero() {
			what = fmt.Sprintf("is being deleted, and its grace period ended %v ago", -left)
		}
		notes = append(notes, pod.Key()+" "+what+"; for soft thresholds it is evicted only if that takes longer than an eviction, and it is not reported")
	}
	return notes
}
