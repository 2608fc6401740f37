package pods

import (
	"cmp"
	"path"
	"slices"

	"github.com/evictd/evictd/agent/evict"
)

// maxScannedCgroups bounds how many cgroups one scan of the tree reads.
const maxScannedCgroups = 10_000

// SystemCgroups returns the cgroups outside the pods that use the most memory, not counting
// their children, the largest first and at most n. Like the signals it counts working sets.
// It reads the whole tree, so call it after a kill and not before. Unreadable cgroups are
// left out.
func (inv *Inventory) SystemCgroups(n int) []evict.CgroupUsage {
	l := systemScan{Inventory: inv, snapshot: inv.current.Load(), left: maxScannedCgroups}
	if kubepods, ok, err := inv.hierarchy.Kubepods(inv.cgroupRoot); err == nil && ok {
		l.kubepods = kubepods.Path
	}
	l.scan("/")
	slices.SortFunc(l.found, func(a, b evict.CgroupUsage) int {
		return cmp.Or(cmp.Compare(b.Memory, a.Memory), cmp.Compare(a.Cgroup, b.Cgroup))
	})
	return l.found[:min(n, len(l.found))]
}

// systemScan is a search for memory outside the pods.
type systemScan struct {
	*Inventory
	snapshot *listSnapshot
	kubepods string // "" if there is none
	left     int    // cgroups that may still be read
	found    []evict.CgroupUsage
}

// scan returns the usage of a cgroup with all below it, 0 if that can't be read, and records
// the usage outside the pods.
func (o *systemScan) scan(at string) (used int64) {
	if o.left--; o.left < 0 {
		return 0
	}
	g, err := o.hierarchy.Open(at)
	if err != nil {
		return 0
	}
	memory, err := g.Memory()
	children, childrenErr := g.Children()
	g.Close() // before the recursion, which may be deep
	if err != nil {
		return 0
	}
	used = signed(memory.WorkingSet)
	if at == o.kubepods || o.snapshot.belongsToPod(at) {
		return used
	}
	own := used
	if childrenErr == nil {
		for _, name := range children {
			own -= o.scan(path.Join(at, name))
		}
	}
	if own > 0 {
		o.found = append(o.found, evict.CgroupUsage{Cgroup: at, Memory: own})
	}
	return used
}

// belongsToPod reports whether a cgroup is a pod's, a container's or a sandbox's own.
func (w *listSnapshot) belongsToPod(at string) bool {
	return slices.ContainsFunc(w.byCgroup[at], func(p *location) bool { return p.path == at }) ||
		slices.ContainsFunc(w.pods, func(p *pod) bool { return p.cgroup != nil && p.cgroup.Path() == at })
}
