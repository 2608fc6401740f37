package agent

import (
	"github.com/evictd/evictd/agent/config"
	"github.com/evictd/evictd/agent/loop"
	"github.com/evictd/evictd/agent/self"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
)

// modeFacts returns what the mode depends on, except what the loop knows.
func (d *daemon) modeFacts(h *cgroup.Hierarchy) func(*config.Config) loop.Facts {
	misplaced := self.LocationProblem(kernel.FS(d.options.Procfs), h)
	if misplaced == "" {
		misplaced = d.rootProblem
	}
	return func(cfg *config.Config) loop.Facts {
		known := d.facts != nil && d.facts.CanReportKnown() // before they are used
		return loop.Facts{Configured: cfg.WhyDryRun(), Misplaced: misplaced, CannotReport: d.cannotReport(), RightsKnown: known}
	}
}

// cannotReport returns why no program reports evictions of a kubelet's pods to the API server;
// "" if evictd-kube does. It is the answer that evictd-kube gave last, so that the mode stays
// while evictd-kube is restarted.
func (d *daemon) cannotReport() string {
	if d.facts == nil {
		return "no evictd-kube is configured (kube.uid)"
	}
	return d.facts.CannotReport()
}
