package status

import (
	"strings"
	"time"

	"github.com/evictd/evictd/agent/lanes"
	"github.com/evictd/evictd/agent/metrics"
	"github.com/evictd/evictd/agent/state"
)

// Checks returns the readiness checks.
func (b *Backend) Checks() []metrics.Check {
	return []metrics.Check{
		{Name: "observation", Run: func() (metrics.Result, string) {
			if v := b.o.View(); v == nil {
				return metrics.Fail, "the first observation is not complete yet"
			} else if len(v.Orders.Unreadable) > 0 {
				return metrics.Fail, unreadableText(v)
			}
			return metrics.Pass, "complete"
		}},
		{Name: "runtime", Run: func() (metrics.Result, string) {
			switch s := b.o.Inventory.Status(); {
			case s.DeclaredAbsent:
				return metrics.Pass, "declared absent"
			case !s.Connected:
				return metrics.Fail, s.Error
			}
			return metrics.Pass, "connected"
		}},
		{Name: "lanes", Run: b.checkLanes},
		{Name: "node", Run: func() (metrics.Result, string) {
			if b.o.Shutdown.State().Active() {
				return metrics.Fail, "node is shutting down"
			}
			return metrics.Pass, "is not shutting down"
		}},
		{Name: "eligible pods", Run: func() (metrics.Result, string) {
			if v := b.o.View(); v == nil || v.Eligible() == 0 {
				return metrics.Warn, "no pod is eligible for eviction"
			}
			return metrics.Pass, "at least one"
		}},
		{Name: "state", Run: func() (metrics.Result, string) {
			if err := b.o.Store.Err(); err != nil {
				return metrics.Warn, state.NotSavedMessage + ": " + err.Error()
			}
			return metrics.Pass, "kept in " + b.o.StateDir
		}},
		{Name: "mode", Run: func() (metrics.Result, string) {
			if v := b.o.View(); v != nil && v.Mode.DryRun {
				return metrics.Warn, "dry run: " + strings.Join(v.Mode.Reasons, "; ")
			}
			return metrics.Pass, "enforcing"
		}},
		{Name: "reports", Run: func() (metrics.Result, string) {
			if warnings := b.kubernetesWarnings(time.Now()); len(warnings) > 0 {
				return metrics.Warn, strings.Join(warnings, "; ")
			}
			return metrics.Pass, "none is late"
		}},
	}
}

// checkLanes fails if the poll lane is degraded, and warns if another lane is.
func (b *Backend) checkLanes() (metrics.Result, string) {
	result, detail := metrics.Pass, ""
	for _, l := range b.o.Lanes.Statuses(time.Now()) {
		if l.State != lanes.Degraded {
			continue
		}
		result = max(result, metrics.Warn)
		if l.Name == lanes.Polling {
			result = metrics.Fail
		}
		detail += l.Name + ": " + l.Reason + "; "
	}
	return result, strings.TrimSuffix(detail, "; ")
}
