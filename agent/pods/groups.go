package pods

import (
	"errors"

	"github.com/evictd/evictd/kernel/cgroup"
)

// groups are the cgroups that are held open, by path. Each is opened once,
// however many want it, and closed when a whole list went by without anybody
// wanting it.
type groups struct {
	hierarchy *cgroup.Hierarchy
	open      map[string]*cgroup.Cgroup
	used      map[string]bool
}

func newGroups(h *cgroup.Hierarchy) *groups {
	return &groups{hierarchy: h, open: map[string]*cgroup.Cgroup{}, used: map[string]bool{}}
}

// get returns the cgroup that the path names now. One that was held and is gone
// is [cgroup.ErrGone] once, even if another has taken its path meanwhile.
func (g *groups) get(path string) (*cgroup.Cgroup, error) {
	if held := g.open[path]; held != nil {
		if !g.used[path] {
			if err := held.Check(); err != nil {
				g.drop(path)
				return nil, err
			}
			g.used[path] = true
		}
		return held, nil
	}
	opened, err := g.hierarchy.Open(path)
	if err != nil {
		return nil, err
	}
	g.open[path], g.used[path] = opened, true
	return opened, nil
}

func (g *groups) drop(path string) error {
	err := g.open[path].Close()
	delete(g.open, path)
	delete(g.used, path)
	return err
}

// closeUnused closes what was not wanted since the last call.
func (g *groups) closeUnused() {
	for path := range g.open {
		if !g.used[path] {
			g.drop(path)
		}
	}
	clear(g.used)
}

func (g *groups) close() error {
	var errs []error
	for path := range g.open {
		errs = append(errs, g.drop(path))
	}
	return errors.Join(errs...)
}
