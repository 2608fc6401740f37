package memory

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/kerneltest"
)

// Page cache that is not in memory.stat of kubepods yet does not count as working set
// where it would cross a threshold.
func TestReadCorrectsFileCache(t *testing.T) {
	at := func(quantity string) *SharedThresholds {
		value, err := signal.ParseThreshold(quantity)
		if err != nil {
			t.Fatal(err)
		}
		a := new(SharedThresholds)
		a.Set([]signal.Threshold{{Signal: signal.AllocatableMemoryAvailable, Value: value}})
		return a
	}
	podStat := func(inactive int64) string { return v2Stat(100*mib, inactive, inactive, 0) }
	for _, tt := range []struct {
		name            string
		armed           *SharedThresholds
		listed, cached  int64 // file cache in memory.stat of kubepods and of its pod, in MiB; 100 are anonymous
		used            int64
		available       int64
		podsKernelUsage int64
		again           bool // the next reading reads the pod too
	}{
		{name: "up to date", armed: at("500Mi"), listed: 800, cached: 800, used: 900, available: 1100},
		{name: "behind", armed: at("500Mi"), listed: 100, cached: 800, used: 900, available: 1100, again: true},
		{name: "behind, thresholds not known", listed: 100, cached: 800, used: 900, available: 1100, again: true},
		{name: "behind, no threshold crossed", armed: at("100Mi"), listed: 100, cached: 800, used: 900, available: 400},
		{name: "kernel memory", armed: at("500Mi"), listed: 100, cached: 100, used: 900, available: 400, podsKernelUsage: 700},
		{name: "kernel memory and behind", armed: at("500Mi"), listed: 100, cached: 300, used: 1000, available: 500, podsKernelUsage: 600, again: true},
		{name: "cache of removed pods", armed: at("500Mi"), listed: 800, cached: 0, used: 1700, available: 300, podsKernelUsage: 800},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := kerneltest.Tree(t, map[string]string{
				"cgroup.controllers": "memory\n", "cgroup.subtree_control": "memory\n", "cgroup.procs": "", "memory.stat": v2Stat(0, 0, 0, 0),
				"kubepods.slice/memory.current": fmt.Sprintln(tt.used * mib), "kubepods.slice/memory.max": fmt.Sprintln(1200 * mib),
				"kubepods.slice/memory.stat": podStat(tt.listed * mib), "kubepods.slice/cgroup.procs": "",
				"kubepods.slice/cgroup.events": "populated 1\nfrozen 0\n", "kubepods.slice/pod/memory.stat": podStat(tt.cached * mib),
			})
			h, err := cgroup.Find(kernel.FS(root))
			if err != nil {
				t.Fatal(err)
			}
			m := openMemory(t, Options{Procfs: kernel.FS(kerneltest.Tree(t, map[string]string{"meminfo": meminfoText})), Hierarchy: h, Thresholds: tt.armed})
			var got signal.Observations
			node := m.Read(time.Unix(1000, 0), &got)
			o := got[signal.AllocatableMemoryAvailable]
			if o.Status != signal.Observed || o.Available != tt.available*mib || node.Kubepods != 1200*mib-o.Available {
				t.Errorf("Read() = %d of %d MiB available (%v), working set %d MiB; want %d MiB available", o.Available/mib, o.Capacity/mib, o.Status, node.Kubepods/mib, tt.available)
			}
			if m.podsKernelUsage != uint64(tt.podsKernelUsage)*mib {
				t.Errorf("podsKernelUsage = %d MiB; want %d", m.podsKernelUsage/mib, tt.podsKernelUsage)
			}
			// Usage that is known as kernel memory is not read again until it grows.
			kerneltest.Write(t, filepath.Join(root, "kubepods.slice/pod"), map[string]string{"memory.stat": podStat(1100 * mib)})
			before := o.Available
			m.Read(time.Unix(1001, 0), &got)
			again := got[signal.AllocatableMemoryAvailable].Available != before
			if again != tt.again {
				t.Errorf("the pod was read again = %t; want %t", again, tt.again)
			}
		})
	}
}
