package probe

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/meminfo"
	"github.com/evictd/evictd/kernel/psi"
)

const bootWithPSI = "a kernel with CONFIG_PSI, booted with psi=1"

// pressure probes PSI by reading the node's memory pressure.
func pressure(proc kernel.FS) Feature {
	const name = "psi"
	_, err := psi.Memory(proc)
	switch {
	case errors.Is(err, kernel.ErrUnavailable):
		return no(name, err.Error(), bootWithPSI)
	case err != nil:
		return unknown(name, err)
	}
	return yes(name, "some and full, for memory")
}

// pressureTriggers arms a PSI trigger and closes it.
func pressureTriggers(proc kernel.FS) Feature {
	const (
		name       = "psi triggers"
		privileged = "CAP_SYS_RESOURCE, for windows from 500 ms"
	)
	asked := psi.Condition{Kind: psi.Some, Stall: psi.MinWindow, Window: psi.MinWindow}
	trigger, err := psi.Arm(proc, psi.ForMemory, asked)
	switch {
	case errors.Is(err, kernel.ErrUnavailable):
		return no(name, "no memory pressure files", bootWithPSI)
	case errors.Is(err, fs.ErrPermission):
		return no(name, err.Error(), "CAP_SYS_RESOURCE")
	case errors.Is(err, unix.EROFS):
		return no(name, err.Error(), "procfs mounted read-write")
	case err != nil:
		return unknown(name, err)
	}
	defer trigger.Close()
	if trigger.Armed() == asked {
		return yes(name, "windows from 500 ms")
	}
	f := yes(name, "only windows that are multiples of 2 s")
	f.Missing = privileged
	return f
}

// btf checks for the kernel's BTF, which BPF programs need for relocations.
func btf(sys kernel.FS) Feature {
	const name = "btf"
	path := sys.Path("kernel", "btf", "vmlinux")
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return no(name, path+" does not exist", "a kernel with CONFIG_DEBUG_INFO_BTF")
	}
	if err != nil {
		return unknown(name, err)
	}
	defer f.Close()
	// include/uapi/linux/btf.h: BTF_MAGIC, in native byte order.
	var magic [2]byte
	if _, err := f.ReadAt(magic[:], 0); err != nil {
		return unknown(name, fmt.Errorf("read btf: %w", err))
	}
	if magic != [2]byte{0x9f, 0xeb} && magic != [2]byte{0xeb, 0x9f} {
		return unknown(name, fmt.Errorf("read btf: %s begins with % x", path, magic))
	}
	return yes(name, path)
}

// hugetlb reports the memory of the huge page pools, which is not available for
// other use.
func hugetlb(proc, sys kernel.FS) Feature {
	const name = "hugetlb"
	entries, err := os.ReadDir(sys.Path("kernel", "mm", "hugepages"))
	if errors.Is(err, fs.ErrNotExist) {
		return no(name, "the kernel has no huge page pools", "")
	}
	if err != nil {
		return unknown(name, err)
	}
	info, err := meminfo.Read(proc)
	if err != nil {
		return unknown(name, err)
	}
	var sizes []string
	for _, e := range entries {
		if size, ok := strings.CutPrefix(e.Name(), "hugepages-"); ok {
			sizes = append(sizes, size)
		}
	}
	return yes(name, fmt.Sprintf("the pools (%s) reserve %d bytes, which are not available", strings.Join(sizes, ", "), info.Hugetlb))
}

// swap reports the swap areas in /proc/swaps.
func swap(proc kernel.FS) Feature {
	const name = "swap"
	b, err := os.ReadFile(proc.Path("swaps"))
	if errors.Is(err, fs.ErrNotExist) {
		return no(name, "the kernel was built without it", "")
	}
	if err != nil {
		return unknown(name, err)
	}
	areas, kib, err := parseSwaps(string(b))
	switch {
	case err != nil:
		return unknown(name, fmt.Errorf("read swaps: %w", err))
	case areas == 0:
		return no(name, "none is in use", "")
	}
	return yes(name, fmt.Sprintf("%d areas with a total of %d KiB, which do not count as available memory", areas, kib))
}

// parseSwaps returns the number of swap areas and their total size in KiB. Spaces
// in names are escaped as \040 (mm/swapfile.c: swap_show):
//
//	Filename				Type		Size		Used		Priority
//	/dev/dm-1                               partition	999420		0		-2
func parseSwaps(s string) (areas int, kib uint64, err error) {
	header, rest, _ := strings.Cut(s, "\n")
	if !strings.HasPrefix(header, "Filename") {
		return 0, 0, fmt.Errorf("first line is %q", header)
	}
	for line := range strings.Lines(rest) {
		fields := strings.Fields(line)
		if len(fields) != 5 || !strings.HasSuffix(line, "\n") {
			return 0, 0, fmt.Errorf("line %q does not have five fields", line)
		}
		// A bound of 2^53 KiB keeps the sum from overflowing.
		n, err := strconv.ParseUint(fields[2], 10, 53)
		if err != nil {
			return 0, 0, fmt.Errorf("size of %s: %w", fields[0], err)
		}
		areas, kib = areas+1, kib+n
	}
	return areas, kib, nil
}

// memlock probes whether a process can lock all its memory, future mappings
// included.
func memlock(caps capabilities, capsErr error) Feature {
	const name = "memlock"
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		return unknown(name, os.NewSyscallError("getrlimit", err))
	}
	return mayLock(name, limit.Cur, caps, capsErr)
}

func mayLock(name string, limit uint64, caps capabilities, capsErr error) Feature {
	switch {
	case limit == unix.RLIM_INFINITY:
		return yes(name, "no limit")
	case capsErr != nil:
		return unknown(name, capsErr)
	case caps.has(unix.CAP_IPC_LOCK):
		return yes(name, fmt.Sprintf("CAP_IPC_LOCK overrides the limit of %d bytes", limit))
	}
	return no(name, fmt.Sprintf("a limit of %d bytes", limit), "CAP_IPC_LOCK, or LimitMEMLOCK=infinity")
}
