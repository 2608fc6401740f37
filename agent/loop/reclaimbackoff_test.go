package loop

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/evictd/evictd/agent/act"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/pods"
	"github.com/evictd/evictd/agent/reclaim"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/cri"
)

// bareRuntime is a container runtime that has only images, and counts lists.
type bareRuntime struct {
	reclaim.Runtime
	images []cri.Image
	lists  atomic.Int32
}

func (r *bareRuntime) Sandboxes(context.Context) ([]cri.Sandbox, error) {
	r.lists.Add(1)
	return nil, nil
}
func (r *bareRuntime) Containers(context.Context) ([]cri.Container, error) { return nil, nil }
func (r *bareRuntime) Images(context.Context) ([]cri.Image, error)         { return r.images, nil }
func (r *bareRuntime) SandboxImage(context.Context) (string, error)        { return "pause", nil }

// lowDisk is a filesystem that stays low.
type lowDisk struct{}

func (lowDisk) SyncFreed(signal.Signal) {}
func (lowDisk) Read(now time.Time, into *signal.Observations) {
	into[signal.NodeFsAvailable] = signal.Observation{Status: signal.Observed, Available: 1, Capacity: 1000, Time: now}
}

// While a disk stays low and nothing can be reclaimed, the runtime is asked for its lists
// at doubling intervals, and at once when something has changed.
func TestReclaimBackoff(t *testing.T) {
	for _, dryRun := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			runtime := &bareRuntime{}
			if dryRun { // an image that would be removed stays
				runtime.images = []cri.Image{{ID: "unused", Bytes: 500}}
			}
			reclaimer := reclaim.New(reclaim.Options{
				Runtime: runtime, Filesystems: lowDisk{}, DryRun: func() bool { return dryRun }, Kubelet: func() evict.Kubelet { return evict.Kubelet{Known: true} },
			}, reclaim.Policy{Images: reclaim.On, High: 100, Settle: time.Second})
			done := make(chan error, 1)
			go func() { done <- reclaimer.Run(ctx) }()
			l := &Loop{reclaimer: reclaimer, usage: &DiskUsage{}}
			value, err := signal.ParseThreshold("100")
			if err != nil {
				t.Fatal(err)
			}
			threshold := evict.Threshold{Threshold: signal.Threshold{Signal: signal.NodeFsAvailable, Value: value}}
			policy := &evict.Policy{Thresholds: []evict.Threshold{threshold}, MaxVictims: 3}
			handles := map[string]pods.Handle{"u": {Containers: []evict.RunningContainer{{ID: "1"}}}}
			// iterate does the loop's part of reclaims for a period.
			iterate := func(period time.Duration) (lists int) {
				before := int(runtime.lists.Load())
				for end := time.Now().Add(period); time.Now().Before(end); time.Sleep(lowInterval) {
					select {
					case report := <-reclaimer.Done():
						l.reclaimed(&report)
					default:
					}
					v := &View{Time: time.Now(), Snapshot: pods.Snapshot{Handles: handles}}
					in := evict.Inputs{Policy: policy, Outcomes: l.outcomes, NothingReclaimed: l.reclaimBackoff.deferred(v.Time), DryRun: dryRun}
					lowDisk{}.Read(v.Time, &in.Observations)
					v.State, v.Orders = evict.Step(l.state, in, v.Time)
					l.state, l.outcomes = v.State, nil
					l.reclaimBackoff.update(l.handles, v)
					l.handles = handles
					l.reclaim(v)
				}
				return int(runtime.lists.Load()) - before
			}
			// 2 s, 4 s, … and then a minute between two attempts, of two lists each.
			first := iterate(10 * time.Minute)
			if first > 40 || first < 20 {
				t.Errorf("dry run %t: %d lists in ten minutes; want about 28", dryRun, first)
			}
			handles = map[string]pods.Handle{}
			if n := iterate(5 * time.Second); n < 2 {
				t.Errorf("dry run %t: %d lists after a pod has gone; want another attempt at once", dryRun, n)
			}
			iterate(10 * time.Minute)
			l.evictionEnded("u", act.LastGone)
			if n := iterate(5 * time.Second); n < 2 {
				t.Errorf("dry run %t: %d lists after the end of a victim; want another attempt at once", dryRun, n)
			}
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}
