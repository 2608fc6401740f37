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
	s := systemScan{Inventory: inv, snapshot: inv.current.Load(), left: maxScannedCgroups}
	if kubepods, ok, err := inv.hierarchy.Kubepods(inv.cgroupRoot); err == nil && ok {
		s.kubepods = kubepods.Path
	}
	s.scan("/")
	slices.SortFunc(s.found, func(a, b evict.CgroupUsage) int {
		return cmp.Or(cmp.Compare(b.Memory, a.Memory), cmp.Compare(a.Cgroup, b.Cgroup))
	})
	return s.found[:min(n, len(s.found))]
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
func (s *systemScan) scan(at string) (used int64) {
	if s.left--; s.left < 0 {
		return 0
	}
	g, err := s.hierarchy.Open(at)
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
	if at == s.kubepods || s.snapshot.belongsToPod(at) {
		return used
	}
	own := used
	if childrenErr == nil {
		for _, name := range children {
			own -= s.scan(path.Join(at, name))
		}
	}
	if own > 0 {
		s.found = append(s.found, evict.CgroupUsage{Cgroup: at, Memory: own})
	}
	return used
}

// belongsToPod reports whether a cgroup is a pod's, a container's or a sandbox's own.
func (snap *listSnapshot) belongsToPod(at string) bool {
	return slices.ContainsFunc(snap.byCgroup[at], func(loc *location) bool { return loc.path == at }) ||
		slices.ContainsFunc(snap.pods, func(p *pod) bool { return p.cgroup != nil && p.cgroup.Path() == at })
}
