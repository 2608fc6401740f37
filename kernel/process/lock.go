package process

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Locked is what of this process's memory can't be paged out. Nothing is read in
// for it: pages stay from when they are first touched (MCL_ONFAULT, Linux 4.4).
type Locked struct {
	Present bool // what was mapped at the call
	Future  bool // what is mapped later, too
}

// LockMemory locks the memory of the process, and that which it will map while
// it may. Future memory is locked only while CAP_IPC_LOCK is in effect or
// RLIMIT_MEMLOCK is infinite: else the kernel would refuse the Go runtime's next
// piece of heap as soon as the limit is reached, and the process would die.
//
// A process that has locked future memory must keep CAP_IPC_LOCK and its limit.
//
// An error leaves what was locked before as it was. ENOMEM is a limit that is
// smaller than what is mapped, as that of a Go program is by far.
func LockMemory() (Locked, error) {
	limit, err := lockLimit()
	if err != nil {
		return Locked{}, fmt.Errorf("lock memory: %w", err)
	}
	beyond, err := mayLockBeyond(limit)
	if err != nil {
		return Locked{}, fmt.Errorf("lock memory: %w", err)
	}
	if beyond {
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

// mayLockBeyond reports whether RLIMIT_MEMLOCK of so many bytes does not bind
// this process. It asks the kernel (mm/mlock.c: do_mlock), because a capability
// that is held in a user namespace only does not count: it locks one page more
// than the limit, of a mapping that can't be touched and so has no memory.
func mayLockBeyond(limit uint64) (bool, error) {
	if limit == unix.RLIM_INFINITY {
		return true, nil
	}
	const far = 1 << 46 // about where user space ends
	if limit > far {
		return false, nil
	}
	size := uintptr(limit) + uintptr(os.Getpagesize())
	at, err := unix.MmapPtr(-1, 0, nil, size, unix.PROT_NONE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_NORESERVE)
	// Whatever it is that a process can't map it can't lock.
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
