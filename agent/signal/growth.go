package signal

import "time"

const (
	// leastGrowth is the growth of memory, in bytes, below which two readings
	// are taken for equal.
	leastGrowth = 32 << 20
	// cacheWait is how long a crossing that file cache brought must last before
	// a pod is evicted for it: the kubelet's monitoring period.
	cacheWait = 10 * time.Second
	// referenceAge is how old a reading must be to be compared with: over a
	// shorter time a slow growth cannot be told from noise.
	referenceAge = time.Second
)

// Source says where a reading of a memory signal comes from. Readings of
// different sources are not compared: the kernel updates their counters at
// different times.
type Source uint8

const (
	// Files are /proc/meminfo and the memory.stat of the pods' cgroup.
	Files Source = iota
	// Sampler is the BPF sampler: the node's counters, or one walk over the
	// pods' cgroups.
	Sampler
	// CgroupFiles are the memory.stat of all cgroups of the pods, where that of the
	// pods' cgroup itself lags behind them.
	CgroupFiles
)

// MemoryReading is one reading of a memory signal, with file cache told apart.
// The zero MemoryReading is none.
type MemoryReading struct {
	Time   time.Time `json:"time"`
	Source Source    `json:"source,omitempty"`
	// Other is what is available, in bytes, if active file cache counts as free:
	// it falls by what all other memory grows (anonymous, shared, locked).
	Other int64 `json:"other"`
	// FileCache is the active file cache that the signal counts as used, in bytes.
	FileCache int64 `json:"fileCache"`
}

// Reading returns an observation that was made at a time as a MemoryReading.
func (o *Observation) Reading(at time.Time) MemoryReading {
	const most = 1 << 61 // so that neither a sum nor a difference runs over
	cache := min(max(o.Cache, 0), most)
	return MemoryReading{Time: at, Source: o.Source, Other: min(max(o.Available, -most), most) + cache, FileCache: cache}
}

// GrowthFloor returns the least amount of memory, in bytes, that counts as growth
// for a threshold of so many bytes, where per-CPU counters may hold back drift bytes.
func GrowthFloor(drift, threshold int64) int64 {
	return min(max(leastGrowth, 2*drift), threshold/2)
}

// DefaultGrowthFloor is the growth floor, in bytes, of readings that no per-CPU
// counter blurs: those of a scenario.
const DefaultGrowthFloor = leastGrowth

// Crossing is what readings of one source say of a memory signal that fell
// below a hard threshold, and whether that was file cache's doing.
type Crossing struct {
	// Reference is the reading before the crossing that At is compared with;
	// none where there was no other reading before.
	Reference MemoryReading
	// At is the first reading below the threshold, Now the latest.
	At, Now MemoryReading
	// Recent is the latest reading that is a second older than Now, or more;
	// none where there is none.
	Recent MemoryReading
}

// Answered reports whether the crossing is acted upon now: because other memory
// than file cache brought it, or has grown since, or because it has lasted for
// 10 s. floor is the growth floor in bytes. It allocates nothing.
//
// That all file cache together would not be enough ([MemoryReading].Other is
// below the threshold), and that reclaim stalls, are the caller's to check.
func (c *Crossing) Answered(floor int64) bool {
	return otherGrew(&c.Reference, &c.At, floor) || otherGrew(&c.At, &c.Now, floor) || otherGrew(&c.Recent, &c.Now, floor) ||
		c.Now.Time.Sub(c.At.Time) >= cacheWait
}

// otherGrew reports whether memory other than file cache grew between two
// readings of one source: by floor bytes or more, and by more than file cache.
func otherGrew(from, to *MemoryReading, floor int64) bool {
	if from.Time.IsZero() || from.Source != to.Source {
		return false
	}
	grown := from.Other - to.Other
	return grown >= floor && grown > to.FileCache-from.FileCache
}

const (
	// readingsPerSecond bounds how many readings of a second are remembered.
	readingsPerSecond = 32
	// mostReadings is that for the last second, a second's worth that comes
	// while those leave, and the two older ones that are still needed.
	mostReadings = 2*readingsPerSecond + 2
)

// Readings remembers, for one threshold, the readings that a crossing is
// compared with. They are of one source: a reading of another one replaces
// them. The zero Readings has none. Follow allocates nothing.
type Readings struct {
	list  [mostReadings]pastReading
	count int
}

type pastReading struct {
	MemoryReading
	met bool
}

// add takes in a reading and whether the threshold was met by it. A reading of
// the same time as the last one replaces it.
func (r *Readings) add(m MemoryReading, met bool) {
	list := r.list[:r.count]
	if r.count > 0 && list[0].Source != m.Source {
		r.count = 0
	} else if n := len(list); n > 0 && !m.Time.After(list[n-1].Time) {
		r.count--
	}
	r.drop(m.Time)
	if n := r.count; n >= readingsPerSecond && r.list[n-1].met == met && m.Time.Sub(r.list[n-1].Time) < time.Second/readingsPerSecond {
		return
	}
	if r.count == mostReadings {
		copy(r.list[:], r.list[1:])
		r.count--
	}
	r.list[r.count] = pastReading{m, met}
	r.count++
}

// drop forgets what no later crossing can be compared with: all that is older
// than the latest reading of at least referenceAge, but for the latest of those
// in which the threshold was not met.
func (r *Readings) drop(now time.Time) {
	old := 0
	for old < r.count && now.Sub(r.list[old].Time) >= referenceAge {
		old++
	}
	if old < 2 {
		return
	}
	keep := old - 1
	unmet := keep
	for unmet >= 0 && r.list[unmet].met {
		unmet--
	}
	to := 0
	if unmet >= 0 && unmet < keep {
		r.list[0] = r.list[unmet]
		to = 1
	}
	r.count = to + copy(r.list[to:], r.list[keep:r.count])
}

// Follow takes in a reading and whether the threshold is met by it, and returns what
// the crossing is compared with. at is the first reading below the threshold; the zero
// MemoryReading says that now is.
func (r *Readings) Follow(at, now MemoryReading, met bool) Crossing {
	c := Crossing{At: at, Now: now}
	if at.Time.IsZero() {
		c.At, c.Reference = now, r.before(now.Time)
	} else {
		c.Recent = r.recent(now.Time)
	}
	r.add(now, met)
	return c
}

// before returns the reading that a crossing at a time is compared with: of the
// readings of the 10 s before it in which the threshold was not met (of all,
// the latest, if none is so young) the latest that is a second older, else the
// oldest. Without any it is the zero MemoryReading.
func (r *Readings) before(crossing time.Time) MemoryReading {
	var oldest, latest *pastReading // of those in the window
	var stale *pastReading
	for i := range r.list[:r.count] {
		p := &r.list[i]
		age := crossing.Sub(p.Time)
		switch {
		case p.met || age < 0:
		case age > cacheWait:
			stale = p
		default:
			if oldest == nil {
				oldest = p
			}
			if age >= referenceAge {
				latest = p
			}
		}
	}
	for _, p := range []*pastReading{latest, oldest, stale} {
		if p != nil {
			return p.MemoryReading
		}
	}
	return MemoryReading{}
}

// recent returns the latest reading that is a second older than now, or more;
// the zero MemoryReading where there is none.
func (r *Readings) recent(now time.Time) MemoryReading {
	for i := r.count - 1; i >= 0; i-- {
		if now.Sub(r.list[i].Time) >= referenceAge {
			return r.list[i].MemoryReading
		}
	}
	return MemoryReading{}
}
