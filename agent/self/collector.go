package self

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/evictd/evictd/agent/pace"
)

const (
	// memoryLimit, in bytes, has the collector run whatever happens: what lives is a
	// few MiB, and this is what the unit keeps for evictd.
	memoryLimit = 64 << 20
	// garbage is how much of it there may be to what lives, in percent, and
	// leastGarbage how much there must be, in bytes: what is locked once is never
	// given back.
	garbage, leastGarbage = 50, 1 << 20
	// nearGarbage is how much of it there may be, in bytes, where little is left above
	// a threshold: on a node that is always so, too, the collector has to run.
	nearGarbage = 8 << 20
	// collectEvery is how often it is looked for.
	collectEvery = 2 * time.Second
)

// collector has Go's garbage collector run while nothing is low, and only then. The
// collector stops the world for some microseconds, and for as long as one of its
// threads waits for a processor: on a node whose processors are busy, that is tens
// of milliseconds, in which the thread of the hot path comes back from its wait and
// is let into Go no more (seen: a SIGKILL 163 ms after the alarm).
type collector struct {
	sizes   func() (objects, live uint64) // of the heap, with garbage and without
	urgency func() Urgency
	collect func()
}

// Urgency is how urgent evictd's work is.
type Urgency int

// The urgencies.
const (
	Busy Urgency = iota // something is low, or a victim has not ended
	Near                // little is left above a threshold
	Idle                // neither
)

// turn collects if there is enough to collect, and nothing that must not wait.
func (c *collector) turn() {
	objects, live := c.sizes()
	enough := max(live*garbage/100, leastGarbage)
	if objects < live+enough {
		return
	}
	switch c.urgency() {
	case Busy:
		return
	case Near:
		if objects < live+max(enough, nearGarbage) {
			return
		}
	}
	c.collect()
}

// CollectGarbage takes the collector over from Go once no lane is starting, which
// leaves a lot of garbage, and gives it back when ctx ends. Who asks for a pace of
// the collector by GOGC gets that.
func CollectGarbage(ctx context.Context, starting func() bool, urgency func() Urgency) {
	if os.Getenv("GOGC") != "" {
		return
	}
	c := &collector{sizes: heapSizes(), urgency: urgency, collect: runtime.GC}
	timer := time.NewTimer(collectEvery)
	defer timer.Stop()
	taken := false
	for {
		select {
		case <-ctx.Done():
			debug.SetGCPercent(garbage)
			return
		case <-timer.C:
		}
		timer.Reset(pace.Together(time.Now(), collectEvery))
		if !taken && !starting() {
			taken = true
			debug.SetGCPercent(-1)
		}
		if taken {
			c.turn()
		}
	}
}

// heapSizes returns a reader of how much the heap holds, garbage included, and of
// how much of it was alive when it was collected last, in bytes.
func heapSizes() func() (objects, live uint64) {
	samples := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/gc/heap/live:bytes"}}
	return func() (objects, live uint64) {
		metrics.Read(samples)
		return samples[0].Value.Uint64(), samples[1].Value.Uint64()
	}
}
