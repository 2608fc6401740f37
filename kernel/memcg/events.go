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

// Counts are how often something has happened to the memory of a v2 cgroup since
// it was made.
type Counts struct {
	Low  uint64 // it was reclaimed from although below memory.low
	High uint64 // it was above memory.high, and its tasks had to reclaim
	Max  uint64 // it was about to pass memory.max
	OOM  uint64 // it was at its limit, and nothing could be freed
	// OOMKill is how many processes in it the kernel's OOM killer has killed. With
	// memory.oom.group, the first one counts twice.
	OOMKill uint64
	// OOMGroupKill is how often the whole cgroup was killed. Kernels before 5.17
	// do not count that: it means something only with HasOOMGroupKill.
	OOMGroupKill    uint64
	HasOOMGroupKill bool
}

// Events is an event file of a v2 cgroup, held open. Its descriptor reports
// EPOLLPRI when a count has grown since it was last read, at once, and then at
// most once in 10 ms (kernel/cgroup/cgroup.c: cgroup_file_notify). EPOLLERR comes
// with it and means no error. Both are there when the cgroup was removed, but who
// waits already does not hear of that (seen on Linux 6.1 and 6.12).
type Events struct {
	place place
	name  string
	fd    *sys.FD
}

// OpenEvents opens memory.events, which counts for the subtree. It is
// [kernel.ErrUnavailable] on v1, and for the root, which has none.
func OpenEvents(h *cgroup.Hierarchy, c *cgroup.Cgroup) (*Events, error) {
	return openEvents(place{h, c}, "memory.events")
}

// OpenLocalEvents opens memory.events.local (since Linux 5.2), which counts for
// the cgroup without those below it.
func OpenLocalEvents(h *cgroup.Hierarchy, c *cgroup.Cgroup) (*Events, error) {
	return openEvents(place{h, c}, "memory.events.local")
}

func openEvents(p place, name string) (*Events, error) {
	if err := p.v2(); err != nil {
		return nil, p.failed("open "+name, err)
	}
	fd, err := p.file(name, unix.O_RDONLY)
	if err != nil {
		return nil, p.failed("open "+name, err)
	}
	e := &Events{place: p, name: name, fd: fd}
	// A file that was never read reports news from the start.
	if _, err := e.Read(); err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}

// FD returns the descriptor, to be polled for EPOLLPRI until [Events.Close],
// after which it is -1.
func (e *Events) FD() int { return number(e.fd) }

// Close gives the file up. Further calls do nothing.
func (e *Events) Close() error { return e.fd.Close() }

// Read returns the counts, and makes the descriptor silent until one of them
// grows. It is [cgroup.ErrGone] when the cgroup was removed. It allocates nothing.
func (e *Events) Read() (Counts, error) {
	var buf [512]byte // seven lines of at most 36 bytes
	b, err := e.fd.Read(buf[:])
	if err != nil {
		return Counts{}, e.place.failed("read "+e.name, err)
	}
	c, err := parseCounts(b)
	if err != nil {
		return Counts{}, e.place.failed("read "+e.name, err)
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

// Errors of parseCounts that have no others within.
var (
	errTwice   = errors.New("a key is there twice")
	errMissing = errors.New("a key is missing")
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
				return Counts{}, fmt.Errorf("%w: %s", errTwice, keys[i])
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
