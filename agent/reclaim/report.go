package reclaim

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
)

// Reason is why something was reclaimed.
type Reason = string

// The reasons.
const (
	Pressure  Reason = "pressure"  // a threshold of a signal is met
	Threshold Reason = "threshold" // usage is above imageGCHighThresholdPercent
	Age       Reason = "age"       // unused for longer than imageMaximumGCAge
)

// Report tells what a reclaim did.
type Report struct {
	At     time.Time         `json:"at"`
	Kind   evict.ReclaimKind `json:"kind"`
	Reason Reason            `json:"reason"`
	// Signal is the one that it was for; that of imagefs where it was for its
	// usage or for age.
	Signal signal.Signal `json:"signal"`
	DryRun bool          `json:"dryRun,omitempty"`
	// Removed names what was removed, or would have been.
	Removed []string `json:"removed"`
	// Deficit is what the signal lacked when the reclaim began, in its unit; 0 where
	// the reclaim was for age.
	Deficit int64 `json:"deficit,omitempty"`
	// Freed is by how much more the filesystem has left than before, in the
	// signal's unit: what others wrote or removed meanwhile is in it.
	Freed int64         `json:"freed"`
	Took  time.Duration `json:"tookNanoseconds"`
	// Note says why nothing was tried; Error what went wrong last.
	Note  string `json:"note,omitempty"`
	Error string `json:"error,omitempty"`
}

// keep keeps and logs a report. Of many in a row that found nothing, failed in the same
// way or in dry run would remove the same, it is the first, and one every hour.
func (r *Reclaimer) keep(report Report) {
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
func (r *Reclaimer) repeats(report *Report) bool {
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
