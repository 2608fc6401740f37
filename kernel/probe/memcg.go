package probe

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/memcg"
)

// thresholds arms one that is never reached, on the root, and drops it.
func thresholds(h *cgroup.Hierarchy, err error) Feature {
	const name = "memcg thresholds"
	if err != nil {
		return unknown(name, errNoTree)
	}
	if h.Version == cgroup.V2 {
		return no(name, "memory is in a v2 tree", "")
	}
	c, err := h.Open("/")
	if err != nil {
		return unknown(name, err)
	}
	defer c.Close()
	const unreachable = 1 << 62
	threshold, err := memcg.ArmUsage(h, c, unreachable)
	switch {
	case errors.Is(err, kernel.ErrUnavailable):
		return no(name, err.Error(), "a kernel without PREEMPT_RT")
	case errors.Is(err, fs.ErrPermission):
		return no(name, err.Error(), "root or CAP_DAC_OVERRIDE")
	case err != nil:
		return unknown(name, err)
	}
	threshold.Close()
	return yes(name, "")
}

// memoryEvents looks for a cgroup whose events can be read: the root of them all
// has none.
func memoryEvents(h *cgroup.Hierarchy, err error) Feature {
	const name = "memory.events"
	if err != nil {
		return unknown(name, errNoTree)
	}
	if h.Version != cgroup.V2 {
		return no(name, "memory is in a v1 tree", "cgroup v2")
	}
	entries, err := os.ReadDir(string(h.Memory))
	if err != nil {
		return unknown(name, err)
	}
	dirs := []string{"/"} // the root of a part of the tree has them
	for _, e := range entries {
		if e.IsDir() {
			dirs = append(dirs, "/"+e.Name())
		}
	}
	last := fmt.Errorf("there is no cgroup below %s to look for it", h.Memory)
	for _, dir := range dirs {
		err := readEvents(h, dir)
		if err == nil {
			return yes(name, h.Memory.Path(dir, name))
		}
		// A cgroup that went meanwhile tells nothing.
		if dir != "/" && !errors.Is(err, cgroup.ErrGone) {
			last = err
		}
	}
	if errors.Is(last, kernel.ErrUnavailable) {
		return no(name, last.Error(), "memory in cgroup.subtree_control of the root")
	}
	return unknown(name, last)
}

func readEvents(h *cgroup.Hierarchy, path string) error {
	c, err := h.Open(path)
	if err != nil {
		return err
	}
	defer c.Close()
	events, err := memcg.OpenEvents(h, c)
	if err != nil {
		return err
	}
	return events.Close()
}
