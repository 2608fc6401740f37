package signal

import "time"

// KubeletInterval is the kubelet's monitoring period (pkg/kubelet: evictionMonitoringPeriod).
// It is how often evictd looks at what changes slowly and is not reported, and how long a
// crossing that file cache caused must last before a pod is evicted for it: so long it may
// last without the kubelet seeing it.
const KubeletInterval = 10 * time.Second

const (
	// minGrowth is the least growth of memory, in bytes, that is not treated as noise.
	minGrowth = 32 << 20
	// minReferenceAge is the minimum age of a reading that the current one is compared
	// with. Over less than 1 s, slow growth cannot be distinguished from noise.
	minReferenceAge = time.Second
)

// Source is the origin of a memory signal's reading. Readings of different sources are
// never compared, because the kernel updates their counters at different times.
type Source uint8

const (
	// Files: /proc/meminfo, and memory.stat of kubepods.
	Files Source = iota
	// Sampler: the BPF sampler's node counters, or one BPF walk of the pods' cgroups.
	Sampler
	// CgroupFiles: memory.stat of every cgroup of the pods, used if memory.stat of
	// kubepods itself lags behind them.
	CgroupFiles
)

// MemoryReading is one reading of a memory signal, with file cache counted separately.
// The zero MemoryReading means that there is no reading.
type MemoryReading struct {
	Time   time.Time `json:"time"`
	Source Source    `json:"source,omitempty"`
	// Other is the available memory, in bytes, if active file cache counted as free. It
	// falls by the growth of all other memory (anonymous, shared, locked).
	Other int64 `json:"other"`
	// FileCache is the active file cache that the signal counts as used, in bytes.
	FileCache int64 `json:"fileCache"`
}

// Reading returns the observation as a MemoryReading with the time at.
func (o *Observation) Reading(at time.Time) MemoryReading {
	const most = 1 << 61 // so that neither a sum nor a difference overflows
	cache := min(max(o.Cache, 0), most)
	return MemoryReading{Time: at, Source: o.Source, Other: min(max(o.Available, -most), most) + cache, FileCache: cache}
}

// GrowthFloor returns the least growth of memory, in bytes, that is not treated as
// noise for a threshold (in bytes), if per-CPU counters may lag by drift bytes. The drift
// counts twice, because growth is the difference of two readings.
func GrowthFloor(drift, threshold int64) int64 {
	return min(max(minGrowth, 2*drift), threshold/2)
}

// DefaultGrowthFloor is the growth floor, in bytes, for readings without per-CPU drift:
// those of a scenario.
const DefaultGrowthFloor = minGrowth

// Crossing is a fall of a memory signal below a hard threshold, with the readings that
// show whether file cache caused it. All readings are of one source.
type Crossing struct {
	// Reference is the latest suitable reading before the crossing, with which the
	// first reading below the threshold is compared; zero if there is none.
	Reference MemoryReading
	// First is the first reading below the threshold.
	First MemoryReading
	// Latest is the latest reading.
	Latest MemoryReading
	// Previous is the latest reading that is at least 1 s older than the current one;
	// zero if there is none.
	Previous MemoryReading
}

// ActNow reports whether the crossing must be acted on now: memory other than file
// cache caused it or has grown since, or the crossing has lasted for 10 s. floor is the
// growth floor in bytes. It does not allocate.
//
// The caller checks two more reasons to act: [MemoryReading].Other is below the
// threshold, so that reclaiming all file cache would not be enough; or reclaim stalls.
func (c *Crossing) ActNow(floor int64) bool {
	return otherGrew(&c.Reference, &c.First, floor) || otherGrew(&c.First, &c.Latest, floor) || otherGrew(&c.Previous, &c.Latest, floor) ||
		c.Latest.Time.Sub(c.First.Time) >= KubeletInterval
}

// otherGrew reports whether memory other than file cache grew between two readings of
// one source by at least floor bytes and by more than file cache.
func otherGrew(from, to *MemoryReading, floor int64) bool {
	if from.Time.IsZero() || from.Source != to.Source {
		return false
	}
	grown := from.Other - to.Other
	return grown >= floor && grown > to.FileCache-from.FileCache
}

const (
	// readingsPerSecond bounds how many readings per second are kept.
	readingsPerSecond = 32
	// maxReadings is enough for the last second, for the readings of one more second
	// that arrive before those expire, and for the two older readings that trim keeps.
	maxReadings = 2*readingsPerSecond + 2
)

// Readings are the recent readings of one threshold's signal, with which a crossing is
// compared. They are all of one source: a reading of another source replaces them. The
// zero Readings is empty. Its methods do not allocate.
type Readings struct {
	// Measured says that the readings are of a kernel and not of a scenario. Memory that
	// was in use for less than minReferenceAge is then not compared with (see lower).
	Measured bool
	readings [maxReadings]pastReading
	count    int
}

type pastReading struct {
	MemoryReading
	met bool // the threshold was met by this reading
}

// record adds a reading; met says whether the threshold is met by it. A reading that is
// not newer than the last one replaces it. Once there are readingsPerSecond readings,
// one that comes too soon after the last is dropped, unless met differs.
func (r *Readings) record(m MemoryReading, met bool) {
	list := r.readings[:r.count]
	if r.count > 0 && list[0].Source != m.Source {
		r.count = 0
	} else if n := len(list); n > 0 && !m.Time.After(list[n-1].Time) {
		r.count--
	}
	r.trim(m.Time)
	if r.Measured {
		r.lower(pastReading{m, met})
	}
	if n := r.count; n >= readingsPerSecond && r.readings[n-1].met == met && m.Time.Sub(r.readings[n-1].Time) < time.Second/readingsPerSecond {
		return
	}
	if r.count == maxReadings {
		copy(r.readings[:], r.readings[1:])
		r.count--
	}
	r.readings[r.count] = pastReading{m, met}
	r.count++
}

// lower lowers the readings of the last minReferenceAge to the least use of other memory and
// of file cache in a newer one. Growth is then measured neither from the memory of a process
// that ran for a moment, nor from that of a victim, of which the kernel has freed only part
// when the crossing ends (mm/mmap.c: exit_mmap). The figures are lowered separately, so that
// the growth of file cache is that since the time of the reading or more. The BPF sampler
// keeps the point of each second with the least other memory instead, with its time
// (bpf/growth.h: take_reference).
func (r *Readings) lower(newer pastReading) {
	for i := r.count - 1; i >= 0 && newer.Time.Sub(r.readings[i].Time) < minReferenceAge; i-- {
		p := &r.readings[i]
		p.Other, p.FileCache, p.met = max(p.Other, newer.Other), min(p.FileCache, newer.FileCache), p.met && newer.met
	}
}

// trim removes the readings that no later crossing can be compared with. Of those that
// are at least minReferenceAge old, it keeps the latest, and the latest by which the
// threshold was not met.
func (r *Readings) trim(now time.Time) {
	old := 0
	for old < r.count && now.Sub(r.readings[old].Time) >= minReferenceAge {
		old++
	}
	if old < 2 {
		return
	}
	keep := old - 1
	unmet := keep
	for unmet >= 0 && r.readings[unmet].met {
		unmet--
	}
	to := 0
	if unmet >= 0 && unmet < keep {
		r.readings[0] = r.readings[unmet]
		to = 1
	}
	r.count = to + copy(r.readings[to:], r.readings[keep:r.count])
}

// Add adds the reading latest and returns the crossing up to it. met says whether the
// threshold is met by latest. first is the first reading below the threshold; if it is
// zero, latest is the first.
func (r *Readings) Add(first, latest MemoryReading, met bool) Crossing {
	c := Crossing{First: first, Latest: latest}
	if first.Time.IsZero() {
		c.First, c.Reference = latest, r.reference(latest.Time)
	} else {
		c.Previous = r.previous(latest.Time)
	}
	r.record(latest, met)
	return c
}

// reference returns the reading that a crossing at a time is compared with. Among the
// readings of the 10 s before the crossing by which the threshold was not met, it is
// the latest that is at least 1 s older, else the oldest. If there is none in those
// 10 s, it is the latest older one; without any, the zero MemoryReading.
func (r *Readings) reference(crossing time.Time) MemoryReading {
	var latest, oldest *pastReading // within KubeletInterval
	var stale *pastReading          // older
	for i := range r.readings[:r.count] {
		p := &r.readings[i]
		age := crossing.Sub(p.Time)
		switch {
		case p.met || age < 0:
		case age > KubeletInterval:
			stale = p
		default:
			if oldest == nil {
				oldest = p
			}
			if age >= minReferenceAge {
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

// previous returns the latest reading that is at least 1 s older than now, or the zero
// MemoryReading if there is none.
func (r *Readings) previous(now time.Time) MemoryReading {
	for i := r.count - 1; i >= 0; i-- {
		if now.Sub(r.readings[i].Time) >= minReferenceAge {
			return r.readings[i].MemoryReading
		}
	}
	return MemoryReading{}
}
