package memory

import (
	"errors"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/bpf"
)

// Quick takes a reading for a thread in a hurry: from a tick and a walk of the
// sampler in the kernel, which wait for no lock and take microseconds, and where
// that can't be had from files. It is not safe for concurrent use; what it reads
// from may come and go meanwhile.
type Quick struct {
	// Files is read where the sampler is not there, and for the node in any case. It
	// is Quick's alone.
	Files Files

	sampler atomic.Pointer[Sampler]
	users   atomic.Int32 // of what sampler points to
	counts  [2]atomic.Uint64
	walked  usages // by the last reading; none where that did not tell
}

// Reader takes readings of the memory signals for an alarm that was raised at a
// time: no figure in them is older than that.
type Reader interface {
	Read(now, raised time.Time, into *signal.Observations) Node
	// Look reads what a pod uses, as its Memory tells; ok is false where that takes
	// longer than a limit.
	Look(p Pod, limit time.Duration) (workingSet, anonymous int64, ok bool)
}

// Files is a Reader that reads the node by itself, too.
type Files interface {
	Reader
	// ReadNode fills in memory.available alone, with a capacity of now: memory and
	// huge pages come and go while a node runs.
	ReadNode(now time.Time, into *signal.Observations) Node
}

// NewQuick returns a Quick that reads files, until there is a sampler.
func NewQuick(files Files) *Quick {
	q := &Quick{Files: files}
	q.walked.makeRoom(mostRows)
	return q
}

// mostRows is how many cgroups a walk tells of (bpf.Options: Rows).
const mostRows = 4096

// Sampler is the sampler in the kernel, with what its figures mean.
type Sampler struct {
	*bpf.Sampler
	CountCache bool
	Kubepods   int64 // capacity in bytes; 0 is not known, or no limit
	Pods       bool  // the sampler follows the pods' cgroup
	Armed      []bpf.Threshold
	// Raised tells, by mark, which of them have raised and were not armed again.
	Raised *[signal.Marks]atomic.Bool
}

const (
	// quickLimit is how long the sampler may take.
	quickLimit = 500 * time.Microsecond
	// recent is how old the file figures of the pods may be, if they are not older
	// than the alarm: a crossing that depends on them was found by a walk, and the
	// next has to wait for some times as long as that took.
	recent = time.Millisecond
)

// Read fills in the two memory signals, as [Memory.Read] does, the node from
// /proc/meminfo and the pods from the sampler, where it is there. It allocates nothing
// then. Where the pods can't be read in time, and can't have crossed a hard threshold
// either, they are Unreadable, and the node is not.
func (q *Quick) Read(now, raised time.Time, into *signal.Observations) Node {
	// Whoever takes the sampler away waits for its users.
	q.users.Add(1)
	defer q.users.Add(-1)
	if s := q.sampler.Load(); s != nil {
		if used, ok := s.read(now, raised, into, &q.walked); ok {
			q.counts[0].Add(1)
			node := q.Files.ReadNode(now, into)
			used.of(&node)
			return node
		}
	}
	q.walked.forget()
	q.counts[1].Add(1)
	return q.Files.Read(now, raised, into)
}

// Usage returns the working set of a cgroup at the last reading, and what stood on
// its lists of anonymous memory, tmpfs included, in bytes; ok is false where that did
// not tell, or only in part. It allocates nothing.
func (q *Quick) Usage(cgroup uint64) (workingSet, anonymous int64, ok bool) {
	row := q.walked.find(cgroup)
	if row == nil || row.Partial {
		return 0, 0, false
	}
	return int64(row.WorkingSet()), int64(row.Anon + row.Unevictable), true
}

// Look implements [Reader], by files.
func (q *Quick) Look(p Pod, limit time.Duration) (workingSet, anonymous int64, ok bool) {
	return q.Files.Look(p, limit)
}

// Counts returns how many readings were the sampler's, and how many the files'.
func (q *Quick) Counts() (sampler, files uint64) { return q.counts[0].Load(), q.counts[1].Load() }

// read reads the pods. It reports false where the reading would not be as good as the
// files'.
func (s *Sampler) read(now, raised time.Time, into *signal.Observations, walked *usages) (pods podsMemory, ok bool) {
	asked, ok := bpf.Uptime()
	if !ok {
		return boundless, false
	}
	since := asked - min(max(0, now.Sub(raised)), recent)
	var sample bpf.Sample
	if !s.tick(asked, since, &sample) || !sample.Node.Valid || !s.good(&sample, since) {
		return boundless, false
	}
	walked.forget()
	if s.Pods {
		walked.take(s.Sampler, since)
	}
	s.rearm(&sample)
	into[signal.AllocatableMemoryAvailable], pods = s.allocatable(now, &sample, since)
	return pods, true
}

// good reports whether the sample tells what has to be known of the pods: where
// they were not walked since a time, that they can't have crossed a threshold.
func (s *Sampler) good(sample *bpf.Sample, since time.Duration) bool {
	return !s.Pods || sample.Pods.Valid && (sample.Pods.Walked >= since || s.above(sample))
}

// allocatable is [Memory.readKubepods] from a sample that is good. The usage in it is
// as new as itself, and the file cache as the walk.
func (s *Sampler) allocatable(now time.Time, sample *bpf.Sample, since time.Duration) (signal.Observation, podsMemory) {
	if !s.Pods {
		return signal.Observation{}, noPods
	}
	late := sample.Pods.Walked < since
	pods := podsMemory{int64(sample.Pods.WorkingSet()), int64(sample.Pods.Usage), true}
	if late {
		pods = podsMemory{usage: pods.usage}
	}
	switch {
	case s.Kubepods == 0:
		return signal.Observation{}, pods
	case late:
		return unreadable(now, errNotWalked), pods
	}
	return s.observation(now, s.Kubepods, sample.Pods.WorkingSet(), sample.Pods.ActiveFile), pods
}

var errNotWalked = errors.New("read kubepods' memory: its cgroups were not walked in time, and it is above its thresholds")

// above reports whether no hard threshold of the pods can be crossed, whatever of
// their usage, which is as new as the sample, is file cache.
func (s *Sampler) above(sample *bpf.Sample) bool {
	all := *sample
	all.Pods.InactiveFile, all.Pods.ActiveFile = 0, 0
	for i := range s.Armed {
		t := &s.Armed[i]
		if t.Source == bpf.SourcePods && signal.Mark(t.Key).Hard() && t.Left(&all) < t.Available {
			return false
		}
	}
	return true
}

// tick has the sampler tick, and walk unless it has done so since a time, and
// reports whether there is a tick of after it was asked.
func (s *Sampler) tick(asked, since time.Duration, sample *bpf.Sample) bool {
	var err error
	if !s.Pods || s.Sample(sample) == nil && sample.Pods.Valid && sample.Pods.Walked >= since {
		err = s.Kick()
	} else {
		// A table that is late may come after the tick that matters: what the tick
		// has read tells.
		_ = s.Walk(quickLimit)
	}
	if err != nil {
		return false
	}
	for start := time.Now(); s.Sample(sample) != nil || sample.Time < asked; {
		if time.Since(start) > quickLimit {
			return false
		}
		pause := unix.Timespec{Nsec: 20_000}
		_ = unix.Nanosleep(&pause, nil)
	}
	return true
}

// rearm makes thresholds raise anew that have raised and are above again, of
// which the sampler by itself makes sure by a margin: whoever reads has taken the
// alarm for none, or for over.
func (s *Sampler) rearm(sample *bpf.Sample) {
	for i := range s.Armed {
		t := &s.Armed[i]
		if s.Raised[t.Key].Load() && t.Left(sample) >= t.Available {
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

// SetSampler has the next readings come from the sampler. With nil they come from
// files, and SetSampler returns once no reading uses the sampler any more. q may be nil.
func (q *Quick) SetSampler(s *Sampler) {
	if q == nil {
		return
	}
	q.sampler.Store(s)
	for s == nil && q.users.Load() > 0 {
		time.Sleep(quickLimit / 10)
	}
}
