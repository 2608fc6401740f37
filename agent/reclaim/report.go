package reclaim

import (
	"context"
	"log/slog"
	"slices"

	"github.com/evictd/evictd/agent/evict"
)

// Reasons of a reclaim.
const (
	Pressure  = "pressure"  // a threshold of a signal is met
	Threshold = "threshold" // usage is above imageGCHighThresholdPercent
	Age       = "age"       // unused for longer than imageMaximumGCAge
)

// addReport stores and logs a report. Of consecutive reports that found nothing,
// failed in the same way or, in dry run, would remove the same, it stores the first
// and one per repeatLogInterval.
func (r *Reclaimer) addReport(report evict.ReclaimReport) {
	stored := report.Bounded()
	r.mu.Lock()
	if r.isRepeat(&stored) {
		r.mu.Unlock()
		return
	}
	r.reports = append(r.reports, stored)
	if n := len(r.reports) - maxReports; n > 0 {
		r.reports = slices.Delete(r.reports, 0, n)
	}
	r.mu.Unlock()
	level := slog.LevelInfo
	if report.Error != "" {
		level = slog.LevelWarn
	}
	r.o.Log.Log(context.Background(), level, "node-level reclaim ended", "kind", report.Kind, "reason", report.Reason, "signal", report.Signal.String(),
		"removed", len(report.Removed), "freed", report.Freed, "took", report.Duration.String(), "dry_run", report.DryRun, "note", report.Note, "error", report.Error)
	if r.o.OnReport != nil {
		r.o.OnReport(report)
	}
}

// isRepeat reports whether the last report of the kind has the same content as report,
// which is bounded.
func (r *Reclaimer) isRepeat(report *evict.ReclaimReport) bool {
	for i := len(r.reports) - 1; i >= 0; i-- {
		last := &r.reports[i]
		if last.Kind == report.Kind && last.Signal == report.Signal {
			// In dry run the same objects would be removed again and again.
			same := len(last.Removed) == 0 && len(report.Removed) == 0 ||
				last.DryRun && report.DryRun && slices.Equal(last.Removed, report.Removed) && last.RemovedMore == report.RemovedMore
			// A report of an earlier run may be in the future if the clock was set
			// back.
			age := report.At.Sub(last.At)
			return age >= 0 && age < repeatLogInterval && same && last.Note == report.Note && last.Error == report.Error
		}
	}
	return false
}
