package execute

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/act"
	"github.com/evictd/evictd/agent/evict"
)

// actuator is an act.Actuator that records its calls and reports stages before it
// returns.
type actuator struct {
	name   string
	calls  *[]string
	report func(act.Progress)
	stages []act.Stage
	err    error
}

func (a *actuator) call(call, uid string) {
	*a.calls = append(*a.calls, a.name+" "+call+" "+uid)
	for _, s := range a.stages {
		a.report(act.Progress{UID: uid, Stage: s, Time: time.Unix(1000, int64(s)), Processes: 2, Err: a.err})
	}
}

func (a *actuator) Evict(_ context.Context, j act.Job)    { a.call("evict", j.Order.UID) }
func (a *actuator) Escalate(_ context.Context, j act.Job) { a.call("escalate", j.Order.UID) }
func (a *actuator) Follow(_ context.Context, j act.Job, _ *act.KillHandle, s act.KillResult) {
	a.call(fmt.Sprint("follow ", s.Processes), j.Order.UID)
}

// counted records what is passed to the metrics.
type counted []string

func (c *counted) Evicted(r *evict.Record) { *c = append(*c, r.UID+" "+r.Result) }

// fixture is an Executor with two fake actuators.
type fixture struct {
	*Executor
	killer, dryRun *actuator
	calls          []string
	counted        counted
	saves          int
	log            bytes.Buffer
	reports        []Report
}

func newFixture() *fixture {
	w := &fixture{}
	actuatorFunc := func(name string, a **actuator) func(func(act.Progress)) act.Actuator {
		return func(report func(act.Progress)) act.Actuator {
			*a = &actuator{name: name, calls: &w.calls, report: report}
			return *a
		}
	}
	w.Executor = New(Options{
		Killer: actuatorFunc("killer", &w.killer), DryRun: actuatorFunc("dry run", &w.dryRun), Records: &Records{},
		Log: slog.New(slog.NewTextHandler(&w.log, nil)), Metrics: &w.counted, Save: func() { w.saves++ },
	})
	w.Subscribe(func(r Report) { w.reports = append(w.reports, r) })
	return w
}

func pending(uid string, dryRun bool) evict.Record {
	return evict.Record{UID: uid, Pod: "default/" + uid, Hard: true, DryRun: dryRun, Expected: 7, Result: evict.ResultPending}
}

func job(uid string) act.Job { return act.Job{Order: evict.Order{UID: uid}} }

// Each call reaches only the actuator of its mode.
func TestActuatorOfMode(t *testing.T) {
	for _, dryRun := range []bool{false, true} {
		name := map[bool]string{false: "killer", true: "dry run"}[dryRun]
		w := newFixture()
		w.Evict(t.Context(), pending("a", dryRun), job("a"))
		w.Follow(t.Context(), pending("b", dryRun), job("b"), &act.KillHandle{}, act.KillResult{Processes: 3})
		w.Escalate(t.Context(), job("c"), dryRun)
		w.Resume(t.Context(), job("d"), dryRun)
		want := []string{name + " evict a", name + " follow 3 b", name + " escalate c", name + " evict d"}
		if diff := cmp.Diff(want, w.calls); diff != "" {
			t.Errorf("dry run %t: calls differ (-want +got):\n%s", dryRun, diff)
		}
		var uids []string
		for _, r := range w.Records().List() {
			uids = append(uids, r.UID)
		}
		if !slices.Equal(uids, []string{"a", "b"}) || w.saves != 2 {
			t.Errorf("dry run %t: records of %q and %d saves; want records of a and b, each saved", dryRun, uids, w.saves)
		}
	}
}

// An actuator may report the end of an order before it returns.
func TestResultOfOrder(t *testing.T) {
	for _, tt := range []struct {
		name    string
		dryRun  bool
		stages  []act.Stage
		err     error
		result  string
		log     string
		reports int // number of reports
	}{
		{"killed", false, []act.Stage{act.Signalled, act.LastGone, act.Finished}, nil, evict.ResultKilled, `level=INFO msg="eviction ended"`, 3},
		{"dry run", true, []act.Stage{act.Finished}, nil, evict.ResultDryRun, `level=INFO msg="dry run: pod left alone"`, 1},
		{"refused", false, []act.Stage{act.Refused}, errors.New("it contains pid 1"), evict.ResultFailed, `level=ERROR msg="eviction did not succeed"`, 1},
		{"ended by itself", false, []act.Stage{act.Refused}, act.ErrEnded, evict.ResultEnded, `level=INFO msg="eviction ended"`, 1},
		{"refused in dry run", true, []act.Stage{act.Refused}, errors.New("it contains pid 1"), evict.ResultFailed, `level=ERROR msg="eviction would not succeed"`, 1},
		{"stuck", false, []act.Stage{act.Signalled, act.Finished}, errors.New("2 processes left"), evict.ResultStuck, `level=ERROR msg="eviction did not succeed"`, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newFixture()
			for _, a := range []*actuator{w.killer, w.dryRun} {
				a.stages, a.err = tt.stages, tt.err
			}
			w.Evict(t.Context(), pending("u", tt.dryRun), job("u"))
			got := w.Records().List()
			if len(got) != 1 || got[0].Result != tt.result || tt.err != nil && got[0].Error != tt.err.Error() {
				t.Errorf("records = %+v; want one, %s", got, tt.result)
			}
			if want := (counted{"u " + tt.result}); !slices.Equal(w.counted, want) {
				t.Errorf("counted = %q; want %q", w.counted, want)
			}
			if out := w.log.String(); !strings.Contains(out, tt.log) || strings.Count(out, "\n") != 1 {
				t.Errorf("log = %s; want one line with %s", out, tt.log)
			}
			if w.saves != 2 {
				t.Errorf("%d saves; want one at the start and one at the end", w.saves)
			}
			if len(w.reports) != tt.reports || w.reports[tt.reports-1].Record.Result != tt.result {
				t.Errorf("reports = %+v; want %d, the last with the result %s", w.reports, tt.reports, tt.result)
			}
		})
	}
}

// Progress of a pod without a pending record is reported and changes no record.
func TestProgressWithoutRecord(t *testing.T) {
	w := newFixture()
	w.killer.stages = []act.Stage{act.LastGone, act.Finished}
	w.Escalate(t.Context(), job("u"), false)
	if len(w.reports) != 2 || w.reports[1].UID != "u" || w.reports[1].Record.UID != "" {
		t.Errorf("reports = %+v; want two of u without a record", w.reports)
	}
	if len(w.Records().List())+len(w.counted)+w.saves+w.log.Len() > 0 {
		t.Errorf("records %v, counted %q, %d saves, log %s; want none", w.Records().List(), w.counted, w.saves, w.log.String())
	}
}

// A resumed order continues the record of the earlier run, and ends once.
func TestResume(t *testing.T) {
	w := newFixture()
	w.Records().Restore([]evict.Record{pending("u", false), pending("left", false)})
	w.killer.stages = []act.Stage{act.Signalled, act.LastGone, act.Finished}
	w.Resume(t.Context(), job("u"), false)
	w.onProgress(act.Progress{UID: "u", Stage: act.Finished})
	got := w.Records().List()
	if len(got) != 2 || got[0].Result != evict.ResultKilled || got[0].Error != "" || got[0].Freed != 7 || got[1].Result != evict.ResultUnknown {
		t.Errorf("records = %+v; want u killed and the other unknown", got)
	}
	if !slices.Equal(w.counted, counted{"u " + evict.ResultKilled}) {
		t.Errorf("counted = %q; want u once", w.counted)
	}
}

// A second order for a pod ends the record of the first, because reports name only the pod.
func TestOrderedAgain(t *testing.T) {
	w := newFixture()
	w.Evict(t.Context(), pending("u", false), job("u"))
	w.killer.stages = []act.Stage{act.LastGone, act.Finished}
	w.Evict(t.Context(), pending("u", false), job("u"))
	got := w.Records().List()
	if len(got) != 2 || got[0].Result != evict.ResultUnknown || got[1].Result != evict.ResultKilled {
		t.Errorf("records = %+v; want the first unknown and the second killed", got)
	}
}

// Values that are known only after an eviction are added to its record.
func TestCompleteRecords(t *testing.T) {
	var r Records
	for _, rec := range []evict.Record{{UID: "a", Futile: true}, {UID: "b"}, {UID: "a"}} {
		r.add(rec)
	}
	r.SetSystemCgroups("a", []evict.CgroupUsage{{Cgroup: "/x"}})
	r.SetSystemCgroups("other", nil)
	r.EachFutile(func(rec *evict.Record) { rec.SystemDirectories = []evict.DirectoryUsage{{Path: "/d"}} })
	want := []evict.Record{
		{UID: "a", Futile: true, SystemDirectories: []evict.DirectoryUsage{{Path: "/d"}}}, {UID: "b"},
		{UID: "a", SystemCgroups: []evict.CgroupUsage{{Cgroup: "/x"}}},
	}
	if diff := cmp.Diff(want, r.List()); diff != "" {
		t.Errorf("records differ (-want +got):\n%s", diff)
	}
}

// The record of a refused pod is there before its report, whose answer it gets.
func TestRefuse(t *testing.T) {
	for _, tt := range []struct {
		name   string
		dryRun bool
		err    error
		want   evict.Record
	}{
		{"reported", false, nil, evict.Record{Result: evict.ResultRefused, ReportAnswer: "reported", Reported: time.Unix(1000, 0)}},
		{"not reported", false, errors.New("too many"), evict.Record{Result: evict.ResultFailed, Error: "too many"}},
		{"dry run", true, nil, evict.Record{Result: evict.ResultDryRun}},
	} {
		w := newFixture()
		rec := evict.Record{UID: "u", Cause: evict.CauseAdmission, DryRun: tt.dryRun, Result: evict.ResultRefused}
		if tt.dryRun {
			rec.Result = evict.ResultDryRun
		}
		err := w.Refuse(rec, func() error {
			if tt.dryRun {
				t.Error("a report in dry run")
			}
			if tt.err == nil {
				w.Records().SetReport("u", "reported", time.Unix(1000, 0))
			}
			return tt.err
		})
		tt.want.UID, tt.want.Cause, tt.want.DryRun = rec.UID, rec.Cause, rec.DryRun
		if diff := cmp.Diff([]evict.Record{tt.want}, w.Records().List()); err != tt.err || diff != "" {
			t.Errorf("%s: Refuse() = %v; records differ (-want +got):\n%s", tt.name, err, diff)
		}
		if !slices.Equal(w.counted, []string{"u " + tt.want.Result}) || w.saves != 1 {
			t.Errorf("%s: counted %q, %d saves; want one of each", tt.name, w.counted, w.saves)
		}
	}
}
