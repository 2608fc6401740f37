//go:build !race

package podfence

import (
	"slices"
	"testing"
	"time"
)

// Not under the race detector, which moves every buffer that the kernel fills to the heap.
func TestSetAllocatesNothing(t *testing.T) {
	h := native(t)
	table, _ := openTable(t, h, marksFile(t))
	const runs = 5 // and one that AllocsPerRun does first
	var fences []*Fence
	for range runs + 1 {
		fences = append(fences, newPod(t, h).prepare(table))
	}
	at := 0
	if n := testing.AllocsPerRun(runs, func() {
		if err := fences[at].Set("order"); err != nil {
			t.Error(err)
		}
		at++
	}); n != 0 {
		t.Errorf("Set allocates %v times; want 0", n)
	}
	if _, err := table.LiftAll(); err != nil {
		t.Error(err)
	}
}

// BenchmarkSet reports also the longest Set, which bounds how long a fence is late.
func BenchmarkSet(b *testing.B) {
	h := native(b)
	for _, dir := range []string{"/run", "/dev/shm"} {
		b.Run(dir, func(b *testing.B) { benchmarkSet(b, newPod(b, h), dir) })
	}
	if h.Unified != "" && h.Unified != h.Memory {
		b.Run("unified", func(b *testing.B) { benchmarkSet(b, newPod(b, unified(h)), "/dev/shm") })
	}
}

func benchmarkSet(b *testing.B, p *testPod, dir string) {
	b.ReportAllocs()
	dir, err := mkdirTemp(b, dir)
	if err != nil {
		b.Skip("needs a directory for the marks: ", err)
	}
	table, _ := openTable(b, p.hierarchy, dir+"/fences")
	f := p.prepare(table)
	var took []time.Duration
	for b.Loop() {
		start := time.Now()
		if err := f.Set("order"); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(start))
		b.StopTimer()
		if err := f.Lift(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
	b.ReportMetric(float64(took[len(took)-1].Microseconds()), "max-µs")
}
