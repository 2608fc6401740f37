package pods

import (
	"cmp"
	"path"
	"slices"

	"github.com/evictd/evictd/agent/evict"
)

// maxOutside bounds how many cgroups a look at what is outside the pods takes.
const maxOutside = 10_000

// Outside returns the cgroups outside the pods that use the most memory by
// themselves, without those below them, the largest first and at most n. Like
// the signals it counts working sets. It reads the tree, so it is for after a
// kill and not for before; what can't be read is left out.
func (i *Inventory) Outside(n int) []evict.CgroupUsage {
	l := outside{Inventory: i, world: i.world.Load(), left: maxOutside}
	if kubepods, ok, err := i.hierarchy.Kubepods(i.cgroupRoot); err == nil && ok {
		l.kubepods = kubepods.Path
	}
	l.look("/")
	slices.SortFunc(l.found, func(a, b evict.CgroupUsage) int {
		return cmp.Or(cmp.Compare(b.Memory, a.Memory), cmp.Compare(a.Cgroup, b.Cgroup))
	})
	return l.found[:min(n, len(l.found))]
}

// outside is a look at what is not the pods'.
type outside struct {
	*Inventory
	world    *world
	kubepods string // "" where there is none
	left     int    // cgroups that may still be read
	found    []evict.CgroupUsage
}

// look returns what the cgroup uses with all below it, 0 if that can't be read,
// and notes what is used outside the pods.
func (o *outside) look(at string) (used int64) {
	if o.left--; o.left < 0 {
		return 0
	}
	g, err := o.hierarchy.Open(at)
	if err != nil {
		return 0
	}
	memory, err := g.Memory()
	children, childrenErr := g.Children()
	g.Close() // not held on the way down, which may be long
	if err != nil {
		return 0
	}
	used = signed(memory.WorkingSet)
	if at == o.kubepods || o.world.isPods(at) {
		return used
	}
	own := used
	if childrenErr == nil {
		for _, name := range children {
			own -= o.look(path.Join(at, name))
		}
	}
	if own > 0 {
		o.found = append(o.found, evict.CgroupUsage{Cgroup: at, Memory: own})
	}
	return used
}

// isPods reports whether a cgroup is a pod's, a container's or a sandbox's own.
func (w *world) isPods(at string) bool {
	return slices.ContainsFunc(w.crowd[at], func(p *place) bool { return p.path == at }) ||
		slices.ContainsFunc(w.pods, func(p *pod) bool { return p.group != nil && p.group.Path() == at })
}
