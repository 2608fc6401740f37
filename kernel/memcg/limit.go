package memcg

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/internal/text"
)

// LimitHits returns how often a charge has failed because of the limit of this one
// cgroup, so that its tasks had to reclaim its memory. A failure because of the limit
// of an ancestor or descendant is counted in that cgroup. It reads memory.failcnt on v1
// (mm/page_counter.c: page_counter_try_charge, failcnt of the counter that fails), and
// max of memory.events.local on v2 (since Linux 5.2; mm/memcontrol.c: try_charge_memcg,
// MEMCG_MAX of mem_over_limit). path is below the root of h.Memory. LimitHits fails
// with [cgroup.ErrGone] if there is no such cgroup.
func LimitHits(h *cgroup.Hierarchy, path string) (uint64, error) {
	if h.Version != cgroup.V2 {
		b, err := readFile(h, path, "memory.failcnt")
		if err != nil {
			return 0, err
		}
		line, _, err := text.Line(b)
		if err != nil {
			return 0, fmt.Errorf("parse memory.failcnt: %w", err)
		}
		return text.Uint(line)
	}
	b, err := readFile(h, path, "memory.events.local")
	if err != nil {
		return 0, err
	}
	counts, err := parseCounts(b)
	if err != nil {
		return 0, fmt.Errorf("parse memory.events.local: %w", err)
	}
	return counts.Max, nil
}

// readFile reads a file of a cgroup. It fails with [cgroup.ErrGone] if the cgroup does
// not exist, and with [kernel.ErrUnavailable] if only the file does not.
func readFile(h *cgroup.Hierarchy, path, name string) ([]byte, error) {
	b, err := os.ReadFile(h.Memory.Path(path, name))
	switch {
	case err == nil:
		return b, nil
	case !errors.Is(err, fs.ErrNotExist):
	case func() bool { _, err := os.Stat(h.Memory.Path(path)); return err == nil }():
		err = fmt.Errorf("%w: %w", kernel.ErrUnavailable, err)
	default:
		err = fmt.Errorf("%w: %w", cgroup.ErrGone, err)
	}
	return nil, fmt.Errorf("read %s of cgroup %s: %w", name, path, err)
}
