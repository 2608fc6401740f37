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

// thresholds arms an unreachable usage threshold on the root and closes it.
func thresholds(h *cgroup.Hierarchy, err error) Feature {
	const name = "memcg thresholds"
	if err != nil {
		return unknown(name, errNoHierarchy)
	}
	if h.Version == cgroup.V2 {
		return no(name, "the memory controller is on v2", "")
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

// memoryEvents checks for a cgroup with readable memory.events, which every v2
// cgroup has except the kernel's root.
func memoryEvents(h *cgroup.Hierarchy, err error) Feature {
	const name = "memory.events"
	if err != nil {
		return unknown(name, errNoHierarchy)
	}
	if h.Version != cgroup.V2 {
		return no(name, "the memory controller is on v1", "cgroup v2")
	}
	entries, err := os.ReadDir(string(h.Memory))
	if err != nil {
		return unknown(name, err)
	}
	dirs := []string{"/"} // the root of a nested hierarchy has the file
	for _, e := range entries {
		if e.IsDir() {
			dirs = append(dirs, "/"+e.Name())
		}
	}
	last := fmt.Errorf("no cgroup below %s to check", h.Memory)
	for _, dir := range dirs {
		err := readEvents(h, dir)
		if err == nil {
			return yes(name, h.Memory.Path(dir, name))
		}
		// A cgroup that was removed during the search does not count.
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
