package memory

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/kerneltest"
)

// meminfoText is what Linux 6.18 prints, with huge pages reserved.
const meminfoText = `MemTotal:       10485760 kB
MemFree:         4194304 kB
MemAvailable:    7340032 kB
Buffers:          102400 kB
Cached:          2048000 kB
SwapCached:            0 kB
Active:          1024000 kB
Inactive:        2048000 kB
Active(anon):     512000 kB
Inactive(anon):   512000 kB
Active(file):     614400 kB
Inactive(file):  1024000 kB
Unevictable:           0 kB
Mlocked:               0 kB
SwapTotal:             0 kB
SwapFree:              0 kB
Zswap:                 0 kB
Zswapped:              0 kB
Dirty:                 0 kB
Writeback:             0 kB
AnonPages:       1024000 kB
Mapped:           204800 kB
Shmem:            102400 kB
KReclaimable:     102400 kB
Slab:             204800 kB
SReclaimable:     102400 kB
SUnreclaim:       102400 kB
KernelStack:        8192 kB
PageTables:        16384 kB
HugePages_Total:     512
HugePages_Free:      512
HugePages_Rsvd:        0
HugePages_Surp:        0
Hugepagesize:       2048 kB
Hugetlb:         1048576 kB
`

func v1Stat(active, inactive int64) string {
	return fmt.Sprintf("cache 1\nrss 2\nshmem 3\nmapped_file 4\ninactive_file 5\nactive_file 6\n"+
		"total_cache 1\ntotal_rss 1048576000\ntotal_shmem 0\ntotal_mapped_file 0\ntotal_inactive_file %d\ntotal_active_file %d\n", inactive, active)
}

func v2Stat(anon, file, inactive, active int64) string {
	return fmt.Sprintf("anon %d\nfile %d\nkernel 1000\nshmem 0\nfile_mapped 0\ninactive_anon 0\nactive_anon 0\ninactive_file %d\nactive_file %d\nunevictable 0\n", anon, file, inactive, active)
}

const mib = 1 << 20

func openMemory(t *testing.T, o Options) *Memory {
	t.Helper()
	m, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

func TestReadUsesKubeletFormula(t *testing.T) {
	const total, hugetlb = 10240 * mib, 1024 * mib
	proc := kernel.FS(kerneltest.Tree(t, map[string]string{"meminfo": meminfoText}))
	for _, tc := range []struct {
		name  string
		files map[string]string
		// used and active are the node's working set and active file cache.
		used, active, podsLimit, podsUsed, podsActive int64
	}{
		{
			name: "v1", used: 2100 * mib, active: 600 * mib, podsLimit: 4096 * mib, podsUsed: 900 * mib, podsActive: 50 * mib,
			files: map[string]string{
				"memory/memory.usage_in_bytes":          fmt.Sprintln(3000 * mib),
				"memory/memory.limit_in_bytes":          "9223372036854771712\n",
				"memory/memory.stat":                    v1Stat(600*mib, 400*mib),
				"memory/cgroup.procs":                   "1\n",
				"memory/kubepods/memory.usage_in_bytes": fmt.Sprintln(1000 * mib),
				"memory/kubepods/memory.limit_in_bytes": fmt.Sprintln(4096 * mib),
				"memory/kubepods/memory.stat":           v1Stat(50*mib, 100*mib),
				"memory/kubepods/cgroup.procs":          "",
			},
		},
		{
			name: "v2, systemd driver", used: 2100 * mib, active: 600 * mib, podsLimit: 4096 * mib, podsUsed: 900 * mib, podsActive: 50 * mib,
			files: map[string]string{
				"cgroup.controllers":            "cpuset cpu io memory hugetlb pids\n",
				"cgroup.subtree_control":        "cpuset cpu io memory pids\n",
				"cgroup.procs":                  "1\n",
				"memory.stat":                   v2Stat(1000*mib, 2000*mib, 400*mib, 600*mib),
				"kubepods.slice/memory.current": fmt.Sprintln(1000 * mib),
				"kubepods.slice/memory.max":     fmt.Sprintln(4096 * mib),
				"kubepods.slice/memory.stat":    v2Stat(700*mib, 150*mib, 100*mib, 50*mib),
				"kubepods.slice/cgroup.procs":   "",
				"kubepods.slice/cgroup.events":  "populated 1\nfrozen 0\n",
				"kubepods.slice/cgroup.freeze":  "0\n",
				"kubepods.slice/cgroup.kill":    "",
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h, err := cgroup.Find(kernel.FS(kerneltest.Tree(t, tc.files)))
			if err != nil {
				t.Fatal(err)
			}
			now := time.Unix(1000, 0)
			for _, countCache := range []bool{false, true} {
				m := openMemory(t, Options{Procfs: proc, Hierarchy: h, CountCache: countCache})
				var got signal.Observations
				node := m.Read(now, &got)
				want := signal.Observations{
					signal.MemoryAvailable: {Status: signal.Observed, Capacity: total - hugetlb,
						Available: total - hugetlb - tc.used, Cache: tc.active, Time: now},
					signal.AllocatableMemoryAvailable: {Status: signal.Observed, Capacity: tc.podsLimit,
						Available: tc.podsLimit - tc.podsUsed, Cache: tc.podsActive, Time: now},
				}
				if countCache {
					for s := range want {
						want[s].Available += want[s].Cache
						want[s].Cache = 0
					}
				}
				if got != want {
					t.Errorf("CountCache %v: Read() = %+v; want %+v", countCache, got, want)
				}
				// 10240 − 4096 free − (1000 anon + 100 + 2000 file) − 1024 huge.
				if node.KernelUsage != 2020*mib {
					t.Errorf("unaccounted = %d MiB; want 2020", node.KernelUsage/mib)
				}
			}
		})
	}
}

func TestReadWithoutKubepods(t *testing.T) {
	proc := kernel.FS(kerneltest.Tree(t, map[string]string{"meminfo": meminfoText}))
	root := kerneltest.Tree(t, map[string]string{
		"memory/memory.usage_in_bytes": "1000\n", "memory/memory.limit_in_bytes": "9223372036854771712\n",
		"memory/memory.stat": v1Stat(0, 0), "memory/cgroup.procs": "",
	})
	h, err := cgroup.Find(kernel.FS(root))
	if err != nil {
		t.Fatal(err)
	}
	m := openMemory(t, Options{Procfs: proc, Hierarchy: h})
	now := time.Unix(1000, 0)
	var o signal.Observations
	m.Read(now, &o)
	if got := o[signal.AllocatableMemoryAvailable]; got != (signal.Observation{}) {
		t.Errorf("without kubepods: %+v; want it not observed", got)
	}
	// A kubelet that starts later creates the cgroup.
	kerneltest.Write(t, root, map[string]string{
		"memory/kubepods/memory.usage_in_bytes": "1048576\n", "memory/kubepods/memory.limit_in_bytes": "9223372036854771712\n",
		"memory/kubepods/memory.stat": v1Stat(0, 0), "memory/kubepods/cgroup.procs": "",
	})
	m.Read(now.Add(kubepodsCheckInterval), &o)
	if got := o[signal.AllocatableMemoryAvailable]; got != (signal.Observation{}) {
		t.Errorf("kubepods without a limit: %+v; want it not observed", got)
	}
	if err := os.WriteFile(filepath.Join(root, "memory/kubepods/memory.limit_in_bytes"), []byte("4194304\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	m.Read(now.Add(2*kubepodsCheckInterval), &o)
	if got := o[signal.AllocatableMemoryAvailable]; got.Status != signal.Observed || got.Available != 3<<20 {
		t.Errorf("kubepods with a limit: %+v; want 3 MiB available", got)
	}
}

// A signal that can't be read does not affect the other.
func TestReadMalformedMeminfo(t *testing.T) {
	proc := kernel.FS(kerneltest.Tree(t, map[string]string{"meminfo": strings.Replace(meminfoText, "MemFree:", "MemFree: x", 1)}))
	root := kerneltest.Tree(t, map[string]string{
		"memory/memory.usage_in_bytes": "1000\n", "memory/memory.stat": v1Stat(0, 0), "memory/cgroup.procs": "",
		"memory/kubepods/memory.usage_in_bytes": "1048576\n", "memory/kubepods/memory.limit_in_bytes": "4194304\n",
		"memory/kubepods/memory.stat": v1Stat(0, 0), "memory/kubepods/cgroup.procs": "",
	})
	h, err := cgroup.Find(kernel.FS(root))
	if err != nil {
		t.Fatal(err)
	}
	m := openMemory(t, Options{Procfs: proc, Hierarchy: h})
	var o signal.Observations
	m.Read(time.Unix(1000, 0), &o)
	if got := o[signal.MemoryAvailable]; got.Status != signal.Unreadable || got.Err == nil || got.Available != 0 {
		t.Errorf("malformed meminfo: %+v; want it unreadable", got)
	}
	if got := o[signal.AllocatableMemoryAvailable]; got.Status != signal.Observed {
		t.Errorf("kubepods with a malformed meminfo: %+v; want it observed", got)
	}
}

func TestOpenFails(t *testing.T) {
	h, err := cgroup.Find(kernel.FS(kerneltest.Tree(t, map[string]string{
		"memory/memory.usage_in_bytes": "1\n", "memory/memory.limit_in_bytes": "1\n", "memory/memory.stat": v1Stat(0, 0), "memory/cgroup.procs": "",
	})))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Options{Procfs: kernel.FS(t.TempDir()), Hierarchy: h}); err == nil || !strings.Contains(err.Error(), "meminfo") {
		t.Errorf("Open() without meminfo = %v; want an error that names it", err)
	}
}

func hostMemory(tb testing.TB) *Memory {
	tb.Helper()
	h, err := cgroup.Find("/sys/fs/cgroup")
	if err != nil {
		tb.Skip("needs cgroups: ", err)
	}
	m, err := Open(Options{Procfs: "/proc", Hierarchy: h})
	if err != nil {
		tb.Skip("needs a readable root cgroup: ", err)
	}
	tb.Cleanup(func() { m.Close() })
	return m
}

// Where the usage of kubepods can't be read, its upper bound is not 0, in the first reading
// and in later ones.
func TestReadMalformedKubepods(t *testing.T) {
	o, kubepods := copiedNode(t)
	m := openMemory(t, o)
	kerneltest.Write(t, kubepods, map[string]string{"memory.stat": "total_rss none\n"})
	now := time.Unix(1000, 0)
	for i, want := range []Node{{KubepodsUsage: 1 << 20}, {KubepodsUsage: 1 << 20}, {KubepodsUsage: math.MaxInt64}, {KubepodsUsage: math.MaxInt64}} {
		var got signal.Observations
		if i == 2 {
			kerneltest.Write(t, kubepods, map[string]string{"memory.usage_in_bytes": "many\n"})
		}
		node := m.Read(now, &got)
		if node.Shmem != 100<<20 {
			t.Errorf("reading %d: %d bytes of shared memory; want 100 MiB", i, node.Shmem)
		}
		node.Total, node.Hugetlb, node.Shmem, node.KernelUsage = 0, 0, 0, 0
		if node != want || got[signal.AllocatableMemoryAvailable].Status != signal.Unreadable {
			t.Errorf("reading %d: Read() = %+v, %+v; want %+v, and the signal of kubepods unreadable", i, node, got[signal.AllocatableMemoryAvailable], want)
		}
	}
}

// The upper bound of the working set uses the page cache of the earlier reading.
func TestKubepodsUpperBound(t *testing.T) {
	before := Node{Kubepods: 600 * mib, KubepodsUsage: 1000 * mib, KubepodsKnown: true}
	for _, tc := range []struct {
		name        string
		now, before Node
		want        int64
	}{
		{"known", Node{Kubepods: 700 * mib, KubepodsUsage: 2000 * mib, KubepodsKnown: true}, before, 700 * mib},
		{"no pods", Node{KubepodsKnown: true}, before, 0},
		{"cache from the earlier reading", Node{KubepodsUsage: 1100 * mib}, before, 700 * mib},
		{"less than that cache", Node{KubepodsUsage: 300 * mib}, before, 0},
		{"no earlier reading", Node{KubepodsUsage: 1100 * mib}, Node{}, 1100 * mib},
		{"earlier reading incomplete", Node{KubepodsUsage: 1100 * mib}, Node{KubepodsUsage: 900 * mib}, 1100 * mib},
	} {
		if got := tc.now.MaxKubepods(&tc.before); got != tc.want {
			t.Errorf("%s: MaxKubepods() = %d; want %d", tc.name, got, tc.want)
		}
	}
}

func TestReadHost(t *testing.T) {
	var o signal.Observations
	node := hostMemory(t).Read(time.Now(), &o)
	got := o[signal.MemoryAvailable]
	if got.Status != signal.Observed || got.Available <= 0 || got.Available > got.Capacity || got.Capacity != int64(node.Total-node.Hugetlb) {
		t.Errorf("Read() of the host = %+v of %+v", got, node)
	}
}

// BenchmarkRead is the cost of one observation of the node.
func BenchmarkRead(b *testing.B) {
	m := hostMemory(b)
	var o signal.Observations
	b.ReportAllocs()
	for b.Loop() {
		m.Read(time.Now(), &o)
	}
}
