package main

import (
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/meminfo"
	"github.com/evictd/evictd/tests/hog/stamp"
)

// samplePause lies between two samples, so that the witness takes a tenth of a core and not one from the contenders.
const samplePause = 200 * time.Microsecond

// meter reads one kind of available memory, in bytes, from /proc/meminfo.
type meter func(*meminfo.Info) int64

// memAvailable is the kernel's own estimate, which earlyoom goes by.
func memAvailable(i *meminfo.Info) int64 { return int64(i.MemAvailable) }

// signalAvailable is memory.available where active file cache counts as available: what evictd goes by here.
func signalAvailable(i *meminfo.Info) int64 {
	return int64(i.MemTotal) - int64(i.Hugetlb) - int64(i.WorkingSet()) + int64(i.ActiveFile)
}

// testimony is what a witness saw of one burst. Times are CLOCK_MONOTONIC, zero for what was not seen.
type testimony struct {
	lastAbove time.Duration // the last sample before the first below the threshold
	below     time.Duration // the first below
	recovered time.Duration // the first above after the last below
	lowest    int64         // bytes
	gap       time.Duration // the longest between two samples from shortly before the crossing to the recovery
	rescued   bool          // the witness killed the hog itself
	err       error
}

// witness samples available memory on a thread of its own, apart from the contenders.
type witness struct {
	meter     meter
	threshold int64
	floor     int64 // of the kernel's estimate: below it, rescue is called
	rescue    func()

	done atomic.Bool
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
		_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), -20) // without, it sees less, and says so by its gap
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
		t.see(now, now-last, w.meter(&i), w.threshold)
		if int64(i.MemAvailable) < w.floor && !t.rescued {
			t.rescued = true
			w.rescue()
		}
		last = now
	}
	return t
}

func (t *testimony) see(now, since time.Duration, available, threshold int64) {
	switch {
	case available < threshold:
		if t.below == 0 {
			t.below, t.lowest = now, available
		}
		t.lowest, t.recovered = min(t.lowest, available), 0
	case t.below == 0:
		t.lastAbove = now
		t.gap = 0
	case t.recovered == 0:
		t.recovered = now
	default:
		return
	}
	t.gap = max(t.gap, since)
}
