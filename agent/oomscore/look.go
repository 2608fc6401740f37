package oomscore

import (
	"errors"
	"fmt"
	"slices"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/process"
)

// Container is one whose scores are looked after.
type Container struct {
	Pod, Name string
	// Cgroup is a path in the tree that carries memory, and ID its inode.
	Cgroup string
	ID     uint64
	// Wanted is what the oom_score_adj of each process should be.
	Wanted int
}

// Seen is what a container's processes have.
type Seen struct {
	Processes int
	// Least and Most are the lowest and the highest oom_score_adj.
	Least, Most int
	// Wrong is how many have another one than is wanted.
	Wrong int
	// Group tells whether the OOM killer takes all of them at once
	// (memory.oom.group); nil where cgroups have no such setting.
	Group *bool
}

// Look reads what a container's processes have. It is [cgroup.ErrGone] where the
// container has gone.
func Look(h *cgroup.Hierarchy, proc kernel.FS, c Container) (Seen, error) {
	group, err := open(h, &c)
	if err != nil {
		return Seen{}, err
	}
	defer group.Close()
	var seen Seen
	switch together, err := group.OOMGroup(); {
	case err == nil:
		seen.Group = &together
	case !errors.Is(err, kernel.ErrUnavailable):
		return Seen{}, err
	}
	err = each(group, proc, func(score *process.Score) error {
		have, err := score.Get()
		if err != nil {
			return err
		}
		if seen.Processes++; seen.Processes == 1 {
			seen.Least, seen.Most = have, have
		}
		seen.Least, seen.Most = min(seen.Least, have), max(seen.Most, have)
		if have != c.Wanted {
			seen.Wrong++
		}
		return nil
	})
	return seen, err
}

// Enforce gives what is wanted to every process of a container that has something
// else, and returns to how many. What can't be changed does not keep the others
// from it, and is told.
func Enforce(h *cgroup.Hierarchy, proc kernel.FS, c Container) (changed int, err error) {
	group, err := open(h, &c)
	if err != nil {
		return 0, err
	}
	defer group.Close()
	refused := 0
	var first error
	err = each(group, proc, func(score *process.Score) error {
		have, err := score.Get()
		if err != nil || have == c.Wanted {
			return err
		}
		switch err := score.Set(c.Wanted); {
		case err == nil:
			changed++
		case errors.Is(err, process.ErrGone):
			return err
		default:
			if refused++; first == nil {
				first = fmt.Errorf("from %d to %d: %w", have, c.Wanted, err)
			}
		}
		return nil
	})
	if first != nil {
		err = errors.Join(err, fmt.Errorf("%d processes: %w", refused, first))
	}
	return changed, err
}

func open(h *cgroup.Hierarchy, c *Container) (*cgroup.Cgroup, error) {
	group, err := h.Open(c.Cgroup)
	if err != nil {
		return nil, err
	}
	if group.ID() != c.ID {
		group.Close()
		return nil, fmt.Errorf("%w: %s names another one", cgroup.ErrGone, c.Cgroup)
	}
	return group, nil
}

// atOnce is how many processes are held open at once.
const atOnce = 64

// each calls do with the score of every process of a cgroup that can be told for
// sure to be of it: a pid may be another's by the time that it is opened, so those
// count that are in the cgroup after that, too. One that goes meanwhile is left out.
func each(group *cgroup.Cgroup, proc kernel.FS, do func(*process.Score) error) error {
	pids, err := group.Procs(nil)
	if err != nil {
		return err
	}
	for some := range slices.Chunk(pids, atOnce) {
		if err := eachOf(group, proc, some, do); err != nil {
			return err
		}
	}
	return nil
}

func eachOf(group *cgroup.Cgroup, proc kernel.FS, pids []int, do func(*process.Score) error) error {
	scores := make([]*process.Score, len(pids))
	defer func() {
		for _, s := range scores {
			if s != nil {
				s.Close()
			}
		}
	}()
	for i, pid := range pids {
		var err error
		if scores[i], err = process.OpenScore(proc, pid); err != nil && !errors.Is(err, process.ErrGone) {
			return err
		}
	}
	still, err := group.Procs(nil)
	if err != nil {
		return err
	}
	for i, pid := range pids {
		if _, there := slices.BinarySearch(still, pid); scores[i] == nil || !there {
			continue
		}
		if err := do(scores[i]); err != nil && !errors.Is(err, process.ErrGone) {
			return err
		}
	}
	return nil
}
