package status

import (
	"slices"
	"sync"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/evict"
)

// keptCold is how many reports of cold memory are kept.
const keptCold = 20

// coldReports are the last reports of cold memory. They are safe for concurrent
// use.
type coldReports struct {
	mu   sync.Mutex
	list []evict.ReclaimReport // oldest first
}

func (c *coldReports) add(r evict.ReclaimReport) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list = append(c.list, r)
	c.list = c.list[max(0, len(c.list)-keptCold):]
}

func (c *coldReports) snapshot() []evict.ReclaimReport {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.list)
}

// AddReclaim shows a reclaim of cold memory.
func (b *Board) AddReclaim(r evict.ReclaimReport) { b.cold.add(r) }

// reclaimStatus is a reclaim as evictctl shows it.
func reclaimStatus(r *evict.ReclaimReport) control.Reclaim {
	return control.Reclaim{
		At: r.At, Kind: r.Kind, Reason: r.Reason, Signal: r.Signal, DryRun: r.DryRun, Removed: r.Removed,
		Deficit: r.Deficit, Freed: r.Freed, TookSeconds: r.Took.Seconds(), Note: r.Note, Error: r.Error,
	}
}
