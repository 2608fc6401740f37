package status

import (
	"slices"
	"sync"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/evict"
)

// maxProactiveReports is the number of reports of proactive reclaim that are kept.
const maxProactiveReports = 20

// proactiveReports are the last reports of proactive reclaim. They are safe for
// concurrent use.
type proactiveReports struct {
	mu   sync.Mutex
	list []evict.ReclaimReport // oldest first
}

func (p *proactiveReports) add(r evict.ReclaimReport) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.list = append(p.list, r)
	p.list = p.list[max(0, len(p.list)-maxProactiveReports):]
}

func (p *proactiveReports) snapshot() []evict.ReclaimReport {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.list)
}

// AddProactiveReclaim adds the report of a proactive reclaim.
func (b *Backend) AddProactiveReclaim(r evict.ReclaimReport) { b.proactive.add(r) }

// reclaimStatus converts the report of a reclaim for the control socket.
func reclaimStatus(r *evict.ReclaimReport) control.Reclaim {
	return control.Reclaim{
		At: r.At, Kind: r.Kind, Reason: r.Reason, Signal: r.Signal, DryRun: r.DryRun,
		Removed: r.Removed, RemovedMore: r.RemovedMore,
		Deficit: r.Deficit, Freed: r.Freed, TookSeconds: r.Duration.Seconds(), Note: r.Note, Error: r.Error,
	}
}
