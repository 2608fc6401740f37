package lanes

import (
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/bpf"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
)

// benchPods makes n cgroups below a kubepods of its own, which are removed with the
// benchmark, and opens them.
func benchPods(b *testing.B, h *cgroup.Hierarchy, n int) (root string, groups []*cgroup.Cgroup) {
	b.Helper()
	root = fmt.Sprintf("/evictd-bench-%d", os.Getpid())
	makeDir := func(dir string) {
		if err := os.Mkdir(dir, 0o755); err != nil {
			b.Skip("needs to make cgroups: ", err)
		}
		b.Cleanup(func() {
			if err := os.Remove(dir); err != nil {
				b.Errorf("remove cgroup: %v", err)
			}
		})
	}
	mkdir := func(name string, parent bool) {
		makeDir(h.Memory.Path(name))
		if h.Pids != "" && h.Pids != h.Memory {
			makeDir(h.Pids.Path(name))
		}
		if parent && h.Version == cgroup.V2 {
			control := h.Memory.Path(name, "cgroup.subtree_control")
			if err := os.WriteFile(control, []byte("+memory +pids"), 0); err != nil {
				b.Skip("needs memory and pids in the cgroup tree: ", err)
			}
		}
	}
	mkdir(root, true)
	mkdir(root+"/kubepods", true)
	for i := range n {
		name := fmt.Sprintf("%s/kubepods/%d", root, i)
		mkdir(name, false)
		g, err := h.Open(name)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { g.Close() })
		groups = append(groups, g)
	}
	return root, groups
}

// benchSampler returns the sampler in the kernel, which follows a cgroup.
func benchSampler(b *testing.B, kubepods string) *bpf.Sampler {
	b.Helper()
	ring, err := bpf.OpenRing()
	if err != nil {
		b.Skip("needs BPF: ", err)
	}
	b.Cleanup(func() { ring.Close() })
	s, err := bpf.OpenSampler(ring, bpf.Options{})
	if err != nil {
		b.Skip("needs BPF timers: ", err)
	}
	b.Cleanup(func() { s.Close() })
	dir, err := unix.Open(kubepods, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer unix.Close(dir)
	if err := s.SetPods(dir); err != nil {
		b.Fatal(err)
	}
	return s
}

// BenchmarkObservation is the cost of what one turn of the decision loop reads: the
// node, and what each pod's cgroup uses, by one walk of the sampler or by files.
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
	m, err := OpenMemory(MemoryOptions{Procfs: kernel.FS("/proc"), Hierarchy: h, CgroupRoot: root})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { m.Close() })
	return m
}

func benchFiles(b *testing.B, h *cgroup.Hierarchy, n int) {
	root, groups := benchPods(b, h, n)
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
	root, groups := benchPods(b, h, n)
	node := benchNode(b, h, root)
	q := NewQuick(nil)
	q.give(&source{Sampler: benchSampler(b, h.Memory.Path(root, "kubepods")), pods: true})
	tree := q.Tree()
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
