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

// sampleInterval is the pause between two samples. With it the sampler takes a tenth of a CPU.
var sampleInterval = node.ScaleTimeout(100 * time.Microsecond)

// witnessPriority is above evictd's real-time priority, so that sampling goes on while evictd runs.
const samplerPriority = 80

// meter reads one kind of available memory, in bytes, from /proc/meminfo.
type meter func(*meminfo.Info) int64

// memAvailable is the kernel's own estimate, which earlyoom uses.
func memAvailable(i *meminfo.Info) int64 { return int64(i.MemAvailable) }

// signalAvailable is memory.available as evictd and the kubelet compute it by default: active file cache counts as used.
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

// samplerResult is the result of a memorySampler for one crossing. Times are zero for events that did not occur.
type samplerResult struct {
	above        sample        // the last before the first below the threshold
	below        sample        // the first below
	recovered    time.Duration // the first above after the last below
	lowest       int64         // bytes
	gap          time.Duration // the longest time between two samples from the crossing to the recovery
	killedVictim bool          // the sampler killed the victim because the reserve was reached
	err          error
}

// crossedAt returns the time of the crossing, interpolated between the two samples around it.
func (t *samplerResult) crossedAt(threshold int64) time.Duration {
	if t.above.at == 0 || t.above.available <= t.below.available {
		return t.below.at
	}
	share := float64(t.above.available-threshold) / float64(t.above.available-t.below.available)
	return t.above.at + time.Duration(share*float64(t.below.at-t.above.at))
}

// memorySampler samples available memory on a separate thread.
type memorySampler struct {
	meter      meter
	threshold  int64
	floor      int64 // of the kernel's estimate: below it, killVictim is called
	killVictim func()

	done atomic.Bool
	back atomic.Bool // the threshold was crossed and available memory is above it again
	end  chan samplerResult
}

// watch starts sampling.
func (w *memorySampler) watch() error {
	file, err := meminfo.Open(kernel.FS("/proc"))
	if err != nil {
		return err
	}
	w.end = make(chan samplerResult, 1)
	go func() {
		defer file.Close()
		// The thread stays locked, so that it ends with the goroutine and its priority is not inherited.
		runtime.LockOSThread()
		if _, err := process.SetFIFO(samplerPriority); err != nil {
			_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), -20) // best effort; the gap shows a late sample
		}
		w.end <- w.sample(file)
	}()
	return nil
}

// stop ends the sampling and returns its result.
func (w *memorySampler) stop() samplerResult {
	w.done.Store(true)
	return <-w.end
}

func (w *memorySampler) sample(file *meminfo.File) samplerResult {
	var t samplerResult
	var i meminfo.Info
	pause := unix.NsecToTimespec(int64(sampleInterval))
	last := stamp.Now()
	for !w.done.Load() {
		_ = unix.Nanosleep(&pause, nil) // after EINTR the sample is only early
		if t.err = file.Read(&i); t.err != nil {
			return t
		}
		now := stamp.Now()
		t.add(sample{now, w.meter(&i)}, now-last, w.threshold)
		w.back.Store(t.recovered != 0)
		if int64(i.MemAvailable) < w.floor && !t.killedVictim {
			t.killedVictim = true
			w.killVictim()
		}
		last = now
	}
	return t
}

func (t *samplerResult) add(s sample, since time.Duration, threshold int64) {
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
