package pods

import (
	"errors"

	"github.com/evictd/evictd/kernel/cgroup"
)

// cgroupCache has open cgroups by path. Each is opened once for all its users, and closed
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
func (c *cgroupCache) get(path string) (*cgroup.Cgroup, error) {
	if cached := c.open[path]; cached != nil {
		if !c.used[path] {
			if err := cached.Check(); err != nil {
				c.drop(path)
				return nil, err
			}
			c.used[path] = true
		}
		return cached, nil
	}
	opened, err := c.hierarchy.Open(path)
	if err != nil {
		return nil, err
	}
	c.open[path], c.used[path] = opened, true
	return opened, nil
}

func (c *cgroupCache) drop(path string) error {
	err := c.open[path].Close()
	delete(c.open, path)
	delete(c.used, path)
	return err
}

// closeUnused closes the cgroups that were not used since the last call.
func (c *cgroupCache) closeUnused() {
	for path := range c.open {
		if !c.used[path] {
			c.drop(path)
		}
	}
	clear(c.used)
}

func (c *cgroupCache) close() error {
	var errs []error
	for path := range c.open {
		errs = append(errs, c.drop(path))
	}
	return errors.Join(errs...)
}
