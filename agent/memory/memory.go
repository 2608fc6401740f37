package memory

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/meminfo"
)

// lookAgain is how long a node that has no kubepods cgroup, or lost it, is
// believed to have none.
const lookAgain = time.Second

// MemoryOptions say where a Memory reads and how it counts.
type Options struct {
	Procfs    kernel.FS
	Hierarchy *cgroup.Hierarchy
	// CgroupRoot is the cgroup below which kubepods is, normally "/".
	CgroupRoot string
	// CountCache counts active file cache as available, where the kubelet
	// counts it as used.
	CountCache bool
	// Armed are the thresholds that readings matter for; nil is any.
	Armed *Armed
	// Drift is how many bytes per-CPU counters may hold back (HostDrift).
	Drift int64
}

// Armed are thresholds that several share.
type Armed struct {
	thresholds atomic.Pointer[[]signal.Threshold]
}

// Set tells which are armed now. It may be called at any time.
func (a *Armed) Set(thresholds []signal.Threshold) { a.thresholds.Store(&thresholds) }

// crosses reports whether an observation is below a threshold, or may be.
func (a *Armed) crosses(s signal.Signal, o *signal.Observation) bool {
	if a == nil {
		return true
	}
	thresholds := a.thresholds.Load()
	return thresholds == nil || slices.ContainsFunc(*thresholds, func(t signal.Threshold) bool {
		return t.Signal == s && o.Available < t.Value.Amount(o.Capacity)
	})
}

// Memory reads the two memory signals, through descriptors that it holds. It
// is not safe for concurrent use.
//
// The node's is read from /proc/meminfo, which has the figures of the root's
// memory.stat, and has them at once: those are summed up every two seconds or when
// somebody reads them, which may have to wait for others that do
// (kernel/cgroup/rstat.c).
type Memory struct {
	o        Options
	meminfo  *meminfo.File
	kubepods *cgroup.Cgroup // nil where there is none
	usage    int            // the file with its usage; -1 where there is none
	opened   func(usage int)
	// explained is how much of what the pods use is neither anonymous nor file cache
	// for certain: the kernel's own.
	explained uint64
	looked    time.Time // for kubepods, last
}

// NodeMemory is a reading of the node's memory, in bytes.
type Node struct {
	Total, Hugetlb uint64
	// Shmem is tmpfs and other shared memory.
	Shmem uint64
	// Kubepods is the working set of all pods together, and KubepodsUsage what they
	// use with page cache; both are 0 where no cgroup holds them. KubepodsKnown tells
	// that the first was read. Without, the second alone says how much it is at most:
	// the largest number where not even that was read.
	Kubepods, KubepodsUsage int64
	KubepodsKnown           bool
	// Unaccounted is what is neither free nor anonymous, file cache or huge
	// pages: the kernel's own, page tables, network buffers. No signal sees it.
	Unaccounted int64
}

// Most returns the working set of all pods together, in bytes, or where that was
// not read the most that it can be, if the inactive page cache is still what it was
// in an earlier reading: what of that has been reclaimed since is missing from the
// usage of the pods that had it, too. Where the earlier reading does not know, all
// page cache counts.
func (n *Node) Most(before *Node) int64 {
	switch {
	case n.KubepodsKnown:
		return n.Kubepods
	case !before.KubepodsKnown:
		return n.KubepodsUsage
	}
	return max(0, n.KubepodsUsage-max(0, before.KubepodsUsage-before.Kubepods))
}

// OpenMemory opens what the signals are read from. Missing kubepods is no
// error: allocatableMemory.available then does not apply.
func Open(o Options) (*Memory, error) {
	file, err := meminfo.Open(o.Procfs)
	if err != nil {
		return nil, err
	}
	return &Memory{o: o, meminfo: file, usage: -1}, nil
}

// Close closes what is held open. It may be called twice.
func (m *Memory) Close() error {
	return errors.Join(m.meminfo.Close(), m.leaveKubepods())
}

// leaveKubepods closes what is open of kubepods.
func (m *Memory) leaveKubepods() error {
	var errs []error
	if m.kubepods != nil {
		errs = append(errs, m.kubepods.Close())
	}
	if m.usage >= 0 {
		errs = append(errs, os.NewSyscallError("close", unix.Close(m.usage)))
	}
	m.kubepods, m.usage = nil, -1
	return errors.Join(errs...)
}

// Read fills in the two memory signals. One that cannot be read is Unreadable
// and says why; the other is not touched by that.
func (m *Memory) Read(now time.Time, into *signal.Observations) Node {
	node := m.readNode(now, into)
	o, used := m.readKubepods(now)
	into[signal.AllocatableMemoryAvailable] = o
	used.of(&node)
	return node
}

// readNode fills in the node's signal: MemTotal less the working set, less the
// huge pages, which nobody but their owners can use (as the kubelet does from
// 1.37).
func (m *Memory) readNode(now time.Time, into *signal.Observations) Node {
	var info meminfo.Info
	if err := m.meminfo.Read(&info); err != nil {
		into[signal.MemoryAvailable] = unreadable(now, err)
		return Node{}
	}
	fileAndAnon := info.FileAndAnon()
	node := Node{
		Total: info.MemTotal, Hugetlb: info.Hugetlb, Shmem: info.Shmem,
		Unaccounted: int64(info.MemTotal) - int64(info.MemFree) - int64(fileAndAnon) - int64(info.Hugetlb),
	}
	used := cgroup.Memory{WorkingSet: info.WorkingSet(), ActiveFile: info.ActiveFile}
	into[signal.MemoryAvailable] = m.observation(now, int64(info.MemTotal)-int64(info.Hugetlb), &used)
	return node
}

func (m *Memory) observation(now time.Time, capacity int64, used *cgroup.Memory) signal.Observation {
	o := signal.Observation{
		Status: signal.Observed, Capacity: capacity, Time: now,
		Available: max(0, capacity-int64(used.WorkingSet)),
		Cache:     int64(min(used.ActiveFile, used.WorkingSet)),
	}
	if m.o.CountCache {
		o.Available = max(0, capacity-int64(used.WorkingSet)+o.Cache)
		o.Cache = 0
	}
	return o
}

// podsMemory is what all pods use together, in bytes, as in [NodeMemory].
type podsMemory struct {
	workingSet, usage int64
	known             bool
}

func (p podsMemory) of(n *Node) {
	n.Kubepods, n.KubepodsUsage, n.KubepodsKnown = p.workingSet, p.usage, p.known
}

// noPods is the usage where no cgroup holds them, and boundless where nothing of it
// could be read.
var noPods, boundless = podsMemory{known: true}, podsMemory{usage: math.MaxInt64}

// readKubepods is the limit of the kubepods cgroup less its working set, and what
// it uses. A node without the cgroup, or without a limit on it, has no such signal.
func (m *Memory) readKubepods(now time.Time) (signal.Observation, podsMemory) {
	if m.kubepods == nil {
		if now.Sub(m.looked) < lookAgain && !m.looked.IsZero() {
			return signal.Observation{}, noPods
		}
		m.looked = now
		found, err := m.findKubepods()
		if err != nil {
			m.looked = time.Time{} // that there is none can't be told
			return unreadable(now, fmt.Errorf("open kubepods: %w", err)), boundless
		}
		if !found {
			return signal.Observation{}, noPods
		}
	}
	var used cgroup.Memory
	if err := m.kubepods.ReadMemory(&used); err != nil {
		usage := readUsage(m.usage)
		m.leaveKubepods()
		if errors.Is(err, cgroup.ErrGone) {
			return signal.Observation{}, noPods
		}
		m.looked = time.Time{}
		return unreadable(now, fmt.Errorf("read kubepods' memory: %w", err)), usage
	}
	pods := podsMemory{int64(used.WorkingSet), int64(used.Usage), true}
	if !used.Limited {
		return signal.Observation{}, pods
	}
	o := m.observation(now, int64(used.Limit), &used)
	if m.o.Armed.crosses(signal.AllocatableMemoryAvailable, &o) && m.complete(&used) {
		pods.workingSet = int64(used.WorkingSet)
		o = m.observation(now, int64(used.Limit), &used)
		o.Source = signal.CgroupFiles
	}
	return o, pods
}

// unexplainedMost is how far usage may be ahead of what memory.stat tells: what CPUs
// have charged beforehand, and not summed up yet (mm/memcontrol.c: MEMCG_CHARGE_BATCH,
// NR_MEMCG_STOCK), on a few of them.
const unexplainedMost = 8 << 20

// complete corrects the file cache of the pods where memory.stat does not tell of much
// that they use, and reports whether it did. The kernel may leave kubepods' behind by
// all that was cached within two seconds, which would be taken for a working set then.
func (m *Memory) complete(used *cgroup.Memory) bool {
	unexplained := used.Usage - min(used.Usage, used.Anon+used.File)
	m.explained = min(m.explained, unexplained)
	if unexplained <= m.explained+unexplainedMost {
		return false
	}
	cache, err := m.kubepods.FileCacheBelow()
	if err != nil {
		return false // what can't be looked at closer is what it was read as
	}
	told, found := used.InactiveFile+used.ActiveFile, cache.Inactive+cache.Active
	m.explained = unexplained - min(unexplained, found-min(found, told))
	if cache.Inactive <= used.InactiveFile {
		return false
	}
	used.InactiveFile, used.ActiveFile = cache.Inactive, cache.Active
	used.WorkingSet = used.Usage - min(used.Usage, cache.Inactive)
	return true
}

// findKubepods opens the cgroup, and reports whether there is one.
func (m *Memory) findKubepods() (bool, error) {
	found, ok, err := m.o.Hierarchy.Kubepods(m.o.CgroupRoot)
	if err == nil && ok {
		if m.kubepods, err = m.o.Hierarchy.Open(found.Path); err == nil {
			m.usage = openUsage(m.o.Hierarchy, found.Path)
			if m.opened != nil {
				m.opened(m.usage)
			}
		}
	}
	if errors.Is(err, cgroup.ErrGone) {
		return false, nil
	}
	return m.kubepods != nil, err
}

// openUsage opens the file with a cgroup's usage; -1 is none.
func openUsage(h *cgroup.Hierarchy, path string) int {
	for _, name := range []string{"memory.current", "memory.usage_in_bytes"} {
		if fd, err := unix.Open(h.Memory.Path(path, name), unix.O_RDONLY|unix.O_CLOEXEC, 0); err == nil {
			return fd
		}
	}
	return -1
}

// readUsage reads what the pods use, page cache included. The file is a single
// counter (mm/memcontrol.c: memory_current_read), for which nobody waits.
func readUsage(fd int) podsMemory {
	var buf [32]byte
	n, err := unix.Pread(fd, buf[:], 0)
	if err != nil {
		return boundless
	}
	usage, err := strconv.ParseInt(string(bytes.TrimSuffix(buf[:n], []byte{'\n'})), 10, 64)
	if err != nil || usage < 0 {
		return boundless
	}
	return podsMemory{usage: usage}
}

func unreadable(now time.Time, err error) signal.Observation {
	return signal.Observation{Status: signal.Unreadable, Time: now, Err: err}
}
