package reclaim

import (
	"context"
	"log/slog"
	"slices"

	"github.com/evictd/evictd/agent/evict"
)

// Why something is reclaimed.
const (
	Pressure  = "pressure"  // a threshold of a signal is met
	Threshold = "threshold" // usage is above imageGCHighThresholdPercent
	Age       = "age"       // unused for longer than imageMaximumGCAge
)

// keep keeps and logs a report. Of many in a row that found nothing, failed in the same
// way or in dry run would remove the same, it is the first, and one every hour.
func (r *Reclaimer) keep(report evict.ReclaimReport) {
	r.mu.Lock()
	if r.repeats(&report) {
		r.mu.Unlock()
		return
	}
	r.reports = append(r.reports, report)
	if n := len(r.reports) - keptReports; n > 0 {
		r.reports = slices.Delete(r.reports, 0, n)
	}
	r.mu.Unlock()
	level := slog.LevelInfo
	if report.Error != "" {
		level = slog.LevelWarn
	}
	r.o.Log.Log(context.Background(), level, "reclaimed from the node", "kind", report.Kind, "reason", report.Reason, "signal", report.Signal.String(),
		"removed", len(report.Removed), "freed", report.Freed, "took", report.Took.String(), "dry_run", report.DryRun, "note", report.Note, "error", report.Error)
	if r.o.Changed != nil {
		r.o.Changed(report)
	}
}

// repeats reports whether the last report of the kind says the same.
func (r *Reclaimer) repeats(report *evict.ReclaimReport) bool {
	for i := len(r.reports) - 1; i >= 0; i-- {
		last := &r.reports[i]
		if last.Kind == report.Kind && last.Signal == report.Signal {
			// In dry run what would be removed stays, and would be removed again.
			same := len(last.Removed) == 0 && len(report.Removed) == 0 || last.DryRun && report.DryRun && slices.Equal(last.Removed, report.Removed)
			// One of an earlier run may be later by a clock that was set back.
			age := report.At.Sub(last.At)
			return age >= 0 && age < repeatLog && same && last.Note == report.Note && last.Error == report.Error
		}
	}
	return false
}
