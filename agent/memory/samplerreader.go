package memory

import (
	"errors"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/bpf"
)

// SamplerReader reads the memory signals with low latency: kubepods from a tick and a walk of
// the BPF sampler, which take no lock and finish in microseconds, or from files where the
// sampler can't provide it. It is not safe for concurrent use, except that the sampler may
// be replaced at any time.
type SamplerReader struct {
	// Files is read for the node, and for kubepods without the sampler. Nothing else uses it.
	Files Files

	sampler atomic.Pointer[Sampler]
	inUse   atomic.Int32 // readings that use sampler now
	rows    rowIndex     // of the last reading; empty if that had no complete walk

	samplerReadings, fileReadings atomic.Uint64
}

// Reader reads the memory signals to confirm an alarm: no value is older than raised.
type Reader interface {
	Read(now, raised time.Time, into *signal.Observations) Node
	// ReadPod reads the usage of a pod, as [Pod].Memory returns it. ok is false if that fails or
	// takes longer than limit.
	ReadPod(p Pod, limit time.Duration) (workingSet, anonymous int64, ok bool)
}

// Files is a Reader that can also read the node alone.
type Files interface {
	Reader
	// ReadNode sets memory.available with the current capacity: memory and huge pages are
	// added and removed while a node runs.
	ReadNode(now time.Time, into *signal.Observations) Node
}

// NewSamplerReader returns a [SamplerReader] that reads files until SetSampler is called.
func NewSamplerReader(files Files) *SamplerReader {
	r := &SamplerReader{Files: files}
	r.rows.reserve(maxRows)
	return r
}

// maxRows is how many cgroups a walk returns at most (bpf.Options: Rows).
const maxRows = 4096

// Sampler is the BPF sampler, with what is needed to interpret its values.
type Sampler struct {
	*bpf.Sampler
	CountCache bool
	Kubepods   int64 // capacity in bytes; 0 if not known or unlimited
	Pods       bool  // the sampler follows kubepods
	Armed      []bpf.Threshold
	// Raised is set, by threshold, while a threshold has raised an alarm and is not armed
	// again.
	Raised *[signal.ThresholdIDCount]atomic.Bool
}

const (
	// samplerDeadline bounds a tick and a walk of the sampler, which normally take
	// microseconds. It is small against ReadTimeout, so an alarm can still read files.
	samplerDeadline = 500 * time.Microsecond
	// maxWalkAge is how old a walk may be that confirms an alarm, if it is not older than the
	// alarm: a crossing that depends on file cache was found by a walk, and the sampler then
	// pauses for several times as long as that walk took.
	maxWalkAge = time.Millisecond
)

// Read sets the two memory signals: the node from /proc/meminfo, and kubepods from the
// sampler if there is one. It then does not allocate. If the sampler can't walk kubepods
// in time, and no hard threshold can be crossed, allocatableMemory.available is Unreadable
// and the node is still read.
func (r *SamplerReader) Read(now, raised time.Time, into *signal.Observations) Node {
	// SetSampler(nil) waits until inUse is 0.
	r.inUse.Add(1)
	defer r.inUse.Add(-1)
	if s := r.sampler.Load(); s != nil {
		if used, ok := s.read(now, raised, into, &r.rows); ok {
			r.samplerReadings.Add(1)
			node := r.Files.ReadNode(now, into)
			used.applyTo(&node)
			return node
		}
	}
	r.rows.reset()
	r.fileReadings.Add(1)
	return r.Files.Read(now, raised, into)
}

// Usage returns the working set of a cgroup at the last reading, and the size of its
// anonymous LRU lists (tmpfs included), in bytes. ok is false if the last walk did not
// read the cgroup, or read only a part of it. It does not allocate.
func (r *SamplerReader) Usage(cgroup uint64) (workingSet, anonymous int64, ok bool) {
	row := r.rows.find(cgroup)
	if row == nil || row.Partial {
		return 0, 0, false
	}
	return int64(row.WorkingSet()), int64(row.Anon + row.Unevictable), true
}

// ReadPod implements [Reader]. It reads files.
func (r *SamplerReader) ReadPod(p Pod, limit time.Duration) (workingSet, anonymous int64, ok bool) {
	return r.Files.ReadPod(p, limit)
}

// Counts returns how many readings came from the sampler, and how many from files.
func (r *SamplerReader) Counts() (sampler, files uint64) {
	return r.samplerReadings.Load(), r.fileReadings.Load()
}

// read reads kubepods, and fills walked with the rows of its cgroups. ok is false if files
// have to be read instead.
func (s *Sampler) read(now, raised time.Time, into *signal.Observations, walked *rowIndex) (pods kubepodsReading, ok bool) {
	requested, ok := bpf.MonotonicTime()
	if !ok {
		return unknownUsage, false
	}
	since := requested - min(max(0, now.Sub(raised)), maxWalkAge)
	var sample bpf.Sample
	if !s.tick(requested, since, &sample) || !sample.Node.Valid || !s.fresh(&sample, since) {
		return unknownUsage, false
	}
	walked.reset()
	if s.Pods {
		walked.load(s.Sampler, since)
	}
	s.rearm(&sample)
	into[signal.AllocatableMemoryAvailable], pods = s.allocatable(now, &sample, since)
	return pods, true
}

// fresh reports whether the sample is sufficient for kubepods: it was walked after since,
// or can't have crossed a threshold.
func (s *Sampler) fresh(sample *bpf.Sample, since time.Duration) bool {
	return !s.Pods || sample.Pods.Valid && (sample.Pods.Walked >= since || s.clearlyAbove(sample))
}

// allocatable returns what [Memory.readKubepods] returns, from a sample that is fresh. The
// usage is as new as the sample, and the file cache as new as the walk.
func (s *Sampler) allocatable(now time.Time, sample *bpf.Sample, since time.Duration) (signal.Observation, kubepodsReading) {
	if !s.Pods {
		return signal.Observation{}, noPods
	}
	late := sample.Pods.Walked < since
	pods := kubepodsReading{int64(sample.Pods.WorkingSet()), int64(sample.Pods.Usage), true}
	if late {
		pods = kubepodsReading{usage: pods.usage}
	}
	switch {
	case s.Kubepods == 0:
		return signal.Observation{}, pods
	case late:
		return unreadable(now, errNotWalked), pods
	}
	return s.observation(now, s.Kubepods, sample.Pods.WorkingSet(), sample.Pods.ActiveFile), pods
}

var errNotWalked = errors.New("read memory of kubepods: no walk of its cgroups in time; usage alone shows that no hard threshold is crossed")

// clearlyAbove reports whether no hard threshold of kubepods can be crossed, even if none
// of the usage in the sample is file cache.
func (s *Sampler) clearlyAbove(sample *bpf.Sample) bool {
	all := *sample
	all.Pods.InactiveFile, all.Pods.ActiveFile = 0, 0
	for i := range s.Armed {
		t := &s.Armed[i]
		if t.Source == bpf.SourcePods && signal.ThresholdID(t.Key).Hard() && t.AvailableIn(&all) < t.Available {
			return false
		}
	}
	return true
}

// tick makes the sampler tick, and walk unless its last walk is not older than since. It
// reports whether sample is from a tick after requested.
func (s *Sampler) tick(requested, since time.Duration, sample *bpf.Sample) bool {
	var err error
	if !s.Pods || s.Sample(sample) == nil && sample.Pods.Valid && sample.Pods.Walked >= since {
		err = s.Kick()
	} else {
		// If the walk is late, the sample still has the usage of the tick.
		_ = s.Walk(samplerDeadline)
	}
	if err != nil {
		return false
	}
	for start := time.Now(); s.Sample(sample) != nil || sample.Time < requested; {
		if time.Since(start) > samplerDeadline {
			return false
		}
		pause := unix.Timespec{Nsec: 20_000}
		_ = unix.Nanosleep(&pause, nil)
	}
	return true
}

// rearm arms thresholds again that have raised an alarm and are not crossed any more. The
// sampler itself would wait for a margin above the threshold. The reader has seen that the
// alarm was false or is over.
func (s *Sampler) rearm(sample *bpf.Sample) {
	for i := range s.Armed {
		t := &s.Armed[i]
		if s.Raised[t.Key].Load() && t.AvailableIn(sample) >= t.Available {
			s.Raised[t.Key].Store(s.Rearm(i) != nil)
		}
	}
}

func (s *Sampler) observation(now time.Time, capacity int64, workingSet, activeFile uint64) signal.Observation {
	o := signal.Observation{
		Status: signal.Observed, Capacity: capacity, Time: now,
		Cache: int64(min(activeFile, workingSet)), Source: signal.Sampler,
	}
	o.Available = max(0, capacity-int64(workingSet))
	if s.CountCache {
		o.Available = max(0, capacity-int64(workingSet)+o.Cache)
		o.Cache = 0
	}
	return o
}

// SetSampler makes readings use the sampler. With nil they use files, and SetSampler
// returns once no reading uses the old sampler. r may be nil.
func (r *SamplerReader) SetSampler(s *Sampler) {
	if r == nil {
		return
	}
	r.sampler.Store(s)
	for s == nil && r.inUse.Load() > 0 {
		time.Sleep(samplerDeadline / 10)
	}
}
