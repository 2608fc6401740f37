package self

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel/process"
)

const (
	// lanesTimeout is how long LockMemory waits for the lanes to open: one that the kernel
	// refuses keeps being tried. pollInterval is how often it checks.
	lanesTimeout, pollInterval = 10 * time.Second, 100 * time.Millisecond
	// trimDelay is from the first lock to the trim: by then the pods have been listed, their
	// directories found and the first decisions made, which need memory only once.
	trimDelay = 10 * time.Second
)

// LockMemory returns to the kernel the memory that only the start needed, loading BPF
// programs above all, runs warmUp, and locks what is resident and what is touched later:
// locked memory is never returned. It waits until starting reports false, for 10 s at
// most. Some seconds later, when idle reports true, it does the same once more, for the
// first list of the pods and what follows from it. It returns early when ctx ends or
// warmUp returns false.
func (p *Process) LockMemory(ctx context.Context, starting, idle func() bool, warmUp func(context.Context) bool) {
	started, cancel := context.WithTimeout(ctx, lanesTimeout)
	defer cancel()
	wait(started, 0, func() bool { return !starting() })
	if ctx.Err() != nil || !p.trimAndLock(ctx, warmUp) || !wait(ctx, trimDelay, idle) {
		return
	}
	// The kernel takes no page back from a locked mapping (mm/madvise.c: madvise_dontneed_free_valid_vma).
	if err := unix.Munlockall(); err != nil {
		p.log.Info("could not unlock memory; what the start used stays resident", "error", os.NewSyscallError("munlockall", err))
		return
	}
	p.trimAndLock(ctx, warmUp)
}

// wait returns true when ok does, after a delay, and false when ctx ends before.
func wait(ctx context.Context, delay time.Duration, ok func() bool) bool {
	for {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(delay):
		}
		if ok() {
			return true
		}
		delay = pollInterval
	}
}

// trimAndLock frees memory that is not in use, runs warmUp and locks memory. It reports
// whether memory is locked.
func (p *Process) trimAndLock(ctx context.Context, warmUp func(context.Context) bool) bool {
	debug.FreeOSMemory()
	if err := dropTextPages(); err != nil {
		p.log.Debug("could not drop the executable's pages", "error", err)
	}
	if !warmUp(ctx) {
		return false
	}
	locked, err := process.LockMemory()
	if err != nil {
		p.log.Info("could not lock memory; under pressure evictd may wait for its own pages", "error", err)
		return false
	}
	p.log.Debug("memory is locked on fault", "future", locked.Future)
	return true
}

// dropTextPages unmaps the pages of evictd's executable. They stay in the page cache, and
// return with the next access. Beside 100 pods, 4 MiB of 20 stay away. Mappings with
// modified pages, which are not in the file, are left as they are.
func dropTextPages() error {
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return fmt.Errorf("find executable: %w", err)
	}
	maps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return fmt.Errorf("read own mappings: %w", err)
	}
	for _, m := range unchangedMappings(maps, exe) {
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, m.from, m.to-m.from, unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("drop pages of mapping %x-%x: %w", m.from, m.to, os.NewSyscallError("madvise", errno))
		}
	}
	return nil
}

// mapping is a range of addresses.
type mapping struct{ from, to uintptr }

// unchangedMappings returns the mappings of a file, from the text of /proc/PID/smaps, that
// are not writable and have no modified page, as relocations make them:
//
//	00400000-013ea000 r-xp 00000000 fe:00 1581082    /usr/sbin/evictd
//	Size:              16296 kB
//	…
//	Anonymous:             0 kB
//	…
func unchangedMappings(smaps []byte, file string) (list []mapping) {
	var at mapping
	var ours bool
	for line := range bytes.Lines(smaps) {
		fields := bytes.Fields(line)
		switch {
		case len(fields) >= 5 && bytes.ContainsRune(fields[0], '-'):
			from, to, _ := bytes.Cut(fields[0], []byte{'-'})
			first, err := strconv.ParseUint(string(from), 16, 64)
			last, errLast := strconv.ParseUint(string(to), 16, 64)
			at = mapping{uintptr(first), uintptr(last)}
			ours = err == nil && errLast == nil && len(fields) == 6 && string(fields[5]) == file && fields[1][1] == '-'
		case ours && len(fields) == 3 && string(fields[0]) == "Anonymous:" && string(fields[1]) == "0":
			list = append(list, at)
		}
	}
	return list
}
