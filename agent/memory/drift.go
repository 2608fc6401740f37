package memory

import (
	"runtime"

	"github.com/evictd/evictd/bpf"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cpu"
)

// HostDrift returns how many bytes the node's values may lag behind because of per-CPU
// counters ([bpf.Drift]). If the online CPUs or NUMA nodes can't be read, it uses
// [runtime.NumCPU] and one node.
func HostDrift(sysfs kernel.FS) int64 {
	cpus, err := cpu.Online(sysfs)
	if err != nil {
		cpus = runtime.NumCPU()
	}
	nodes, err := bpf.NodesWithMemory()
	if err != nil {
		nodes = 1
	}
	return int64(bpf.Drift(cpus, uint64(nodes)))
}
