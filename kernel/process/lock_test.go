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

// limitLock lowers RLIMIT_MEMLOCK to 8 MiB, the default for a service.
func limitLock() {
	var limit unix.Rlimit
	must(unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit))
	limit.Cur = min(limit.Cur, 8<<20)
	must(unix.Setrlimit(unix.RLIMIT_MEMLOCK, &limit))
}

// needLock skips the test without CAP_IPC_LOCK.
func needLock() {
	effective, err := hasCapability(unix.CAP_IPC_LOCK)
	must(err)
	if !effective {
		skip("needs CAP_IPC_LOCK")
	}
}

// grow makes the Go runtime map several heap arenas of 64 MiB each.
func grow() {
	var blocks [][]byte
	for range 3 {
		b := make([]byte, 64<<20)
		for i := 0; i < len(b); i += 64 << 10 {
			b[i] = 1
		}
		blocks = append(blocks, b)
	}
	runtime.KeepAlive(blocks)
}

// locked returns VmLck of this process, in bytes: the locked part of its address
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
	check(got == Locked{true, true}, "LockMemory() = %+v; want present and future", got)
	after, err := Resident("/proc", os.Getpid())
	must(err)
	check(after < before+64<<20, "locking raised the resident memory from %d to %d bytes; want pages locked on fault", before, after)
	vmLck := locked()
	grow()
	check(locked() >= vmLck+100<<20, "VmLck from %d to %d after the heap has grown; want 100 MiB more", vmLck, locked())
	fmt.Printf("resident %d MiB before and %d after, VmLck %d MiB\n", before>>20, after>>20, vmLck>>20)
}

func childDropLockGrow() {
	limitLock()
	dropCapabilities()
	got, err := LockMemory()
	check(err != nil && got == Locked{}, "LockMemory() without CAP_IPC_LOCK, under 8 MiB = %+v, %v; want an error", got, err)
	fmt.Println(err)
	grow()
}

// childLockDropGrow drops CAP_IPC_LOCK after locking, which the comment of LockMemory
// forbids.
func childLockDropGrow() {
	needLock()
	limitLock()
	_, err := LockMemory()
	must(err)
	dropCapabilities()
	fmt.Println("dropped")
	grow()
}

func childZeroLimit() {
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
	check(got == Locked{true, true}, "LockMemory() without a limit = %+v; want present and future", got)
	grow()
}

func TestLockMemory(t *testing.T) { succeeds(t, "lock then grow") }

func TestLockMemoryUnprivileged(t *testing.T) { succeeds(t, "drop, lock, grow") }

func TestLockMemoryZeroLimit(t *testing.T) { succeeds(t, "zero limit") }

func TestLockMemoryInfinite(t *testing.T) { succeeds(t, "infinite limit") }

// With future mappings locked and the capability dropped, the heap can't grow and the
// process dies.
func TestLockedHeapCannotGrow(t *testing.T) {
	out, err := child(t, "lock, drop, grow")
	skipped(t, out)
	if err == nil || !strings.HasPrefix(out, "dropped\n") || !strings.Contains(out, "out of memory") {
		t.Errorf("heap growth after the capability was dropped: %v, %s; want the process dead", err, first(out, 20))
	}
	t.Logf("%v: %s", err, strings.TrimSpace(first(out, 3)))
}
