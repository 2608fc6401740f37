package lanes

import (
	"testing"
	"time"

	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
)

// BenchmarkObservation is the cost of one reading of this machine's memory,
// which is what the polling lane does at most a hundred times a second.
func BenchmarkObservation(b *testing.B) {
	h, err := cgroup.Find("/sys/fs/cgroup")
	if err != nil {
		b.Skipf("needs the host's cgroups: %v", err)
	}
	m, err := OpenMemory(MemoryOptions{Procfs: kernel.FS("/proc"), Hierarchy: h, CgroupRoot: "/"})
	if err != nil {
		b.Skipf("needs the root's memory: %v", err)
	}
	defer m.Close()
	b.ReportAllocs()
	for b.Loop() {
		var o signal.Observations
		m.Read(time.Now(), &o)
		if got := o[signal.MemoryAvailable]; got.Status != signal.Observed {
			b.Fatalf("Read(): %v is %+v; want it observed", signal.MemoryAvailable, got)
		}
	}
}
