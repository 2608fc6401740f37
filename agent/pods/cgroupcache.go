package pods

import (
	"errors"

	"github.com/evictd/evictd/kernel/cgroup"
)

// cgroupCache are open cgroups by path. Each is opened once for all its users, and closed
// when a whole list did not use it.
type cgroupCache struct {
	hierarchy *cgroup.Hierarchy
	open      map[string]*cgroup.Cgroup
	used      map[string]bool
}

func newCgroupCache(h *cgroup.Hierarchy) *cgroupCache {
	return &cgroupCache{hierarchy: h, open: map[string]*cgroup.Cgroup{}, used: map[string]bool{}}
}

// get returns the cgroup at a path. If a cached one was removed it returns
// [cgroup.ErrGone] once, even if another cgroup has the path now.
func (g *cgroupCache) get(path string) (*cgroup.Cgroup, error) {
	if cached := g.open[path]; cached != nil {
		if !g.used[path] {
			if err := cached.Check(); err != nil {
				g.drop(path)
				return nil, err
			}
			g.used[path] = true
		}
		return cached, nil
	}
	opened, err := g.hierarchy.Open(path)
	if err != nil {
		return nil, err
	}
	g.open[path], g.used[path] = opened, true
	return opened, nil
}

func (g *cgroupCache) drop(path string) error {
	err := g.open[path].Close()
	delete(g.open, path)
	delete(g.used, path)
	return err
}

// closeUnused closes the cgroups that were not used since the last call.
func (g *cgroupCache) closeUnused() {
	for path := range g.open {
		if !g.used[path] {
			g.drop(path)
		}
	}
	clear(g.used)
}

func (g *cgroupCache) close() error {
	var errs []error
	for path := range g.open {
		errs = append(errs, g.drop(path))
	}
	return errors.Join(errs...)
}
