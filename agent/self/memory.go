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
	// lanesOpen is how long the lanes may take to be opened before memory is locked
	// without that, and lookForLanes how often that is looked for.
	lanesOpen, lookForLanes = 10 * time.Second, 100 * time.Millisecond
)

// LockMemory gives back what was only needed to begin, the loading of programs into
// the kernel above all, has the hot path gone once more, and locks what is there:
// locked memory stays. It waits until no lane is starting, and returns early when ctx
// ends or rehearse returns false.
func (p *Process) LockMemory(ctx context.Context, starting func() bool, rehearse func(context.Context) bool) {
	ctx, cancel := context.WithTimeout(ctx, lanesOpen)
	defer cancel()
	for starting() {
		select {
		case <-ctx.Done():
		case <-time.After(lookForLanes):
			continue
		}
		break
	}
	if context.Cause(ctx) == context.Canceled {
		return
	}
	debug.FreeOSMemory()
	if err := forgetCode(); err != nil {
		p.log.Debug("the code of the start stays in memory", "error", err)
	}
	if !rehearse(ctx) {
		return
	}
	locked, err := process.LockMemory()
	if err != nil {
		p.log.Info("memory is not locked", "error", err)
		return
	}
	p.log.Debug("memory is locked as it is touched", "future", locked.Future)
}

// forgetCode takes the pages of evictd's executable out of its memory. They stay in
// the page cache, and those that are used come back from there. What is only
// changed in memory, which the file can't give back, stays.
func forgetCode() error {
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
			return fmt.Errorf("forget mapping %x-%x: %w", m.from, m.to, os.NewSyscallError("madvise", errno))
		}
	}
	return nil
}

// mapping is a range of addresses.
type mapping struct{ from, to uintptr }

// unchangedMappings returns those mappings of a file, in the text of
// /proc/PID/smaps, that can't be written and have no page of their own, as
// relocations leave behind:
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
