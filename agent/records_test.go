package agent

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/evictd/evictd/agent/act"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/metrics"
)

// stopped is what the reports of many pods lead to that a shutdown stops at once: the
// metric of those that were stopped, and the records that are kept.
func stopped(t *testing.T, begin func(*records, evict.Record), pods int) (metric string, kept int) {
	t.Helper()
	d := &daemon{
		log: &droppingLog{Logger: testLogger(t)}, board: &board{records: &records{}}, keeper: &keeper{wake: make(chan struct{}, 1)},
		metrics: metrics.New(metrics.Build{}, func() uint64 { return 0 }),
	}
	r := newReports(d)
	now := time.Now()
	uid := func(i int) string { return fmt.Sprintf("u%03d", i) }
	for i := range pods {
		begin(d.board.records, evict.Record{Pod: "default/p", UID: uid(i), Cause: evict.CauseShutdown, Decided: now, Result: evict.ResultPending})
	}
	if got := len(d.board.records.snapshot()); got != pods {
		t.Errorf("%d records of %d pods under way; want all", got, pods)
	}
	for i := range pods {
		r.take(act.Progress{UID: uid(i), Stage: act.Signalled, Time: now})
		r.take(act.Progress{UID: uid(i), Stage: act.LastGone, Time: now})
		r.take(act.Progress{UID: uid(i), Stage: act.Finished, Time: now})
	}
	page := httptest.NewRecorder()
	d.metrics.Handler(d.log.Logger).ServeHTTP(page, httptest.NewRequest("GET", "/metrics", nil))
	for line := range strings.Lines(page.Body.String()) {
		if name, value, _ := strings.Cut(strings.TrimSpace(line), " "); strings.HasPrefix(name, "evictd_evictions_total{") &&
			strings.Contains(name, `result="stopped"`) && strings.Contains(name, `"`+evict.CauseShutdown+`"`) {
			metric = value
		}
	}
	return metric, len(d.board.records.snapshot())
}

// Every pod of a shutdown is counted, however many are under way at one time.
func TestShutdownOfManyPods(t *testing.T) {
	if metric, kept := stopped(t, (*records).add, 110); metric != "110" || kept != keptRecords {
		t.Errorf("metric = %s, %d records kept; want 110 and %d", metric, kept, keptRecords)
	}
}

// So it is across a restart in the middle of the shutdown. What is not taken up again
// gives way to later records.
func TestShutdownOfManyPodsAfterRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var earlier []evict.Record
		metric, kept := stopped(t, func(r *records, rec evict.Record) {
			earlier = append(earlier, rec)
			if len(earlier) < 110 {
				return
			}
			r.restore(earlier)
			for i := range earlier {
				r.takeUp(earlier[i].UID)
			}
		}, 110)
		if metric != "110" || kept != keptRecords {
			t.Errorf("metric = %s, %d records kept; want 110 and %d", metric, kept, keptRecords)
		}
		var r records
		r.restore(earlier)
		time.Sleep(resumeFor)
		r.add(evict.Record{UID: "new", Result: evict.ResultPending})
		if got := r.snapshot(); len(got) != keptRecords || got[len(got)-1].UID != "new" {
			t.Errorf("%d records, the last %+v; want %d and the new one", len(got), got[len(got)-1], keptRecords)
		}
	})
}
