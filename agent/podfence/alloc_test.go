//go:build !race

package podfence

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/process"
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
		if err := fences[at].Set("order", ""); err != nil {
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
	if h.Version == cgroup.Hybrid {
		b.Run("unified", func(b *testing.B) { benchmarkSet(b, newPod(b, unified(h)), "/dev/shm") })
	}
}

// BenchmarkSetWhileBusy sets fences while cgroups are made and removed, which takes
// cgroup_mutex: a write to cgroup.max.descendants waits for it, one to pids.max does not.
func BenchmarkSetWhileBusy(b *testing.B) {
	h := native(b)
	b.Run(h.Version.String(), func(b *testing.B) { benchmarkSetWhileBusy(b, h) })
	if h.Version == cgroup.Hybrid {
		b.Run("unified", func(b *testing.B) { benchmarkSetWhileBusy(b, unified(h)) })
	}
}

func benchmarkSetWhileBusy(b *testing.B, h *cgroup.Hierarchy) {
	p, stop := newPod(b, h), make(chan struct{})
	var churn sync.WaitGroup
	for i := range 4 {
		churn.Go(func() {
			dir := p.root.Path(filepath.Dir(p.path), fmt.Sprint("churn", i))
			for {
				select {
				case <-stop:
					return
				default:
					os.Mkdir(dir, 0o755)
					os.Remove(dir)
				}
			}
		})
	}
	// With a P to spare and at the priority of the hot path, Set waits for the lock alone.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(8))
	runtime.LockOSThread()
	if _, err := process.SetFIFO(1); err != nil {
		b.Log("at normal priority: ", err)
	}
	benchmarkSet(b, p, "/dev/shm")
	close(stop)
	churn.Wait()
}

// BenchmarkPrepareAndSet is what a kill costs if nothing was prepared: a fence is opened, set,
// and left to Check.
func BenchmarkPrepareAndSet(b *testing.B) {
	h := native(b)
	b.Run(h.Version.String(), func(b *testing.B) { benchmarkPrepareAndSet(b, newPod(b, h)) })
	if h.Version == cgroup.Hybrid {
		b.Run("unified", func(b *testing.B) { benchmarkPrepareAndSet(b, newPod(b, unified(h))) })
	}
}

func benchmarkPrepareAndSet(b *testing.B, p *testPod) {
	b.ReportAllocs()
	dir, err := mkdirTemp(b, "/dev/shm")
	if err != nil {
		b.Skip("needs a directory for the marks: ", err)
	}
	table, _ := openTable(b, p.hierarchy, dir+"/fences")
	var took []time.Duration
	for b.Loop() {
		start := time.Now()
		f, err := table.Prepare(p.uid, p.containers)
		if err != nil {
			b.Fatal(err)
		}
		if err := f.Set("order", ""); err != nil {
			b.Fatal(err)
		}
		f.Close() // it keeps the descriptors while it is set
		took = append(took, time.Since(start))
		b.StopTimer()
		if err := f.Lift(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
	reportLongest(b, took)
}

// BenchmarkMark is the part of Set that writes the file.
func BenchmarkMark(b *testing.B) {
	h := native(b)
	dir, err := mkdirTemp(b, "/dev/shm")
	if err != nil {
		b.Skip("needs a directory for the marks: ", err)
	}
	table, _ := openTable(b, h, dir+"/fences")
	f := newPod(b, h).prepare(table)
	f.slot, _ = table.claim()
	for b.Loop() {
		if err := f.writeMark(); err != nil {
			b.Fatal(err)
		}
	}
	f.slot = -1
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
		if err := f.Set("order", ""); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(start))
		b.StopTimer()
		if err := f.Lift(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
	reportLongest(b, took)
}

func reportLongest(b *testing.B, took []time.Duration) {
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
	b.ReportMetric(float64(took[len(took)-1].Microseconds()), "max-µs")
}
