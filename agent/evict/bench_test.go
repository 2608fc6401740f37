package evict

import (
	"fmt"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/signal"
)

// loadedNode returns n pods of three containers each, with requests, limits and a
// volume, and the thresholds of a typical configuration.
func loadedNode(n int) Inputs {
	configured := []signal.Threshold{
		hard(signal.MemoryAvailable, "1Gi").reclaiming("500Mi").Threshold,
		hard(signal.NodeFsAvailable, "10%").Threshold,
		hard(signal.NodeFsInodesFree, "5%").Threshold,
		hard(signal.ImageFsAvailable, "15%").Threshold,
		hard(signal.ImageFsInodesFree, "5%").Threshold,
		soft(signal.MemoryAvailable, "2Gi", time.Minute).Threshold,
	}
	in := Inputs{Policy: &Policy{
		Thresholds:       WithDerived(configured, SingleFs, true),
		TransitionPeriod: 5 * time.Minute, MaxVictims: 3, SettleTimeout: time.Second,
	}}
	for s := range in.Observations {
		in.Observations[s] = signal.Observation{Status: signal.Observed, Available: 1 << 40, Capacity: 1 << 41}
	}
	for i := range n {
		p := aPod(fmt.Sprintf("pod-%05d", i), withPriority(int32(i%7)))
		for j := range 3 {
			c := Container{
				Name:  fmt.Sprint("c", j),
				Usage: ContainerUsage{Memory: int64(i+1) * mi, Rootfs: int64(i) * mi, Logs: mi, Inodes: 1000},
			}
			c.Resources.Requests.Memory = qty("100Mi")
			c.Resources.Limits.EphemeralStorage = qty("100Gi")
			p.Containers = append(p.Containers, c)
		}
		p.Volumes = []Volume{{Name: "v", Type: EmptyDir, SizeLimit: qty("10Gi"), Used: gi}}
		p.Usage = PodUsage{Memory: int64(3*i+3) * mi, Freeable: int64(3*i+3) * mi, PIDs: 12}
		in.Pods = append(in.Pods, p)
	}
	return in
}

func BenchmarkStep(b *testing.B) {
	for _, n := range []int{110, 500, 5000} {
		idle := loadedNode(n)
		evicting := loadedNode(n)
		evicting.Observations[signal.MemoryAvailable].Available = 700 * mi
		for _, run := range []struct {
			name    string
			in      Inputs
			victims bool
		}{{"idle", idle, false}, {"evicting", evicting, true}} {
			b.Run(fmt.Sprintf("%s/%d", run.name, n), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					_, orders := Step(State{}, run.in, start)
					if (len(orders.Evict) > 0) != run.victims {
						b.Fatalf("victims = %v", victims(orders))
					}
				}
			})
		}
	}
}
