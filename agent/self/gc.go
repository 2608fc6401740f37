package self

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/evictd/evictd/agent/pollinterval"
)

const (
	// memoryLimit is the heap size, in bytes, at which the GC runs under pressure, too:
	// several times the live heap, and the MemoryMin= of the unit.
	memoryLimit = 64 << 20
	// gcPercent is the garbage, in percent of the live heap, at which the GC runs, and
	// minGarbage the least garbage, in bytes. The more there may be the larger evictd
	// becomes: locked memory is never returned.
	gcPercent, minGarbage = 50, 1 << 20
	// minGarbageNear is the least garbage, in bytes, near a threshold: some nodes are
	// always near one, so the GC has to run there, too.
	minGarbageNear = 8 << 20
	// gcInterval is the time between two checks of the heap, each of which takes some
	// microseconds.
	gcInterval = 2 * time.Second
)

// collector runs Go's GC while no threshold is met. The GC stops the world for some
// microseconds, and longer while one of its threads waits for a CPU: for tens of
// milliseconds on a node with busy CPUs, in which the hot path's thread can't return from
// its system call (measured: a SIGKILL 163 ms after the alarm).
type collector struct {
	sizes   func() (objects, live uint64) // of the heap, in bytes, with garbage and without
	urgency func() Urgency
	collect func()
}

// Urgency is the pressure level, as far as the GC is concerned.
type Urgency int

// The urgencies.
const (
	Busy Urgency = iota // a threshold is met or a victim is in flight
	Near                // a threshold is near
	Idle                // neither
)

// check runs the GC if there is enough garbage for the pressure level.
func (c *collector) check() {
	objects, live := c.sizes()
	enough := max(live*gcPercent/100, minGarbage)
	if objects < live+enough {
		return
	}
	switch c.urgency() {
	case Busy:
		return
	case Near:
		if objects < live+max(enough, minGarbageNear) {
			return
		}
	}
	c.collect()
}

// CollectGarbage disables Go's own pacing of the GC once starting reports false (opening
// the lanes makes much garbage), runs the GC itself and restores the pacing when ctx ends.
// It does nothing if GOGC is set.
func CollectGarbage(ctx context.Context, starting func() bool, urgency func() Urgency) {
	if os.Getenv("GOGC") != "" {
		return
	}
	c := &collector{sizes: heapSizes(), urgency: urgency, collect: runtime.GC}
	timer := time.NewTimer(gcInterval)
	defer timer.Stop()
	disabled := false // Go's own pacing
	for {
		select {
		case <-ctx.Done():
			debug.SetGCPercent(gcPercent)
			return
		case <-timer.C:
		}
		timer.Reset(pollinterval.AlignedWait(time.Now(), gcInterval))
		if !disabled && !starting() {
			disabled = true
			debug.SetGCPercent(-1)
		}
		if disabled {
			c.check()
		}
	}
}

// heapSizes returns a function that reads the size of the heap's objects, garbage included,
// and that of the objects which were live at the last GC, in bytes.
func heapSizes() func() (objects, live uint64) {
	samples := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/gc/heap/live:bytes"}}
	return func() (objects, live uint64) {
		metrics.Read(samples)
		return samples[0].Value.Uint64(), samples[1].Value.Uint64()
	}
}
