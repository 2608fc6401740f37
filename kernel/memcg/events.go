package memcg

import (
	"bytes"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/internal/sys"
	"github.com/evictd/evictd/kernel/internal/text"
)

// Counts are the event counters of memory.events of a v2 cgroup, since its
// creation.
type Counts struct {
	Low  uint64 // reclaimed although below memory.low
	High uint64 // above memory.high, so that its tasks had to reclaim
	Max  uint64 // about to exceed memory.max
	OOM  uint64 // at its limit, and reclaim failed
	// OOMKill is the number of processes in it that the kernel's OOM killer killed.
	// With memory.oom.group, the first one counts twice.
	OOMKill uint64
	// OOMGroupKill is the number of times that the whole cgroup was killed. It is
	// valid only if HasOOMGroupKill; kernels before 5.17 do not count it.
	OOMGroupKill    uint64
	HasOOMGroupKill bool
}

// Events is an open event file of a v2 cgroup. Its descriptor reports EPOLLPRI as
// soon as a counter has grown since the last read, at most once in 10 ms
// (kernel/cgroup/cgroup.c: cgroup_file_notify). EPOLLERR comes with it and is not an
// error. Both are reported after the removal of the cgroup, but a wait that began
// earlier is not woken for that (observed on Linux 6.1 and 6.12).
type Events struct {
	target target
	name   string
	fd     *sys.FD
}

// OpenEvents opens memory.events, which counts events in the subtree. It fails with
// [kernel.ErrUnavailable] on v1, and for the root, which has no such file.
func OpenEvents(h *cgroup.Hierarchy, c *cgroup.Cgroup) (*Events, error) {
	return openEvents(target{h, c}, "memory.events")
}

// OpenLocalEvents opens memory.events.local (since Linux 5.2), which counts events
// in the cgroup without its descendants.
func OpenLocalEvents(h *cgroup.Hierarchy, c *cgroup.Cgroup) (*Events, error) {
	return openEvents(target{h, c}, "memory.events.local")
}

func openEvents(t target, name string) (*Events, error) {
	if err := t.checkV2(); err != nil {
		return nil, t.wrap("open "+name, err)
	}
	fd, err := t.open(name, unix.O_RDONLY)
	if err != nil {
		return nil, t.wrap("open "+name, err)
	}
	e := &Events{target: t, name: name, fd: fd}
	// A file that was never read reports EPOLLPRI from the start.
	if _, err := e.Read(); err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}

// FD returns the descriptor to poll for EPOLLPRI, or -1 after [Events.Close].
func (e *Events) FD() int { return fdNumber(e.fd) }

// Close closes the file. Further calls do nothing.
func (e *Events) Close() error { return e.fd.Close() }

// Read returns the counters, and clears EPOLLPRI until one of them grows. It fails
// with [cgroup.ErrGone] if the cgroup was removed. It allocates nothing.
func (e *Events) Read() (Counts, error) {
	var buf [512]byte // seven lines of at most 36 bytes
	b, err := e.fd.Read(buf[:])
	if err != nil {
		return Counts{}, e.target.wrap("read "+e.name, err)
	}
	c, err := parseCounts(b)
	if err != nil {
		return Counts{}, e.target.wrap("read "+e.name, err)
	}
	return c, nil
}

// The keys of memory.events that are read.
const (
	countLow = iota
	countHigh
	countMax
	countOOM
	countOOMKill
	countOOMGroupKill
	countKeys
)

var keys = [countKeys]string{"low", "high", "max", "oom", "oom_kill", "oom_group_kill"}

// Errors of parseCounts.
var (
	errDuplicate = errors.New("duplicate key")
	errMissing   = errors.New("missing key")
)

// parseCounts parses memory.events (mm/memcontrol.c: __memory_events_show):
//
//	low 0
//	high 26
//	max 0
//	oom 0
//	oom_kill 0
//	oom_group_kill 0
func parseCounts(b []byte) (Counts, error) {
	var n [countKeys]uint64
	var seen uint
	for len(b) > 0 {
		line, rest, err := text.Line(b)
		if err != nil {
			return Counts{}, err
		}
		b = rest
		key, value, _ := bytes.Cut(line, []byte{' '})
		for i := range keys {
			if string(key) != keys[i] {
				continue
			}
			if seen&(1<<i) != 0 {
				return Counts{}, fmt.Errorf("%w: %s", errDuplicate, keys[i])
			}
			if n[i], err = text.Uint(value); err != nil {
				return Counts{}, fmt.Errorf("%s: %w: %q", keys[i], err, bytes.Clone(value))
			}
			seen |= 1 << i
			break
		}
	}
	for i := range countOOMGroupKill {
		if seen&(1<<i) == 0 {
			return Counts{}, fmt.Errorf("%w: %s", errMissing, keys[i])
		}
	}
	return Counts{
		Low: n[countLow], High: n[countHigh], Max: n[countMax], OOM: n[countOOM], OOMKill: n[countOOMKill],
		OOMGroupKill: n[countOOMGroupKill], HasOOMGroupKill: seen&(1<<countOOMGroupKill) != 0,
	}, nil
}
