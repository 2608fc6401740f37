package evict

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/signal"
)

func TestWithDerived(t *testing.T) {
	configured := []signal.Threshold{
		hard(signal.MemoryAvailable, "1Gi").reclaiming("500Mi").Threshold,
		hard(signal.NodeFsAvailable, "10%").reclaiming("2Gi").Threshold,
		hard(signal.ImageFsInodesFree, "5%").Threshold,
		hard(signal.ContainerFsAvailable, "1").Threshold, // dropped
		soft(signal.MemoryAvailable, "2Gi", time.Minute).Threshold,
		soft(signal.NodeFsInodesFree, "7%", time.Hour).Threshold,
		soft(signal.ImageFsAvailable, "20%", time.Second).Threshold,
		soft(signal.ContainerFsInodesFree, "1", time.Second).Threshold, // dropped
	}
	own := []string{
		"memory.available 1Gi 0s 500Mi", "nodefs.available 10% 0s 2Gi", "imagefs.inodesFree 5% 0s 0",
		"memory.available 2Gi 1m0s 0", "nodefs.inodesFree 7% 1h0m0s 0", "imagefs.available 20% 1s 0",
	}
	allocatable := []string{"derived allocatableMemory.available 1Gi 0s 500Mi"}
	fromNode := []string{"derived containerfs.available 10% 0s 2Gi", "derived containerfs.inodesFree 7% 1h0m0s 0"}
	fromImage := []string{"derived containerfs.inodesFree 5% 0s 0", "derived containerfs.available 20% 1s 0"}
	for _, tt := range []struct {
		name    string
		layout  Layout
		enforce bool
		want    [][]string
	}{
		{"single", SingleFs, true, [][]string{own, allocatable, fromNode}},
		{"single, allocatable not enforced", SingleFs, false, [][]string{own, fromNode}},
		{"dedicated imagefs", ImageFs, true, [][]string{own, allocatable, fromImage}},
		{"split", SplitFs, false, [][]string{own, fromNode}},
	} {
		var want, got []string
		for _, part := range tt.want {
			want = append(want, part...)
		}
		for _, one := range WithDerived(configured, tt.layout, tt.enforce) {
			text := fmt.Sprintf("%s %s %s %s", one.Signal, one.Value, one.Grace, one.MinReclaim)
			if one.Derived {
				text = "derived " + text
			}
			got = append(got, text)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: thresholds with the derived ones (-want +got):\n%s", tt.name, diff)
		}
	}
	if got := WithDerived(nil, SingleFs, true); len(got) != 0 {
		t.Errorf("derived thresholds of none = %v; want none", got)
	}
}

func TestStages(t *testing.T) {
	containers, images := []ReclaimKind{ReclaimContainers}, []ReclaimKind{ReclaimImages}
	both := []ReclaimKind{ReclaimContainers, ReclaimImages}
	for layout, want := range map[Layout][3][]ReclaimKind{ // for nodefs, imagefs and containerfs
		SingleFs: {both, both, both},
		ImageFs:  {containers, both, both},
		SplitFs:  {containers, images, containers},
	} {
		for i, pair := range [][2]signal.Signal{
			{signal.NodeFsAvailable, signal.NodeFsInodesFree},
			{signal.ImageFsAvailable, signal.ImageFsInodesFree},
			{signal.ContainerFsAvailable, signal.ContainerFsInodesFree},
		} {
			for _, s := range pair {
				if diff := cmp.Diff(want[i], layout.stages(s)); diff != "" {
					t.Errorf("layout %d: stages(%s) (-want +got):\n%s", layout, s, diff)
				}
			}
		}
		for _, s := range []signal.Signal{signal.MemoryAvailable, signal.AllocatableMemoryAvailable, signal.PIDAvailable} {
			if got := layout.stages(s); got != nil {
				t.Errorf("layout %d: stages(%s) = %v; want none", layout, s, got)
			}
		}
	}
}
