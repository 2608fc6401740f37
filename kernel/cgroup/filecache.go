package cgroup

import (
	"fmt"
	"path"

	"golang.org/x/sys/unix"
)

// FileCache is the page cache on each LRU list, in bytes.
type FileCache struct{ Inactive, Active uint64 }

// SumFileCache returns the file cache of the subtree, computed from the
// memory.stat of every cgroup in it. [Cgroup.ReadMemory] reads only the topmost
// memory.stat, which can lag by hundreds of MiB for the kernel's flush period of
// two seconds, however often it is read: an update of a child that is already
// pending is not counted as pending for its ancestors (mm/memcontrol.c:
// memcg_rstat_updated), and if they were flushed in between, nothing marks them as
// pending again. A cgroup without children does not lag. The file cache of removed
// cgroups counts if an ancestor's memory.stat includes it.
//
// It opens one file per cgroup of the subtree.
func (c *Cgroup) SumFileCache() (FileCache, error) {
	type node struct {
		rel        string
		own, below FileCache
	}
	var nodes []node
	index := map[string]int{}
	err := walk(c.dir, func(rel string) error {
		own, err := c.fileCacheOf(rel)
		if err != nil {
			return err
		}
		index[rel] = len(nodes)
		nodes = append(nodes, node{rel: rel, own: own})
		return nil
	})
	if err != nil {
		return FileCache{}, c.wrap("sum up file cache", err)
	}
	for i := len(nodes) - 1; i >= 0; i-- {
		n := &nodes[i]
		if sum := n.below.Inactive + n.below.Active; sum >= n.own.Inactive+n.own.Active {
			n.own = n.below
		}
		if parent, ok := index[path.Dir(n.rel)]; ok && i > 0 {
			nodes[parent].below.Inactive += n.own.Inactive
			nodes[parent].below.Active += n.own.Active
		}
	}
	return nodes[0].own, nil
}

// fileCacheOf reads the file cache from the memory.stat of one cgroup of the
// subtree.
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
