package cgroup

import (
	"fmt"
	"path"

	"golang.org/x/sys/unix"
)

// FileCache is page cache by its list, in bytes.
type FileCache struct{ Inactive, Active uint64 }

// FileCacheBelow sums up the file cache of the subtree from each cgroup's own
// memory.stat, where [Cgroup.ReadMemory] believes the topmost one. The kernel may
// leave that behind by hundreds of MiB for its period of two seconds, however
// often it is read: what is charged to a child that is due to be summed up is not
// counted as due for those above (mm/memcontrol.c: memcg_rstat_updated), and when
// they have been summed up meanwhile, nothing says that they are due again. A
// cgroup without children has no such gap. What removed cgroups have left behind
// counts as far as those above them tell.
//
// It opens a file for each cgroup of the subtree.
func (c *Cgroup) FileCacheBelow() (FileCache, error) {
	type node struct {
		rel        string
		own, below FileCache
	}
	var nodes []node
	at := map[string]int{}
	err := walk(c.dir, func(rel string) error {
		own, err := c.fileCacheOf(rel)
		if err != nil {
			return err
		}
		at[rel] = len(nodes)
		nodes = append(nodes, node{rel: rel, own: own})
		return nil
	})
	if err != nil {
		return FileCache{}, c.failed("sum up file cache", err)
	}
	for i := len(nodes) - 1; i >= 0; i-- {
		n := &nodes[i]
		if sum := n.below.Inactive + n.below.Active; sum >= n.own.Inactive+n.own.Active {
			n.own = n.below
		}
		if above, ok := at[path.Dir(n.rel)]; ok && i > 0 {
			nodes[above].below.Inactive += n.own.Inactive
			nodes[above].below.Active += n.own.Active
		}
	}
	return nodes[0].own, nil
}

// fileCacheOf reads the memory.stat of a cgroup of the subtree.
func (c *Cgroup) fileCacheOf(rel string) (FileCache, error) {
	fd, err := c.dir.OpenAt(path.Join(rel, "memory.stat"), unix.O_RDONLY)
	if err != nil {
		return FileCache{}, err
	}
	defer fd.Close()
	var buf [8 << 10]byte
	b, err := fd.Read(buf[:])
	if err != nil {
		return FileCache{}, err
	}
	s, err := parseStat(b, c.keys())
	if err != nil {
		return FileCache{}, fmt.Errorf("%s: %w", rel, err)
	}
	return FileCache{Inactive: s[statInactive], Active: s[statActive]}, nil
}
