package agent

import (
	"strings"

	"github.com/evictd/evictd/agent/config"
	"github.com/evictd/evictd/agent/loop"
	"github.com/evictd/evictd/agent/metrics"
	"github.com/evictd/evictd/agent/self"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
)

// facts returns what the mode follows from, but for what the loop knows.
func (d *daemon) facts(h *cgroup.Hierarchy) func(*config.Config) loop.Facts {
	place := self.Misplaced(kernel.FS(d.options.Procfs), h)
	return func(cfg *config.Config) loop.Facts {
		return loop.Facts{Configured: describeConfigured(cfg), Misplaced: place}
	}
}

// checks are what readiness means.
func (d *daemon) checks() []metrics.Check {
	return []metrics.Check{
		{Name: "observation", Run: func() (metrics.Verdict, string) {
			if v := d.board.view.Load(); v == nil {
				return metrics.Fail, "the first is not complete yet"
			} else if len(v.Orders.Unreadable) > 0 {
				return metrics.Fail, unreadableText(v)
			}
			return metrics.Pass, "complete"
		}},
		{Name: "runtime", Run: func() (metrics.Verdict, string) {
			switch s := d.inventory.Status(); {
			case s.DeclaredAbsent:
				return metrics.Pass, "declared absent"
			case !s.Connected && s.Error == "":
				return metrics.Fail, "the pods have not been listed yet"
			case !s.Connected:
				return metrics.Fail, s.Error
			}
			return metrics.Pass, "connected"
		}},
		{Name: "lanes", Run: d.checkLanes},
		{Name: "node", Run: func() (metrics.Verdict, string) {
			if d.shutdown.State().Active() {
				return metrics.Fail, "node is shutting down"
			}
			return metrics.Pass, "stays up"
		}},
		{Name: "eligible pods", Run: func() (metrics.Verdict, string) {
			if v := d.board.view.Load(); v == nil || v.Eligible() == 0 {
				return metrics.Warn, "no pod may be evicted"
			}
			return metrics.Pass, "some"
		}},
		{Name: "state", Run: func() (metrics.Verdict, string) {
			if err := d.store.Err(); err != nil {
				return metrics.Warn, notKept + ": " + err.Error()
			}
			return metrics.Pass, "kept in " + d.options.StateDir
		}},
		{Name: "mode", Run: func() (metrics.Verdict, string) {
			if v := d.board.view.Load(); v != nil && v.Mode.DryRun {
				return metrics.Warn, "dry run: " + strings.Join(v.Mode.Why, "; ")
			}
			return metrics.Pass, "enforcing"
		}},
	}
}
