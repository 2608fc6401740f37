package process

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

func allThreads(call uintptr, header *unix.CapUserHeader, data *[2]unix.CapUserData) (r1, r2 uintptr, errno syscall.Errno) {
	return syscall.AllThreadsSyscall(call, uintptr(unsafe.Pointer(header)), uintptr(unsafe.Pointer(data)), 0)
}

// limitLock sets RLIMIT_MEMLOCK to what a service gets by default, if it is more.
func limitLock() {
	var limit unix.Rlimit
	must(unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit))
	limit.Cur = min(limit.Cur, 8<<20)
	must(unix.Setrlimit(unix.RLIMIT_MEMLOCK, &limit))
}

// needLock skips where nothing can be locked to begin with.
func needLock() {
	held, err := hasCapability(unix.CAP_IPC_LOCK)
	must(err)
	if !held {
		skip("needs CAP_IPC_LOCK")
	}
}

// grow makes the Go runtime map several pieces of heap, of 64 MiB each.
func grow() {
	var held [][]byte
	for range 3 {
		b := make([]byte, 64<<20)
		for i := 0; i < len(b); i += 64 << 10 {
			b[i] = 1
		}
		held = append(held, b)
	}
	runtime.KeepAlive(held)
}

// locked returns VmLck of this process, in bytes: what is locked of its address
// space, touched or not.
func locked() uint64 {
	b, err := os.ReadFile("/proc/self/status")
	must(err)
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "VmLck:"); ok {
			n, err := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(rest, " kB\n")), 10, 54)
			must(err)
			return n << 10
		}
	}
	must(errors.New("no VmLck"))
	return 0
}

func childLockThenGrow() {
	needLock()
	limitLock()
	before, err := Resident("/proc", os.Getpid())
	must(err)
	got, err := LockMemory()
	must(err)
	check(got == Locked{true, true}, "LockMemory() = %+v; want all", got)
	after, err := Resident("/proc", os.Getpid())
	must(err)
	check(after < before+64<<20, "locking took the resident memory from %d to %d bytes; want it on fault", before, after)
	held := locked()
	grow()
	check(locked() >= held+100<<20, "VmLck from %d to %d after the heap has grown; want more", held, locked())
	fmt.Printf("resident %d MiB before and %d after, VmLck %d MiB\n", before>>20, after>>20, held>>20)
}

func childDropLockGrow() {
	limitLock()
	dropCapabilities()
	got, err := LockMemory()
	check(err != nil && got == Locked{}, "LockMemory() without CAP_IPC_LOCK, under 8 MiB = %+v, %v; want an error", got, err)
	fmt.Println(err)
	grow()
}

// childLockDropGrow does what LockMemory warns of.
func childLockDropGrow() {
	needLock()
	limitLock()
	_, err := LockMemory()
	must(err)
	dropCapabilities()
	fmt.Println("dropped")
	grow()
}

func childNoLimit() {
	must(unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{}))
	dropCapabilities()
	got, err := LockMemory()
	check(errors.Is(err, unix.EPERM) && got == Locked{}, "LockMemory() under a limit of 0 = %+v, %v; want EPERM", got, err)
	fmt.Println(err)
}

func childInfinite() {
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}); err != nil {
		skip("needs CAP_SYS_RESOURCE: raises RLIMIT_MEMLOCK: %v", err)
	}
	dropCapabilities()
	got, err := LockMemory()
	must(err)
	check(got == Locked{true, true}, "LockMemory() without a limit = %+v; want all", got)
	grow()
}

func TestLockMemory(t *testing.T) { succeeds(t, "lock then grow") }

func TestLockMemoryUnprivileged(t *testing.T) { succeeds(t, "drop, lock, grow") }

func TestLockMemoryUnderNoLimit(t *testing.T) { succeeds(t, "limit of nothing") }

func TestLockMemoryInfinite(t *testing.T) { succeeds(t, "infinite limit") }

// The danger is real: with all future memory locked and the privilege gone, the
// heap can't grow.
func TestLockedHeapCannotGrow(t *testing.T) {
	out, err := child(t, "lock, drop, grow")
	skipped(t, out)
	if err == nil || !strings.HasPrefix(out, "dropped\n") || !strings.Contains(out, "out of memory") {
		t.Errorf("heap grown after the privilege was dropped: %v, %s; want the process dead", err, first(out, 20))
	}
	t.Logf("%v: %s", err, strings.TrimSpace(first(out, 3)))
}
