package agent

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/agent/hot"
	"github.com/evictd/evictd/agent/lanes"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/process"
)

const (
	// lanesOpen is how long the lanes may take to be opened before memory is locked
	// without that, and lookForLanes how often that is looked for.
	lanesOpen, lookForLanes = 10 * time.Second, 100 * time.Millisecond
)

// lockMemory gives back what was only needed to begin, the loading of programs into
// the kernel above all, has the hot path gone once more, and locks what is there:
// locked memory stays. It returns early when ctx ends.
func (d *daemon) lockMemory(ctx context.Context, h *cgroup.Hierarchy, o hot.Options) {
	ctx, cancel := context.WithTimeout(ctx, lanesOpen)
	defer cancel()
	for d.lanesStarting() {
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
		d.log.Debug("the code of the start stays in memory", "error", err)
	}
	if !d.hot.Do(ctx, func() { d.rehearse(h, o) }) {
		return
	}
	locked, err := process.LockMemory()
	if err != nil {
		d.log.Info("memory is not locked", "error", err)
		return
	}
	d.log.Debug("memory is locked as it is touched", "future", locked.Future)
}

// lanesStarting reports whether a lane has not been opened for the first time.
func (d *daemon) lanesStarting() bool {
	return slices.ContainsFunc(d.lanes.Statuses(time.Now()), func(s lanes.Status) bool { return s.State == lanes.Starting })
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
