package loop

import (
	"slices"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
)

// The evictions of an earlier run are resumed when the first list has come, except for
// victims that it lacks, which have gone, and those whose eviction has failed.
func TestResumeEvictions(t *testing.T) {
	victims := func() []evict.Victim {
		now := time.Now()
		return []evict.Victim{
			{UID: "b", Pod: "default/b", Cause: signal.MemoryAvailable.String(), Soft: true, Due: now.Add(20 * time.Second), ProgressAt: now, Status: evict.Unsettled},
			{UID: "c", Pod: "default/c", Cause: signal.MemoryAvailable.String(), ProgressAt: now, Status: evict.Unsettled},
			{UID: "failed", Pod: "default/failed", Cause: signal.MemoryAvailable.String(), ProgressAt: now, Status: evict.Failed},
			{UID: "gone", Pod: "default/gone", Cause: signal.MemoryAvailable.String(), ProgressAt: now, Status: evict.Unsettled},
		}
	}
	run(t, settings, func(n *node) {
		n.pass(5 * time.Second)
		n.wantCalls("before the list")
		if v := n.last(); len(v.Orders.Stuck) > 0 || slices.ContainsFunc(v.State.Victims, func(v evict.Victim) bool { return v.Status == evict.Stuck }) {
			t.Errorf("victims = %+v; want none stuck before its eviction is resumed", v.State.Victims)
		}
		n.noList = false
		n.inventory.Refresh()
		n.pass(time.Second)
		n.wantCalls("after it", "evict b hard false grace 15s", "evict c hard true grace 0s", "evicted s-c 0")
		n.wantResult("c", evict.ResultKilled)
		n.wantResult("gone", evict.ResultUnknown)
		n.pass(20 * time.Second)
		n.wantResult("b", evict.ResultStopped)
	}, func(n *node, o *Options) {
		n.noList = true
		n.add("b", gi)
		n.add("c", gi)
		n.add("failed", gi)
		o.State.Victims = victims()
		var records []evict.Record
		for _, v := range o.State.Victims {
			records = append(records, evict.Record{UID: v.UID, Pod: v.Pod, Cause: v.Cause, Hard: !v.Soft, Result: evict.ResultPending})
		}
		o.Execute.Records().Restore(records)
	})
}

// In dry run no eviction of an earlier run is resumed.
func TestResumeInDryRun(t *testing.T) {
	run(t, settings, func(n *node) {
		n.pass(5 * time.Second)
		n.wantCalls("in dry run")
	}, func(n *node, o *Options) {
		n.facts.Configured = "--dry-run was given"
		n.add("b", gi)
		o.State.Victims = []evict.Victim{{UID: "b", Pod: "default/b", Cause: signal.MemoryAvailable.String(), ProgressAt: time.Now(), Status: evict.Unsettled}}
	})
}

// A victim is killed once if a hard threshold is met when its eviction is resumed.
func TestResumeBelowAHardThreshold(t *testing.T) {
	run(t, settings, func(n *node) {
		n.pass(time.Second)
		n.wantCalls("at the first step", "evict b hard true grace 0s", "evicted s-b 0")
	}, func(n *node, o *Options) {
		n.add("b", 15*gi+gi/2)
		now := time.Now()
		o.State.Victims = []evict.Victim{{
			UID: "b", Pod: "default/b", Cause: signal.MemoryAvailable.String(), Signal: evict.ThresholdKey{Signal: signal.MemoryAvailable},
			Soft: true, Due: now.Add(20 * time.Second), ProgressAt: now, Expected: 15 * gi, Lowest: 15 * gi, Status: evict.Unsettled,
		}}
	})
}
