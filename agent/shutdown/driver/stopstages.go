package driver

import (
	"cmp"
	"slices"
	"time"

	"github.com/evictd/evictd/agent/act"
	"github.com/evictd/evictd/agent/evict"
)

// stopStages returns the order in which a pod's containers are asked to stop; nil
// means all at once. If the pod's specification has sidecars, they follow the other
// containers in the reverse order of their start, as in the kubelet. Otherwise all
// containers stop in the reverse order of their start, each with its share of the
// grace: sidecars usually start before the containers that use them.
func stopStages(pod *evict.Pod, containers []evict.RunningContainer, grace time.Duration) []act.StopStage {
	if len(containers) < 2 {
		return nil
	}
	if sidecars := sidecars(pod); len(sidecars) > 0 {
		list := []act.StopStage{{}}
		for _, c := range containers {
			if !slices.Contains(sidecars, c.Name) {
				list[0].IDs = append(list[0].IDs, c.ID)
			}
		}
		for _, name := range slices.Backward(sidecars) {
			for _, c := range containers {
				if c.Name == name {
					list = append(list, act.StopStage{IDs: []string{c.ID}, StartBy: grace})
				}
			}
		}
		return list
	}
	ordered := slices.Clone(containers)
	slices.SortStableFunc(ordered, func(a, b evict.RunningContainer) int { return -cmp.Compare(a.InitStart, b.InitStart) })
	var list []act.StopStage
	for i, c := range ordered {
		if i == 0 || c.InitStart != ordered[i-1].InitStart {
			list = append(list, act.StopStage{})
		}
		last := &list[len(list)-1]
		last.IDs = append(last.IDs, c.ID)
	}
	if len(list) == 1 {
		return nil
	}
	for i := range list {
		list[i].StartBy = time.Duration(i) * grace / time.Duration(len(list))
	}
	return list
}

// sidecars returns the names of a pod's sidecars in the order of their start.
func sidecars(pod *evict.Pod) (names []string) {
	for i := range pod.InitContainers {
		if c := &pod.InitContainers[i]; c.Sidecar {
			names = append(names, c.Name)
		}
	}
	return names
}
