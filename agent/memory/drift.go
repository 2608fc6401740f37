package memory

import (
	"runtime"

	"github.com/evictd/evictd/bpf"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cpu"
)

// HostDrift returns how many bytes the per-CPU counters of this machine may hold back
// from the node's figures (bpf.Drift). What can't be read is counted as it is known to
// this process.
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
