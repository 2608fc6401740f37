package driver

import (
	"cmp"
	"slices"
	"time"

	"github.com/evictd/evictd/agent/act"
	"github.com/evictd/evictd/agent/evict"
)

// turns returns the order in which a pod's containers are asked to stop; nil is
// all at once. Where the source names sidecars they follow the others, the last
// to have been started first, as with the kubelet. Else the containers go in
// the reverse order of their beginning, each with its share of the grace:
// sidecars begin before those that they serve.
func turns(pod *evict.Pod, containers []evict.ContainerHandle, grace time.Duration) []act.Turn {
	if len(containers) < 2 {
		return nil
	}
	if sidecars := sidecars(pod); len(sidecars) > 0 {
		list := []act.Turn{{}}
		for _, c := range containers {
			if !slices.Contains(sidecars, c.Name) {
				list[0].IDs = append(list[0].IDs, c.ID)
			}
		}
		for _, name := range slices.Backward(sidecars) {
			for _, c := range containers {
				if c.Name == name {
					list = append(list, act.Turn{IDs: []string{c.ID}, Latest: grace})
				}
			}
		}
		return list
	}
	ordered := slices.Clone(containers)
	slices.SortStableFunc(ordered, func(a, b evict.ContainerHandle) int { return -cmp.Compare(a.InitStart, b.InitStart) })
	var list []act.Turn
	for i, c := range ordered {
		if i == 0 || c.InitStart != ordered[i-1].InitStart {
			list = append(list, act.Turn{})
		}
		last := &list[len(list)-1]
		last.IDs = append(last.IDs, c.ID)
	}
	if len(list) == 1 {
		return nil
	}
	for i := range list {
		list[i].Latest = time.Duration(i) * grace / time.Duration(len(list))
	}
	return list
}

// sidecars lists a pod's by name, in the order of their start.
func sidecars(pod *evict.Pod) (names []string) {
	for i := range pod.InitContainers {
		if c := &pod.InitContainers[i]; c.Sidecar {
			names = append(names, c.Name)
		}
	}
	return names
}
