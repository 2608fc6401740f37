package lanes

import (
	"errors"
	"fmt"
	"time"

	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/meminfo"
)

// lookAgain is how long a node that has no kubepods cgroup, or lost it, is
// believed to have none.
const lookAgain = time.Second

// MemoryOptions say where a Memory reads and how it counts.
type MemoryOptions struct {
	Procfs    kernel.FS
	Hierarchy *cgroup.Hierarchy
	// CgroupRoot is the cgroup below which kubepods is, normally "/".
	CgroupRoot string
	// CountCache counts active file cache as available, where the kubelet
	// counts it as used.
	CountCache bool
}

// Memory reads the two memory signals, through descriptors that it holds. It
// is not safe for concurrent use.
type Memory struct {
	o        MemoryOptions
	meminfo  *meminfo.File
	root     *cgroup.Cgroup
	kubepods *cgroup.Cgroup // nil where there is none
	looked   time.Time      // for kubepods, last
}

// NodeMemory is a reading of the node's memory, in bytes.
type NodeMemory struct {
	Total, Hugetlb uint64
	// Kubepods is the working set of all pods together; 0 where no cgroup holds
	// them.
	Kubepods int64
	// Unaccounted is what is neither free nor anonymous, file cache or huge
	// pages: the kernel's own, page tables, network buffers. No signal sees it.
	Unaccounted int64
}

// OpenMemory opens what the signals are read from. Missing kubepods is no
// error: allocatableMemory.available then does not apply.
func OpenMemory(o MemoryOptions) (*Memory, error) {
	m := &Memory{o: o}
	var err error
	if m.meminfo, err = meminfo.Open(o.Procfs); err != nil {
		return nil, err
	}
	if m.root, err = o.Hierarchy.Open("/"); err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

// Close closes what is held open. It may be called twice.
func (m *Memory) Close() error {
	var errs []error
	if m.meminfo != nil {
		errs = append(errs, m.meminfo.Close())
	}
	for _, c := range []*cgroup.Cgroup{m.root, m.kubepods} {
		if c != nil {
			errs = append(errs, c.Close())
		}
	}
	m.kubepods = nil
	return errors.Join(errs...)
}

// Read fills in the two memory signals. One that cannot be read is Unreadable
// and says why; the other is not touched by that.
func (m *Memory) Read(now time.Time, into *signal.Observations) NodeMemory {
	var info meminfo.Info
	if err := m.meminfo.Read(&info); err != nil {
		into[signal.MemoryAvailable] = unreadable(now, err)
		pods, used := m.readKubepods(now)
		into[signal.AllocatableMemoryAvailable] = pods
		return NodeMemory{Kubepods: used}
	}
	into[signal.MemoryAvailable] = m.readNode(now, &info)
	pods, used := m.readKubepods(now)
	into[signal.AllocatableMemoryAvailable] = pods
	fileAndAnon := info.FileAndAnon()
	return NodeMemory{
		Total: info.MemTotal, Hugetlb: info.Hugetlb, Kubepods: used,
		Unaccounted: int64(info.MemTotal) - int64(info.MemFree) - int64(fileAndAnon) - int64(info.Hugetlb),
	}
}

// readNode is MemTotal less the root's working set, less the huge pages, which
// nobody but their owners can use (as the kubelet does from 1.37).
func (m *Memory) readNode(now time.Time, info *meminfo.Info) signal.Observation {
	var root cgroup.Memory
	if err := m.root.ReadMemory(&root); err != nil {
		return unreadable(now, fmt.Errorf("read the root's memory: %w", err))
	}
	capacity := int64(info.MemTotal) - int64(info.Hugetlb)
	return m.observation(now, capacity, &root)
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

// readKubepods is the limit of the kubepods cgroup less its working set, and
// that. A node without the cgroup, or without a limit on it, has no such signal.
func (m *Memory) readKubepods(now time.Time) (o signal.Observation, workingSet int64) {
	if m.kubepods == nil {
		if now.Sub(m.looked) < lookAgain && !m.looked.IsZero() {
			return signal.Observation{}, 0
		}
		m.looked = now
		found, ok, err := m.o.Hierarchy.Kubepods(m.o.CgroupRoot)
		if err == nil && ok {
			m.kubepods, err = m.o.Hierarchy.Open(found.Path)
		}
		if err != nil && !errors.Is(err, cgroup.ErrGone) {
			return unreadable(now, fmt.Errorf("open kubepods: %w", err)), 0
		}
		if m.kubepods == nil {
			return signal.Observation{}, 0
		}
	}
	var used cgroup.Memory
	if err := m.kubepods.ReadMemory(&used); err != nil {
		m.kubepods.Close()
		m.kubepods = nil
		if errors.Is(err, cgroup.ErrGone) {
			return signal.Observation{}, 0
		}
		return unreadable(now, fmt.Errorf("read kubepods' memory: %w", err)), 0
	}
	if !used.Limited {
		return signal.Observation{}, int64(used.WorkingSet)
	}
	return m.observation(now, int64(used.Limit), &used), int64(used.WorkingSet)
}

func unreadable(now time.Time, err error) signal.Observation {
	return signal.Observation{Status: signal.Unreadable, Time: now, Err: err}
}
