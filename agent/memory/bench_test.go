package memory

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
)

// BenchmarkObservation is the cost of the readings in one iteration of the decision loop:
// the node, and the usage of each pod's cgroup, from one walk of the sampler or from files.
func BenchmarkObservation(b *testing.B) {
	if os.Getuid() != 0 {
		b.Skip("needs root")
	}
	h, err := cgroup.Find("/sys/fs/cgroup")
	if err != nil {
		b.Skipf("needs the host's cgroups: %v", err)
	}
	for _, n := range []int{110, 500} {
		b.Run(fmt.Sprintf("walk/%d", n), func(b *testing.B) { benchWalk(b, h, n) })
		b.Run(fmt.Sprintf("files/%d", n), func(b *testing.B) { benchFiles(b, h, n) })
	}
}

func benchNode(b *testing.B, h *cgroup.Hierarchy, root string) *Memory {
	b.Helper()
	m, err := Open(Options{Procfs: kernel.FS("/proc"), Hierarchy: h, CgroupRoot: root})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { m.Close() })
	return m
}

func benchFiles(b *testing.B, h *cgroup.Hierarchy, n int) {
	root, groups := makePods(b, h, n)
	node := benchNode(b, h, root)
	var memory cgroup.Memory
	b.ReportAllocs()
	for b.Loop() {
		readNode(b, node)
		for _, g := range groups {
			if err := g.ReadMemory(&memory); err != nil {
				b.Fatal(err)
			}
			if _, err := g.Tasks(); err != nil {
				b.Fatal(err)
			}
		}
	}
}

func benchWalk(b *testing.B, h *cgroup.Hierarchy, n int) {
	root, groups := makePods(b, h, n)
	node := benchNode(b, h, root)
	reader := NewSamplerReader(nil)
	reader.SetSampler(&Sampler{Sampler: openSampler(b, h.Memory.Path(root, "kubepods")), Pods: true})
	tree := reader.Tree()
	b.ReportAllocs()
	for b.Loop() {
		readNode(b, node)
		if !tree.Walk() {
			b.Fatal("Walk() = false; want true")
		}
		for _, g := range groups {
			if tree.Find(g.ID()) == nil {
				b.Fatalf("Find(%d) = nil; want its row", g.ID())
			}
		}
	}
}

func readNode(b *testing.B, node *Memory) {
	b.Helper()
	var o signal.Observations
	node.Read(time.Now(), &o)
	if got := o[signal.MemoryAvailable]; got.Status != signal.Observed {
		b.Fatalf("Read(): %v is %+v; want it observed", signal.MemoryAvailable, got)
	}
}
