package native_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/lanes"
	"github.com/evictd/evictd/cri"
	"github.com/evictd/evictd/tests/node"
)

// checkRecord checks what is common to all records of pods that were evicted for memory.
func checkRecord(t *testing.T, rec *evict.Record, p *pod) {
	t.Helper()
	check := func(ok bool, what string, args ...any) {
		t.Helper()
		if !ok {
			t.Errorf("record of %s: %s", p.Name, fmt.Sprintf(what, args...))
		}
	}
	check(rec.Pod == p.key() && rec.UID == p.UID, "pod %s, uid %s; want %s, %s", rec.Pod, rec.UID, p.key(), p.UID)
	check(rec.Reason == evict.ReasonEvicted && rec.DisruptionTarget, "reason %q, disruption target %t; want Evicted, true", rec.Reason, rec.DisruptionTarget)
	check(strings.HasPrefix(rec.Message, "The node was low on resource: memory. Threshold quantity: "), "message %q", rec.Message)
	check(slices.Contains(append(lanes.Names(), "step"), rec.Lane), "lane %q", rec.Lane)
	check(rec.Confirm != "", "confirm is empty")
	check(rec.RankingAge >= 0 && rec.RankingAge < node.ScaleTimeout(time.Second), "ranking age %v", rec.RankingAge)
	check(rec.Available < rec.Threshold, "available %d, threshold %d; want less", rec.Available, rec.Threshold)
	check(rec.Deficit > 0, "deficit %d", rec.Deficit)
	if rec.Hard {
		check(rec.Overshoot >= rec.Threshold-rec.Available, "overshoot %d; want at least %d", rec.Overshoot, rec.Threshold-rec.Available)
		check(!rec.LastAbove.IsZero() && !rec.CrossingSeen.IsZero(), "last above %v, crossing seen %v", rec.LastAbove, rec.CrossingSeen)
	}
	if first := rec.Candidates; len(first) == 0 || len(first) > 10 {
		t.Errorf("record of %s: %d candidates; want 1 to 10", p.Name, len(first))
	} else {
		check(slices.ContainsFunc(first, func(r evict.Ranked) bool { return r.UID == p.UID }), "the pod is not among the candidates %+v", first)
	}
	checkTimes(t, rec, p)
}

// checkTimes checks that the times of a record that are set are in order.
func checkTimes(t *testing.T, rec *evict.Record, p *pod) {
	t.Helper()
	now := time.Now()
	before, name := time.Time{}, ""
	for _, at := range []struct {
		name string
		time time.Time
	}{
		{"last above", rec.LastAbove}, {"crossing seen", rec.CrossingSeen}, {"decided", rec.Decided},
		{"confirmed", rec.Confirmed}, {"chosen", rec.Chosen},
		{"signal sent", rec.SignalSent}, {"first gone", rec.FirstGone}, {"last gone", rec.LastGone}, {"now", now},
	} {
		if at.time.IsZero() {
			continue
		}
		if at.time.Before(before) {
			t.Errorf("record of %s: %s is %v before %s", p.Name, at.name, before.Sub(at.time), name)
		}
		before, name = at.time, at.name
	}
}

// checkKilled checks the record of a pod that was killed for a hard threshold.
func checkKilled(t *testing.T, rec *evict.Record, p *pod) {
	t.Helper()
	checkRecord(t, rec, p)
	if rec.Result != evict.ResultKilled || !noErrors(rec) || !rec.Hard || rec.DryRun {
		t.Errorf("record of %s: result %s, error %q, hard %t, dry run %t; want killed, none, true, false", p.Name, rec.Result, rec.Error, rec.Hard, rec.DryRun)
	}
	if rec.SignalSent.IsZero() || rec.FirstGone.IsZero() || rec.LastGone.IsZero() {
		t.Errorf("record of %s: signal sent %v, first gone %v, last gone %v; want all set", p.Name, rec.SignalSent, rec.FirstGone, rec.LastGone)
	}
	if rec.Processes < 1 {
		t.Errorf("record of %s: %d processes; want at least 1", p.Name, rec.Processes)
	}
}

// noErrors reports whether a record has no error. On a slow machine it ignores time-outs of the runtime: the processes
// have exited nevertheless, and the sandbox is stopped later.
func noErrors(rec *evict.Record) bool {
	for line := range strings.Lines(rec.Error) {
		if node.ScaleTimeout(1) == 1 || !strings.Contains(line, cri.ErrTimeout.Error()) {
			return false
		}
	}
	return true
}

// checkRanksFirst checks that the pod is the first candidate of the record, and that the eviction was not futile.
func checkRanksFirst(t *testing.T, rec *evict.Record, p *pod) {
	t.Helper()
	if len(rec.Candidates) == 0 || rec.Candidates[0].UID != p.UID || rec.Futile {
		t.Errorf("record of %s: candidates %+v, futile %t; want the pod first, false", p.Name, rec.Candidates, rec.Futile)
	}
}
