package oomscore

import (
	"errors"
	"fmt"
	"slices"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/process"
)

// Container is a container whose scores are enforced.
type Container struct {
	Pod, Name string
	// Cgroup is a path in the memory controller's hierarchy, and ID its inode.
	Cgroup string
	ID     uint64
	// Wanted is the oom_score_adj that each process should have.
	Wanted int
}

// Scores is what [Inspect] finds in a container.
type Scores struct {
	Processes int
	// Min and Most are the lowest and the highest oom_score_adj.
	Min, Max int
	// Mismatched is the number of processes with another oom_score_adj than wanted.
	Mismatched int
	// Group reports whether the OOM killer kills all processes together
	// (memory.oom.group); nil if the cgroup has no such file.
	Group *bool
}

// Inspect reads the scores of a container's processes. It returns [cgroup.ErrGone] if the
// container is gone.
func Inspect(h *cgroup.Hierarchy, proc kernel.FS, c Container) (Scores, error) {
	group, err := open(h, &c)
	if err != nil {
		return Scores{}, err
	}
	defer group.Close()
	var scores Scores
	switch together, err := group.OOMGroup(); {
	case err == nil:
		scores.Group = &together
	case !errors.Is(err, kernel.ErrUnavailable):
		return Scores{}, err
	}
	err = eachScore(group, proc, func(score *process.OOMScoreAdj) error {
		have, err := score.Get()
		if err != nil {
			return err
		}
		if scores.Processes++; scores.Processes == 1 {
			scores.Min, scores.Max = have, have
		}
		scores.Min, scores.Max = min(scores.Min, have), max(scores.Max, have)
		if have != c.Wanted {
			scores.Mismatched++
		}
		return nil
	})
	return scores, err
}

// Enforce sets the wanted score for every process of a container that has another one, and
// returns how many it changed. If scores can't be changed, it continues and returns their
// number with the first error.
func Enforce(h *cgroup.Hierarchy, proc kernel.FS, c Container) (changed int, err error) {
	group, err := open(h, &c)
	if err != nil {
		return 0, err
	}
	defer group.Close()
	refused := 0
	var first error
	err = eachScore(group, proc, func(score *process.OOMScoreAdj) error {
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
		return nil, fmt.Errorf("%w: %s names a different cgroup", cgroup.ErrGone, c.Cgroup)
	}
	return group, nil
}

// maxOpen bounds the processes that are open at a time.
const maxOpen = 64

// eachScore calls do with the score of every process of a cgroup. A pid can be reused before
// it is opened, so only processes count that the cgroup still lists afterwards. Processes
// that exit during the call are skipped.
func eachScore(group *cgroup.Cgroup, proc kernel.FS, do func(*process.OOMScoreAdj) error) error {
	pids, err := group.Procs(nil)
	if err != nil {
		return err
	}
	for some := range slices.Chunk(pids, maxOpen) {
		if err := eachScoreOf(group, proc, some, do); err != nil {
			return err
		}
	}
	return nil
}

func eachScoreOf(group *cgroup.Cgroup, proc kernel.FS, pids []int, do func(*process.OOMScoreAdj) error) error {
	scores := make([]*process.OOMScoreAdj, len(pids))
	defer func() {
		for _, s := range scores {
			if s != nil {
				s.Close()
			}
		}
	}()
	for i, pid := range pids {
		var err error
		if scores[i], err = process.OpenOOMScoreAdj(proc, pid); err != nil && !errors.Is(err, process.ErrGone) {
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
