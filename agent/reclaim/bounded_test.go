package reclaim

import (
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/evict"
)

// TestStoredReportsAreBounded checks that the reports that are saved and served have a
// limited number of names, whatever was removed, while the log and the metrics count all.
func TestStoredReportsAreBounded(t *testing.T) {
	const removed = 3000
	report := evict.ReclaimReport{At: time.Now(), Kind: evict.ReclaimContainers, DryRun: true}
	for i := range removed {
		report.Removed = append(report.Removed, strconv.Itoa(i))
	}
	var log strings.Builder
	counted := 0
	r := New(Options{
		Log:      slog.New(slog.NewTextHandler(&log, nil)),
		OnReport: func(r evict.ReclaimReport) { counted += len(r.Removed) },
	}, Policy{})
	expect := func(when string, reports int) {
		t.Helper()
		list := r.Reports()
		if len(list) != reports {
			t.Errorf("%s: %d reports; want %d", when, len(list), reports)
		}
		for _, stored := range list {
			if n := len(stored.Removed); n > 100 || n+stored.RemovedMore < removed {
				t.Errorf("%s: the report has %d names and %d more; want at most 100 names, and %d in all", when, n, stored.RemovedMore, removed)
			}
		}
	}
	r.addReport(report)
	r.addReport(report) // the same
	expect("after a reclaim", 1)
	report.Removed = append(report.Removed, "another")
	r.addReport(report)
	expect("after one that removes one more", 2)
	if want := 2*removed + 1; counted != want || !strings.Contains(log.String(), "removed="+strconv.Itoa(removed)) {
		t.Errorf("counted %d; want %d, and the number in the log:\n%s", counted, want, log.String())
	}
	r.RestoreReports([]evict.ReclaimReport{report}) // as an earlier version saved it
	expect("after a restart", 1)
}
