package memory

import (
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/bpf"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/kerneltest"
)

// makePods creates n cgroups below a new kubepods and opens them. They are removed when
// the test ends.
func makePods(tb testing.TB, h *cgroup.Hierarchy, n int) (root string, groups []*cgroup.Cgroup) {
	tb.Helper()
	root = fmt.Sprintf("/evictd-memory-%d", os.Getpid())
	makeDir := func(dir string) {
		if err := os.Mkdir(dir, 0o755); err != nil {
			tb.Skip("needs to make cgroups: ", err)
		}
		tb.Cleanup(func() {
			if err := os.Remove(dir); err != nil {
				tb.Errorf("remove cgroup: %v", err)
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
				tb.Skip("needs memory and pids in the cgroup tree: ", err)
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
			tb.Fatal(err)
		}
		tb.Cleanup(func() { g.Close() })
		groups = append(groups, g)
	}
	return root, groups
}

// openSampler returns a BPF sampler that follows a cgroup.
func openSampler(tb testing.TB, kubepods string) *bpf.Sampler {
	tb.Helper()
	ring, err := bpf.OpenRing()
	if err != nil {
		tb.Skip("needs BPF: ", err)
	}
	tb.Cleanup(func() { ring.Close() })
	s, err := bpf.OpenSampler(ring, bpf.Options{})
	if err != nil {
		tb.Skip("needs BPF timers: ", err)
	}
	tb.Cleanup(func() { s.Close() })
	dir, err := unix.Open(kubepods, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		tb.Fatal(err)
	}
	defer unix.Close(dir)
	if err := s.SetPods(dir); err != nil {
		tb.Fatal(err)
	}
	return s
}

// newSamplerReader returns a reader with a BPF sampler that follows a new kubepods, and the
// options of a reader of the same cgroup through files.
func newSamplerReader(t *testing.T) (*SamplerReader, Options) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	h, err := cgroup.Find("/sys/fs/cgroup")
	if err != nil {
		t.Skip("needs the host's cgroups: ", err)
	}
	root, _ := makePods(t, h, 0)
	kubepods := h.Memory.Path(root, "kubepods")
	const limit = 512 * mib
	file := "memory.limit_in_bytes"
	if h.Version == cgroup.V2 {
		file = "memory.max"
	}
	kerneltest.Write(t, kubepods, map[string]string{file: fmt.Sprint(limit)})
	o := Options{Procfs: kernel.FS("/proc"), Hierarchy: h, CgroupRoot: root}
	reader := NewSamplerReader(openAsync(t, o))
	reader.SetSampler(&Sampler{
		Sampler: openSampler(t, kubepods), Kubepods: limit, Pods: true, Raised: new([signal.ThresholdIDCount]atomic.Bool),
		// A threshold that is always crossed makes each reading walk.
		Armed: []bpf.Threshold{{
			Key:    uint64(signal.IDOf(&signal.Threshold{Signal: signal.AllocatableMemoryAvailable})),
			Source: bpf.SourcePods, Capacity: limit, Available: limit + 1,
		}},
	})
	t.Cleanup(func() { reader.SetSampler(nil) })
	return reader, o
}

func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(60 * time.Second); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("no %s within 60 s", what)
		}
	}
}
