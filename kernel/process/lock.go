package process

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Locked is the part of this process's memory that is locked. Locking does not load
// pages: a page is locked when it is first touched (MCL_ONFAULT, Linux 4.4).
type Locked struct {
	Present bool // memory mapped at the time of the call
	Future  bool // memory mapped later
}

// LockMemory locks the memory of the process, and future mappings if
// CAP_IPC_LOCK is effective or RLIMIT_MEMLOCK is unlimited. With a limit and without
// the capability, locking future mappings would make the kernel refuse the Go
// runtime's next heap arena at the limit, and the process would die.
//
// A process that has locked future mappings must keep CAP_IPC_LOCK and its limit.
//
// An error leaves the locks unchanged. ENOMEM means that the limit is smaller than
// the mapped memory, of which a Go program has far more than any usual limit.
func LockMemory() (Locked, error) {
	limit, err := lockLimit()
	if err != nil {
		return Locked{}, fmt.Errorf("lock memory: %w", err)
	}
	unlimited, err := mayExceed(limit)
	if err != nil {
		return Locked{}, fmt.Errorf("lock memory: %w", err)
	}
	if unlimited {
		return lock(unix.MCL_CURRENT|unix.MCL_FUTURE|unix.MCL_ONFAULT, limit)
	}
	return lock(unix.MCL_CURRENT|unix.MCL_ONFAULT, limit)
}

func lockLimit() (uint64, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		return 0, fmt.Errorf("read RLIMIT_MEMLOCK: %w", err)
	}
	return limit.Cur, nil
}

// mayExceed reports whether this process may lock more than its RLIMIT_MEMLOCK. It
// tries that instead of reading capabilities, because one in a user namespace does
// not count (mm/mlock.c: do_mlock): it locks one page more than the limit, of an
// inaccessible mapping, which uses no memory.
func mayExceed(limit uint64) (bool, error) {
	if limit == unix.RLIM_INFINITY {
		return true, nil
	}
	const maxMapping = 1 << 46 // about the size of the user address space
	if limit > maxMapping {
		return false, nil
	}
	size := uintptr(limit) + uintptr(os.Getpagesize())
	at, err := unix.MmapPtr(-1, 0, nil, size, unix.PROT_NONE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_NORESERVE)
	// A mapping that fails can't be locked either.
	if err == unix.ENOMEM || err == unix.EAGAIN {
		return false, nil
	}
	if err != nil {
		return false, os.NewSyscallError("mmap", err)
	}
	defer unix.MunmapPtr(at, size)
	switch err := lockOnFault(at, size); err {
	case nil:
		return true, nil
	case unix.ENOMEM, unix.EPERM: // EPERM for a limit of 0
		return false, nil
	default:
		return false, os.NewSyscallError("mlock2", err)
	}
}

func lockOnFault(at unsafe.Pointer, size uintptr) error {
	if _, _, errno := unix.Syscall(unix.SYS_MLOCK2, uintptr(at), size, unix.MLOCK_ONFAULT); errno != 0 {
		return errno
	}
	return nil
}

func lock(flags int, limit uint64) (Locked, error) {
	err := unix.Mlockall(flags)
	if errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.EPERM) {
		err = fmt.Errorf("%w: without CAP_IPC_LOCK, RLIMIT_MEMLOCK of %d bytes is too small", err, limit)
	}
	if err != nil {
		return Locked{}, fmt.Errorf("lock memory: %w", err)
	}
	return Locked{Present: true, Future: flags&unix.MCL_FUTURE != 0}, nil
}
