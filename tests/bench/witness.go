package main

import (
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/meminfo"
	"github.com/evictd/evictd/kernel/process"
	"github.com/evictd/evictd/tests/hog/stamp"
	"github.com/evictd/evictd/tests/node"
)

// samplePause lies between two samples, so that the witness takes a tenth of a core and not one from the contenders.
var samplePause = node.Slow(100 * time.Microsecond)

// witnessPriority is above evictd's: the witness is to see also what happens while evictd runs.
const witnessPriority = 80

// meter reads one kind of available memory, in bytes, from /proc/meminfo.
type meter func(*meminfo.Info) int64

// memAvailable is the kernel's own estimate, which earlyoom goes by.
func memAvailable(i *meminfo.Info) int64 { return int64(i.MemAvailable) }

// signalAvailable is memory.available as evictd and the kubelet compute it by default: active file cache is used.
func signalAvailable(i *meminfo.Info) int64 {
	return int64(i.MemTotal) - int64(i.Hugetlb) - int64(i.WorkingSet())
}

// cacheAvailable is memory.available with memoryAccounting: available, where active file cache counts as available.
func cacheAvailable(i *meminfo.Info) int64 { return signalAvailable(i) + int64(i.ActiveFile) }

// sample is one reading at one time, of CLOCK_MONOTONIC.
type sample struct {
	at        time.Duration
	available int64
}

// testimony is what a witness saw of one crossing; times are zero for what was not seen.
type testimony struct {
	above     sample        // the last before the first below the threshold
	below     sample        // the first below
	recovered time.Duration // the first above after the last below
	lowest    int64         // bytes
	gap       time.Duration // the longest between two samples from the crossing to the recovery
	rescued   bool          // the witness killed the hog itself
	err       error
}

// crossed is when the threshold was crossed: between the two samples on both sides of it, where a steady fall from the
// one to the other meets it.
func (t *testimony) crossed(threshold int64) time.Duration {
	if t.above.at == 0 || t.above.available <= t.below.available {
		return t.below.at
	}
	share := float64(t.above.available-threshold) / float64(t.above.available-t.below.available)
	return t.above.at + time.Duration(share*float64(t.below.at-t.above.at))
}

// witness samples available memory on a thread of its own, apart from the contenders.
type witness struct {
	meter     meter
	threshold int64
	floor     int64 // of the kernel's estimate: below it, rescue is called
	rescue    func()

	done atomic.Bool
	back atomic.Bool // the threshold was crossed, and is so no longer
	end  chan testimony
}

// watch starts sampling.
func (w *witness) watch() error {
	file, err := meminfo.Open(kernel.FS("/proc"))
	if err != nil {
		return err
	}
	w.end = make(chan testimony, 1)
	go func() {
		defer file.Close()
		// Not unlocked again: the thread's priority dies with it.
		runtime.LockOSThread()
		if _, err := process.SetFIFO(witnessPriority); err != nil {
			_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), -20) // without either it sees less, and says so by its gap
		}
		w.end <- w.sample(file)
	}()
	return nil
}

// testify ends the sampling and returns what was seen.
func (w *witness) testify() testimony {
	w.done.Store(true)
	return <-w.end
}

func (w *witness) sample(file *meminfo.File) testimony {
	var t testimony
	var i meminfo.Info
	pause := unix.NsecToTimespec(int64(samplePause))
	last := stamp.Now()
	for !w.done.Load() {
		_ = unix.Nanosleep(&pause, nil) // cut short, the sample is only early
		if t.err = file.Read(&i); t.err != nil {
			return t
		}
		now := stamp.Now()
		t.see(sample{now, w.meter(&i)}, now-last, w.threshold)
		w.back.Store(t.recovered != 0)
		if int64(i.MemAvailable) < w.floor && !t.rescued {
			t.rescued = true
			w.rescue()
		}
		last = now
	}
	return t
}

func (t *testimony) see(s sample, since time.Duration, threshold int64) {
	switch {
	case s.available < threshold:
		if t.below.at == 0 {
			t.below, t.lowest = s, s.available
		}
		t.lowest, t.recovered = min(t.lowest, s.available), 0
	case t.below.at == 0:
		t.above = s
		t.gap = 0
	case t.recovered == 0:
		t.recovered = s.at
	default:
		return
	}
	t.gap = max(t.gap, since)
}
