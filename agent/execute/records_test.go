package execute

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/act"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/metrics"
)

// stopped stops many pods at once, as a shutdown does. It returns the metric of stopped pods
// and the number of records kept.
func stopped(t *testing.T, begin func(*Records, evict.Record), pods int) (metric string, kept int) {
	t.Helper()
	m := metrics.New(metrics.Build{}, func() uint64 { return 0 })
	e := New(Options{
		Killer: func(func(act.Progress)) act.Actuator { return nil }, DryRun: func(func(act.Progress)) act.Actuator { return nil },
		Records: &Records{}, Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Metrics: m, Save: func() {},
	})
	now := time.Now()
	uid := func(i int) string { return fmt.Sprintf("u%03d", i) }
	for i := range pods {
		begin(e.records, evict.Record{Pod: "default/p", UID: uid(i), Cause: evict.CauseShutdown, Decided: now, Result: evict.ResultPending})
	}
	if got := len(e.records.List()); got != pods {
		t.Errorf("%d records of %d pending pods; want all", got, pods)
	}
	for i := range pods {
		e.onProgress(act.Progress{UID: uid(i), Stage: act.Signalled, Time: now})
		e.onProgress(act.Progress{UID: uid(i), Stage: act.LastGone, Time: now})
		e.onProgress(act.Progress{UID: uid(i), Stage: act.Finished, Time: now})
	}
	page := httptest.NewRecorder()
	m.Handler(e.log).ServeHTTP(page, httptest.NewRequest("GET", "/metrics", nil))
	for line := range strings.Lines(page.Body.String()) {
		if name, value, _ := strings.Cut(strings.TrimSpace(line), " "); strings.HasPrefix(name, "evictd_evictions_total{") &&
			strings.Contains(name, `result="stopped"`) && strings.Contains(name, `"`+evict.CauseShutdown+`"`) {
			metric = value
		}
	}
	return metric, len(e.records.List())
}

// All pods of a shutdown are counted, however many are pending at a time.
func TestShutdownOfManyPods(t *testing.T) {
	if metric, kept := stopped(t, (*Records).add, 110); metric != "110" || kept != maxRecords {
		t.Errorf("metric = %s, %d records kept; want 110 and %d", metric, kept, maxRecords)
	}
}

// All pods are counted across a restart during the shutdown too. Records that are not
// resumed are dropped for later ones.
func TestShutdownOfManyPodsAfterRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var earlier []evict.Record
		metric, kept := stopped(t, func(r *Records, rec evict.Record) {
			earlier = append(earlier, rec)
			if len(earlier) < 110 {
				return
			}
			r.Restore(earlier)
			for i := range earlier {
				r.resume(earlier[i].UID)
			}
		}, 110)
		if metric != "110" || kept != maxRecords {
			t.Errorf("metric = %s, %d records kept; want 110 and %d", metric, kept, maxRecords)
		}
		var r Records
		r.Restore(earlier)
		time.Sleep(resumeWindow)
		r.add(evict.Record{UID: "new", Result: evict.ResultPending})
		if got := r.List(); len(got) != maxRecords || got[len(got)-1].UID != "new" {
			t.Errorf("%d records, the last %+v; want %d and the new one", len(got), got[len(got)-1], maxRecords)
		}
	})
}

func TestRecords(t *testing.T) {
	decided := time.Unix(1000, 0)
	at := func(ms int) time.Time { return decided.Add(time.Duration(ms) * time.Millisecond) }
	for _, tc := range []struct {
		name     string
		rec      evict.Record
		progress []act.Progress
		want     evict.Record
	}{
		{"killed", evict.Record{Hard: true, Expected: 100}, []act.Progress{
			{Stage: act.Signalled, Time: at(1), Processes: 3}, {Stage: act.FirstGone, Time: at(5)},
			{Stage: act.LastGone, Time: at(9)}, {Stage: act.Finished, Time: at(20), Processes: 3},
		}, evict.Record{Hard: true, Expected: 100, Freed: 100, SignalSent: at(1), FirstGone: at(5), LastGone: at(9), Processes: 3, Result: evict.ResultKilled}},
		{"stopped", evict.Record{Expected: 100}, []act.Progress{
			{Stage: act.Signalled, Time: at(1)}, {Stage: act.LastGone, Time: at(900)}, {Stage: act.Finished, Time: at(950)},
		}, evict.Record{Expected: 100, Freed: 100, SignalSent: at(1), LastGone: at(900), Result: evict.ResultStopped}},
		{"escalated", evict.Record{}, []act.Progress{
			{Stage: act.Signalled, Time: at(1)}, {Stage: act.Escalated, Time: at(100)}, {Stage: act.Signalled, Time: at(101), Processes: 2},
			{Stage: act.LastGone, Time: at(110)}, {Stage: act.Finished, Time: at(120), Processes: 2},
		}, evict.Record{SignalSent: at(1), Escalated: at(100), LastGone: at(110), Processes: 2, Result: evict.ResultKilled}},
		{"stuck", evict.Record{Hard: true}, []act.Progress{
			{Stage: act.Signalled, Time: at(1), Processes: 1}, {Stage: act.Finished, Time: at(20), Err: errors.New("1 process left")},
		}, evict.Record{Hard: true, SignalSent: at(1), Processes: 1, Result: evict.ResultStuck, Error: "1 process left"}},
		{"refused", evict.Record{Hard: true}, []act.Progress{
			{Stage: act.Signalled, Time: at(1)}, {Stage: act.Refused, Time: at(2), Err: errors.New("it contains pid 1")},
		}, evict.Record{Hard: true, SignalSent: at(1), Result: evict.ResultFailed, Error: "it contains pid 1"}},
		{"dry run", evict.Record{Hard: true, DryRun: true, Expected: 100}, []act.Progress{
			{Stage: act.Finished, Time: at(2), Processes: 4},
		}, evict.Record{Hard: true, DryRun: true, Expected: 100, Processes: 4, Result: evict.ResultDryRun}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var r Records
			tc.rec.UID, tc.rec.Decided, tc.rec.Result = "u", decided, evict.ResultPending
			tc.want.UID, tc.want.Decided = "u", decided
			r.add(evict.Record{UID: "u", Result: evict.ResultKilled}) // an older record of the pod
			r.add(tc.rec)
			for _, p := range tc.progress {
				r.update("u", func(rec *evict.Record) { applyProgress(p, rec) })
			}
			got := r.List()
			if diff := cmp.Diff(tc.want, got[1]); diff != "" {
				t.Errorf("record differs (-want +got):\n%s", diff)
			}
			if _, ok := r.update("u", func(*evict.Record) {}); ok {
				t.Error("a record that has ended was changed")
			}
		})
	}
}

// Refused pods, also those that were killed, do not displace the records of evictions.
func TestRefusalsDoNotDisplaceEvictions(t *testing.T) {
	var r Records
	r.add(evict.Record{UID: "eviction", Cause: "memory.available", Result: evict.ResultKilled})
	r.add(evict.Record{UID: "pending", Cause: evict.CauseAdmission, Result: evict.ResultPending})
	for i := range 2 * maxRecords {
		r.add(evict.Record{UID: fmt.Sprint("r", i), Cause: evict.CauseAdmission, Result: []string{evict.ResultRefused, evict.ResultKilled}[i%2]})
	}
	list := r.List()
	if len(list) != 1+maxRefusalRecords || list[0].UID != "eviction" || list[1].UID != "pending" || list[len(list)-1].UID != "r99" {
		t.Errorf("records %+v; want the eviction and the last %d refusals with the pending one", list, maxRefusalRecords)
	}
}

// The report is that of the last eviction, whether or not it has ended. A repeated answer keeps
// its time.
func TestSetReport(t *testing.T) {
	var r Records
	for _, rec := range []evict.Record{
		{UID: "u", Result: evict.ResultKilled}, {UID: "u", Result: evict.ResultPending}, {UID: "u", DryRun: true, Result: evict.ResultDryRun},
		{UID: "u", Result: evict.ResultKernel}, {UID: "v", Result: evict.ResultPending},
	} {
		r.add(rec)
	}
	at := time.Unix(1000, 0)
	if !r.SetReport("u", "delayed", at) || !r.SetReport("u", "reported", at.Add(time.Second)) || !r.SetReport("u", "reported", at.Add(time.Minute)) {
		t.Error("SetReport(u) = false; want true")
	}
	if r.SetReport("w", "reported", at) {
		t.Error("SetReport(w) = true; want false")
	}
	for i, rec := range r.List() {
		want := rec
		want.ReportAnswer, want.Reported = "", time.Time{}
		if i == 1 {
			want.ReportAnswer, want.Reported = "reported", at.Add(time.Second)
		}
		if diff := cmp.Diff(want, rec); diff != "" {
			t.Errorf("record %d differs (-want +got):\n%s", i, diff)
		}
	}
}

func TestRecordsKept(t *testing.T) {
	var r Records
	old := make([]evict.Record, 2*maxRecords)
	old[2*maxRecords-1] = evict.Record{UID: "last", Result: evict.ResultPending}
	r.Restore(old)
	got := r.List()
	if len(got) != maxRecords || got[maxRecords-1].Result != evict.ResultUnknown {
		t.Errorf("Restore() keeps %d, the last %+v; want %d, unknown", len(got), got[len(got)-1], maxRecords)
	}
	r.add(evict.Record{UID: "new"})
	if got := r.List(); len(got) != maxRecords || got[maxRecords-1].UID != "new" {
		t.Errorf("add() keeps %d, the last %q; want %d, the new one", len(got), got[len(got)-1].UID, maxRecords)
	}
}

func TestOvershoot(t *testing.T) {
	var r Records
	since := time.Unix(1000, 0)
	r.add(evict.Record{UID: "before", Cause: "memory.available", Threshold: 100, Decided: since.Add(-time.Second)})
	r.add(evict.Record{UID: "other", Cause: "pid.available", Threshold: 100, Decided: since})
	r.add(evict.Record{UID: "now", Cause: "memory.available", Threshold: 100, Overshoot: 10, Decided: since})
	for _, available := range []int64{95, 60, 80} {
		r.UpdateOvershoot("memory.available", since, available)
	}
	var got []int64
	for _, rec := range r.List() {
		got = append(got, rec.Overshoot)
	}
	if want := []int64{0, 0, 40}; !slices.Equal(got, want) {
		t.Errorf("overshoot = %v; want %v", got, want)
	}
}

// The kernel reports each process that it kills. Kills in one pod in a row share one record.
func TestKernelKillsOfOnePod(t *testing.T) {
	start := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	r := &Records{}
	r.add(evict.Record{UID: "a", Result: evict.ResultKilled, Decided: start})
	for _, k := range []struct {
		uid string
		at  time.Duration
	}{{"a", 0}, {"a", time.Second}, {"b", 2 * time.Second}, {"a", KernelKillGap}, {"a", 3 * KernelKillGap}, {"a", 3*KernelKillGap + time.Second}} {
		at := start.Add(k.at)
		r.AddKernelKill(evict.Record{UID: k.uid, Result: evict.ResultKernel, Decided: at, LastGone: at, Processes: 1})
	}
	type shown struct {
		uid, result string
		processes   int
	}
	want := []shown{{"a", evict.ResultKilled, 0}, {"a", evict.ResultKernel, 3}, {"b", evict.ResultKernel, 1}, {"a", evict.ResultKernel, 2}}
	got := r.List()
	if len(got) != len(want) {
		t.Fatalf("%d records; want %d: %+v", len(got), len(want), got)
	}
	for i := range want {
		if g := (shown{got[i].UID, got[i].Result, got[i].Processes}); g != want[i] {
			t.Errorf("record %d = %+v; want %+v", i, g, want[i])
		}
	}
}

// Kills by the kernel do not displace the records of evictions.
func TestKernelKillsKeepEvictions(t *testing.T) {
	start := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	r := &Records{}
	for i := range maxRecords {
		r.add(evict.Record{UID: fmt.Sprint("evicted-", i), Result: evict.ResultKilled, Decided: start})
	}
	for i := range 3 * maxRecords {
		at := start.Add(time.Duration(i) * time.Hour)
		r.AddKernelKill(evict.Record{UID: fmt.Sprint("limited-", i), Result: evict.ResultKernel, Decided: at, LastGone: at, Processes: 1})
	}
	r.add(evict.Record{UID: "new", Result: evict.ResultPending})
	got := r.List()
	var evictions, kernel []string
	for i := range got {
		if got[i].Result == evict.ResultKernel {
			kernel = append(kernel, got[i].UID)
		} else {
			evictions = append(evictions, got[i].UID)
		}
	}
	if len(evictions) != maxRecords || evictions[0] != "evicted-1" || evictions[maxRecords-1] != "new" {
		t.Errorf("%d evictions kept, from %q to %q; want the last %d", len(evictions), evictions[0], evictions[len(evictions)-1], maxRecords)
	}
	if len(kernel) != maxKernelRecords || kernel[maxKernelRecords-1] != "limited-149" {
		t.Errorf("kills by the kernel kept: %q; want the last %d", kernel, maxKernelRecords)
	}
}

// A pod whose eviction is resumed has not ended, although its containers of an earlier run had.
func TestResumedRecordHasNoTimes(t *testing.T) {
	at := time.Unix(1000, 0)
	var r Records
	r.Restore([]evict.Record{{UID: "u", Decided: at, SignalSent: at, FirstGone: at, LastGone: at, Result: evict.ResultPending}})
	r.resume("u")
	if rec, _ := r.Last("u"); rec.Result != evict.ResultPending || !rec.Decided.Equal(at) || !rec.SignalSent.IsZero() || !rec.FirstGone.IsZero() || !rec.LastGone.IsZero() {
		t.Errorf("record = %+v; want it pending, and without the times of the earlier run", rec)
	}
}

// The kill of a process by the kernel is no eviction of its pod: an eviction that is resumed has nothing of it.
func TestLastIsNoKernelKill(t *testing.T) {
	var r Records
	r.Restore([]evict.Record{{UID: "u", Reason: "Evicted", Result: evict.ResultPending}})
	r.AddKernelKill(evict.Record{UID: "u", Reason: "OOMKilled", Result: evict.ResultKernel})
	r.SetSystemCgroups("u", []evict.CgroupUsage{{Cgroup: "/x"}})
	r.resume("u")
	if rec, ok := r.Last("u"); !ok || rec.Reason != "Evicted" || rec.Result != evict.ResultPending || len(rec.SystemCgroups) != 1 {
		t.Errorf("Last() = %+v, %t; want the eviction", rec, ok)
	}
	r.AddKernelKill(evict.Record{UID: "other", Result: evict.ResultKernel})
	if rec, ok := r.Last("other"); ok {
		t.Errorf("Last() = %+v; want none", rec)
	}
}

// An older record is not resumed in place of the newest.
func TestResumeNewestRecord(t *testing.T) {
	var r Records
	r.Restore([]evict.Record{{UID: "u", Result: evict.ResultUnknown}, {UID: "u", Result: evict.ResultKilled}})
	r.resume("u")
	if list := r.List(); list[0].Result != evict.ResultUnknown || list[1].Result != evict.ResultKilled {
		t.Errorf("records = %+v; want them unchanged", list)
	}
}
