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

// kubepodsCheckInterval is how often Memory looks for a kubepods cgroup while there is
// none. A kubelet creates it at its start, so a second is soon enough.
const kubepodsCheckInterval = time.Second

// Options say where a Memory reads and how it counts.
type Options struct {
	Procfs    kernel.FS
	Hierarchy *cgroup.Hierarchy
	// CgroupRoot is the cgroup below which kubepods is, normally "/".
	CgroupRoot string
	// CountCache counts active file cache as available, where the kubelet
	// counts it as used.
	CountCache bool
	// Thresholds are the thresholds in force: a reading of kubepods is corrected only if it
	// crosses one of them. Nil corrects each reading.
	Thresholds *SharedThresholds
	// Drift is how many bytes the per-CPU counters may lag behind ([HostDrift]).
	Drift int64
}

// SharedThresholds is a set of thresholds that several readers share.
type SharedThresholds struct {
	thresholds atomic.Pointer[[]signal.Threshold]
}

// Set replaces the thresholds. It is safe for concurrent use.
func (t *SharedThresholds) Set(thresholds []signal.Threshold) { t.thresholds.Store(&thresholds) }

// crosses reports whether an observation is below a threshold. It returns true where the
// thresholds are not known.
func (t *SharedThresholds) crosses(s signal.Signal, o *signal.Observation) bool {
	if t == nil {
		return true
	}
	thresholds := t.thresholds.Load()
	return thresholds == nil || slices.ContainsFunc(*thresholds, func(th signal.Threshold) bool {
		return th.Signal == s && o.Available < th.Value.Amount(o.Capacity)
	})
}

// Memory reads the two memory signals through descriptors that stay open. It is not safe
// for concurrent use.
//
// The node is read from /proc/meminfo, which has the values of the root's memory.stat
// without the wait: memory.stat is flushed every two seconds or by a reader, which may
// wait for other readers (kernel/cgroup/rstat.c).
type Memory struct {
	o        Options
	meminfo  *meminfo.File
	kubepods *cgroup.Cgroup  // nil while there is none
	usageFD  int             // file with the usage of kubepods; -1 for none
	onOpen   func(usage int) // called with usageFD once that is open; may be nil
	// podsKernelUsage is the memory that the kernel uses for the pods, in bytes, as far as
	// correctFileCache knows it: usage of kubepods that is neither anonymous memory nor file
	// cache. Node.KernelUsage is of the whole node.
	podsKernelUsage uint64
	kubepodsChecked time.Time // when kubepods was last looked for
}

// Node is a reading of the node's memory, in bytes.
type Node struct {
	Total, Hugetlb uint64
	// Shmem is tmpfs and other shared memory.
	Shmem uint64
	// Kubepods is the working set of all pods together, and KubepodsUsage their usage with
	// page cache. Both are 0 where there is no kubepods cgroup. KubepodsKnown reports that
	// Kubepods was read. Otherwise KubepodsUsage is an upper bound: math.MaxInt64 where it
	// could not be read either.
	Kubepods, KubepodsUsage int64
	KubepodsKnown           bool
	// KernelUsage is memory of the node that is neither free nor anonymous, file cache or huge
	// pages: slab, page tables, network buffers. No signal shows it.
	KernelUsage int64
}

// MaxKubepods returns an upper bound of the working set of all pods together, in bytes. If
// that was not read, it is the usage less the inactive page cache of an earlier reading:
// cache that has been reclaimed since is missing from the usage too. If the earlier
// reading does not have it either, all page cache counts.
func (n *Node) MaxKubepods(before *Node) int64 {
	switch {
	case n.KubepodsKnown:
		return n.Kubepods
	case !before.KubepodsKnown:
		return n.KubepodsUsage
	}
	return max(0, n.KubepodsUsage-max(0, before.KubepodsUsage-before.Kubepods))
}

// Open opens the files of the signals. A missing kubepods cgroup is no error:
// allocatableMemory.available is then NotObserved.
func Open(o Options) (*Memory, error) {
	file, err := meminfo.Open(o.Procfs)
	if err != nil {
		return nil, err
	}
	return &Memory{o: o, meminfo: file, usageFD: -1}, nil
}

// Close closes all descriptors. It may be called twice.
func (m *Memory) Close() error {
	return errors.Join(m.meminfo.Close(), m.closeKubepods())
}

// closeKubepods closes the descriptors of kubepods.
func (m *Memory) closeKubepods() error {
	var errs []error
	if m.kubepods != nil {
		errs = append(errs, m.kubepods.Close())
	}
	if m.usageFD >= 0 {
		errs = append(errs, os.NewSyscallError("close", unix.Close(m.usageFD)))
	}
	m.kubepods, m.usageFD = nil, -1
	return errors.Join(errs...)
}

// Read sets the two memory signals. One that can't be read is Unreadable with the
// reason; the other is still read.
func (m *Memory) Read(now time.Time, into *signal.Observations) Node {
	node := m.readNode(now, into)
	o, used := m.readKubepods(now)
	into[signal.AllocatableMemoryAvailable] = o
	used.applyTo(&node)
	return node
}

// readNode sets memory.available: MemTotal less the working set, less huge pages, which
// only their owners can use (as the kubelet computes it from 1.37).
func (m *Memory) readNode(now time.Time, into *signal.Observations) Node {
	var info meminfo.Info
	if err := m.meminfo.Read(&info); err != nil {
		into[signal.MemoryAvailable] = unreadable(now, err)
		return Node{}
	}
	fileAndAnon := info.FileAndAnon()
	node := Node{
		Total: info.MemTotal, Hugetlb: info.Hugetlb, Shmem: info.Shmem,
		KernelUsage: int64(info.MemTotal) - int64(info.MemFree) - int64(fileAndAnon) - int64(info.Hugetlb),
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

// kubepodsReading is what all pods use together, in bytes: see [Node].
type kubepodsReading struct {
	workingSet, usage int64
	known             bool
}

func (r kubepodsReading) applyTo(n *Node) {
	n.Kubepods, n.KubepodsUsage, n.KubepodsKnown = r.workingSet, r.usage, r.known
}

// noPods is the reading where there is no kubepods cgroup, and unknownUsage where its usage
// could not be read.
var noPods, unknownUsage = kubepodsReading{known: true}, kubepodsReading{usage: math.MaxInt64}

// readKubepods reads kubepods. The observation is the limit less the working set; it is
// NotObserved where the cgroup or its limit is missing. If it crosses a threshold, the file
// cache is corrected first. readKubepods opens the cgroup if it is not open, and closes it
// after an error, so that the next reading opens the current one.
func (m *Memory) readKubepods(now time.Time) (signal.Observation, kubepodsReading) {
	if m.kubepods == nil {
		if now.Sub(m.kubepodsChecked) < kubepodsCheckInterval && !m.kubepodsChecked.IsZero() {
			return signal.Observation{}, noPods
		}
		m.kubepodsChecked = now
		found, err := m.findKubepods()
		if err != nil {
			m.kubepodsChecked = time.Time{} // there may be one: look again at the next reading
			return unreadable(now, fmt.Errorf("open kubepods: %w", err)), unknownUsage
		}
		if !found {
			return signal.Observation{}, noPods
		}
	}
	var used cgroup.Memory
	if err := m.kubepods.ReadMemory(&used); err != nil {
		usage := readUsage(m.usageFD)
		m.closeKubepods()
		if errors.Is(err, cgroup.ErrGone) {
			return signal.Observation{}, noPods
		}
		m.kubepodsChecked = time.Time{}
		return unreadable(now, fmt.Errorf("read kubepods' memory: %w", err)), usage
	}
	pods := kubepodsReading{int64(used.WorkingSet), int64(used.Usage), true}
	if !used.Limited {
		return signal.Observation{}, pods
	}
	o := m.observation(now, int64(used.Limit), &used)
	if m.o.Thresholds.crosses(signal.AllocatableMemoryAvailable, &o) && m.correctFileCache(&used) {
		pods.workingSet = int64(used.WorkingSet)
		o = m.observation(now, int64(used.Limit), &used)
		o.Source = signal.CgroupFiles
	}
	return o, pods
}

// maxUnsummedCharge is by how many bytes the usage may exceed the sum of memory.stat while
// both are right: CPUs charge in batches ahead of use, and memory.stat lags (mm/memcontrol.c:
// MEMCG_CHARGE_BATCH, NR_MEMCG_STOCK). It allows for a few CPUs.
const maxUnsummedCharge = 8 << 20

// correctFileCache sums the file cache of the cgroups below kubepods where memory.stat of
// kubepods leaves much of the usage unaccounted for, and reports whether it corrected used.
// memory.stat of kubepods may lag by all that was cached within two seconds, and that cache
// would count as working set.
//
// It sets m.podsKernelUsage to what the sum leaves unaccounted for, so that it sums again
// only if more is. Without a sum it can only lower m.podsKernelUsage.
func (m *Memory) correctFileCache(used *cgroup.Memory) bool {
	unaccounted := used.Usage - min(used.Usage, used.Anon+used.File)
	m.podsKernelUsage = min(m.podsKernelUsage, unaccounted)
	if unaccounted <= m.podsKernelUsage+maxUnsummedCharge {
		return false
	}
	cache, err := m.kubepods.SumFileCache()
	if err != nil {
		return false // keep the values that were read
	}
	listed, found := used.InactiveFile+used.ActiveFile, cache.Inactive+cache.Active
	m.podsKernelUsage = unaccounted - min(unaccounted, found-min(found, listed))
	if cache.Inactive <= used.InactiveFile {
		return false
	}
	used.InactiveFile, used.ActiveFile = cache.Inactive, cache.Active
	used.WorkingSet = used.Usage - min(used.Usage, cache.Inactive)
	return true
}

// findKubepods opens the kubepods cgroup and reports whether there is one.
func (m *Memory) findKubepods() (bool, error) {
	found, ok, err := m.o.Hierarchy.Kubepods(m.o.CgroupRoot)
	if err == nil && ok {
		if m.kubepods, err = m.o.Hierarchy.Open(found.Path); err == nil {
			m.usageFD = openUsage(m.o.Hierarchy, found.Path)
			if m.onOpen != nil {
				m.onOpen(m.usageFD)
			}
		}
	}
	if errors.Is(err, cgroup.ErrGone) {
		return false, nil
	}
	return m.kubepods != nil, err
}

// openUsage opens the file with the usage of a cgroup. It returns -1 if there is none.
func openUsage(h *cgroup.Hierarchy, path string) int {
	for _, name := range []string{"memory.current", "memory.usage_in_bytes"} {
		if fd, err := unix.Open(h.Memory.Path(path, name), unix.O_RDONLY|unix.O_CLOEXEC, 0); err == nil {
			return fd
		}
	}
	return -1
}

// readUsage reads the usage of kubepods, page cache included. The file is a single
// counter (mm/memcontrol.c: memory_current_read), so the read does not block.
func readUsage(fd int) kubepodsReading {
	var buf [32]byte
	n, err := unix.Pread(fd, buf[:], 0)
	if err != nil {
		return unknownUsage
	}
	usage, err := strconv.ParseInt(string(bytes.TrimSuffix(buf[:n], []byte{'\n'})), 10, 64)
	if err != nil || usage < 0 {
		return unknownUsage
	}
	return kubepodsReading{usage: usage}
}

func unreadable(now time.Time, err error) signal.Observation {
	return signal.Observation{Status: signal.Unreadable, Time: now, Err: err}
}
