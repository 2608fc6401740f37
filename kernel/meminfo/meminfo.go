package meminfo

import (
	"bytes"
	"errors"
	"fmt"
	"os"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/internal/text"
)

// Info is one reading of /proc/meminfo, in bytes.
type Info struct {
	MemTotal     uint64
	MemFree      uint64
	MemAvailable uint64
	Buffers      uint64
	Cached       uint64 // includes Shmem, excludes Buffers and SwapCached
	SwapCached   uint64
	ActiveAnon   uint64 // Active(anon)
	InactiveAnon uint64 // Inactive(anon)
	ActiveFile   uint64 // Active(file)
	InactiveFile uint64 // Inactive(file)
	Unevictable  uint64
	Mlocked      uint64
	SwapTotal    uint64
	SwapFree     uint64
	AnonPages    uint64
	Mapped       uint64
	Shmem        uint64
	Slab         uint64
	SReclaimable uint64
	SUnreclaim   uint64
	KernelStack  uint64
	PageTables   uint64
	// Hugetlb is the memory of the huge page pools of all sizes, in use or not. It is
	// 0 on a kernel without hugetlbfs, which does not print the line.
	Hugetlb uint64
}

// FileAndAnon returns the file and anonymous pages: nr_file_pages +
// nr_anon_pages of /proc/vmstat, or file + anon in memory.stat of the root cgroup.
func (i Info) FileAndAnon() uint64 {
	return i.AnonPages + i.Buffers + i.Cached + i.SwapCached
}

// WorkingSet returns the node's working set as the kubelet counts it:
// [Info.FileAndAnon] minus the inactive file pages. Active file pages count as
// used; slab, page tables, kernel stacks and huge pages do not.
func (i Info) WorkingSet() uint64 { return minus(i.FileAndAnon(), i.InactiveFile) }

// Unaccounted returns the memory that is neither free, in a huge page pool, nor in
// [Info.FileAndAnon]: mostly the kernel's own memory, which no working set counts.
func (i Info) Unaccounted() uint64 {
	return minus(minus(minus(i.MemTotal, i.MemFree), i.FileAndAnon()), i.Hugetlb)
}

// minus returns a - b, or 0 if b is larger: the kernel does not sample all lines at
// the same instant.
func minus(a, b uint64) uint64 { return a - min(a, b) }

// Read reads the file once.
func Read(fs kernel.FS) (Info, error) {
	b, err := os.ReadFile(fs.Path("meminfo"))
	if err != nil {
		return Info{}, fmt.Errorf("read meminfo: %w", err)
	}
	return Parse(b)
}

// The lines that are read, in the kernel's order.
const (
	memTotal = iota
	memFree
	memAvailable
	buffers
	cached
	swapCached
	activeAnon
	inactiveAnon
	activeFile
	inactiveFile
	unevictable
	mlocked
	swapTotal
	swapFree
	anonPages
	mapped
	shmem
	slab
	sReclaimable
	sUnreclaim
	kernelStack
	pageTables
	hugepagesize // read for its presence: hugetlbfs exists
	hugetlb
	lines
)

var names = [lines]string{
	memTotal: "MemTotal", memFree: "MemFree", memAvailable: "MemAvailable",
	buffers: "Buffers", cached: "Cached", swapCached: "SwapCached",
	activeAnon: "Active(anon)", inactiveAnon: "Inactive(anon)",
	activeFile: "Active(file)", inactiveFile: "Inactive(file)",
	unevictable: "Unevictable", mlocked: "Mlocked",
	swapTotal: "SwapTotal", swapFree: "SwapFree",
	anonPages: "AnonPages", mapped: "Mapped", shmem: "Shmem",
	slab: "Slab", sReclaimable: "SReclaimable", sUnreclaim: "SUnreclaim",
	kernelStack: "KernelStack", pageTables: "PageTables",
	hugepagesize: "Hugepagesize", hugetlb: "Hugetlb",
}

// Parse parses the content of /proc/meminfo:
//
//	MemTotal:       24684084 kB
//	MemFree:        24519892 kB
//	…
//	Inactive(file):    13536 kB
//	…
//	HugePages_Total:       0
//	Hugepagesize:       2048 kB
//	Hugetlb:               0 kB
func Parse(b []byte) (Info, error) {
	var v [lines]uint64
	var seen uint32
	next := 0
	for len(b) > 0 {
		line, rest, err := text.Line(b)
		if err != nil {
			return Info{}, fmt.Errorf("parse meminfo: %w: %q", err, bytes.Clone(b))
		}
		b = rest
		key, value, ok := bytes.Cut(line, []byte{':'})
		if !ok {
			continue
		}
		i := find(key, next)
		if i < 0 {
			continue
		}
		n, err := kilobytes(value)
		if err != nil {
			return Info{}, fmt.Errorf("parse meminfo: %s: %w: %q", names[i], err, bytes.Clone(value))
		}
		if seen&(1<<i) != 0 {
			return Info{}, fmt.Errorf("parse meminfo: duplicate line %s", names[i])
		}
		v[i], seen, next = n, seen|1<<i, i+1
	}
	if seen&(1<<hugepagesize) == 0 {
		seen |= 1<<hugepagesize | 1<<hugetlb
	}
	if missing := ^seen & (1<<lines - 1); missing != 0 {
		return Info{}, missingLines(missing)
	}
	return Info{
		MemTotal: v[memTotal], MemFree: v[memFree], MemAvailable: v[memAvailable],
		Buffers: v[buffers], Cached: v[cached], SwapCached: v[swapCached],
		ActiveAnon: v[activeAnon], InactiveAnon: v[inactiveAnon],
		ActiveFile: v[activeFile], InactiveFile: v[inactiveFile],
		Unevictable: v[unevictable], Mlocked: v[mlocked],
		SwapTotal: v[swapTotal], SwapFree: v[swapFree],
		AnonPages: v[anonPages], Mapped: v[mapped], Shmem: v[shmem],
		Slab: v[slab], SReclaimable: v[sReclaimable], SUnreclaim: v[sUnreclaim],
		KernelStack: v[kernelStack], PageTables: v[pageTables],
		Hugetlb: v[hugetlb],
	}, nil
}

// find returns the index of a line's name, or -1. The kernel prints the lines in a
// fixed order, so find compares with the expected one first.
func find(key []byte, expected int) int {
	if expected < lines && string(key) == names[expected] {
		return expected
	}
	for i := range names {
		if string(key) == names[i] {
			return i
		}
	}
	return -1
}

var errUnit = errors.New("not a number of kB")

// kilobytes parses "   24684084 kB" and returns bytes.
func kilobytes(b []byte) (uint64, error) {
	b, ok := bytes.CutSuffix(bytes.TrimLeft(b, " "), []byte(" kB"))
	if !ok {
		return 0, errUnit
	}
	n, err := text.Uint(b)
	if err != nil {
		return 0, err
	}
	if n > 1<<54-1 {
		return 0, text.ErrRange
	}
	return n << 10, nil
}

func missingLines(set uint32) error {
	var missing []string
	for i, name := range names {
		if set&(1<<i) != 0 {
			missing = append(missing, name)
		}
	}
	return fmt.Errorf("parse meminfo: no line for %q", missing)
}
