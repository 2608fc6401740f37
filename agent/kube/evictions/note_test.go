package evictions

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/kube"
	"github.com/evictd/evictd/agent/podfence"
)

// Of two orders of a pod the one counts that was decided later, whatever the clock was when they were
// made: agent/state converts the times of the saved one.
func TestSupersedes(t *testing.T) {
	order := func(id string, stage kube.Stage, decided int64) *kube.SavedOrder {
		return &kube.SavedOrder{Order: kube.Order{ID: id, Stage: stage, Decided: time.UnixMilli(decided)}}
	}
	saved := order("a", kube.StageStopping, 5)
	saved.Began = time.UnixMilli(1 << 40)
	for name, tt := range map[string]struct {
		mark *kube.SavedOrder
		want bool
	}{
		"later":             {order("b", kube.StageKilled, 6), true},
		"earlier":           {order("b", kube.StageKilled, 4), false},
		"the same":          {order("a", kube.StageStopping, 5), false},
		"the same, killed":  {order("a", kube.StageKilled, 5), true},
		"the same decision": {order("b", kube.StageKilled, 5), true},
	} {
		if got := supersedes(tt.mark, saved); got != tt.want {
			t.Errorf("%s: supersedes() = %t; want %t", name, got, tt.want)
		}
	}
}

// A note has all that the order needs but the annotations, and the message as far as it fits.
func TestNote(t *testing.T) {
	at := time.Date(2026, 2, 3, 4, 5, 6, 789_123_456, time.Local)
	order := func(change func(*kube.SavedOrder)) kube.SavedOrder {
		o := kube.SavedOrder{
			Order: kube.Order{
				ID: "id", UID: testUID, Namespace: "shop", Name: "web-0", Stage: kube.StageKilled, Exclusive: kube.ExclusiveStatefulSet,
				Reason: "Evicted", Message: "The node was low on resource: memory.", Taint: "evictd.io/memory-pressure",
				Decided: at.UTC().Truncate(time.Millisecond),
			},
			Killed: at.Add(time.Microsecond),
		}
		change(&o)
		if !o.Killed.IsZero() {
			o.KilledAt = o.Killed.UnixNano()
		}
		return o
	}
	long := func(o *kube.SavedOrder) {
		o.Order.Namespace, o.Order.Name = strings.Repeat("n", 63), strings.Repeat("p", 253)
	}
	for name, o := range map[string]kube.SavedOrder{
		"killed": order(func(*kube.SavedOrder) {}),
		"stopping": order(func(o *kube.SavedOrder) {
			o.Order.Stage, o.Order.GraceSeconds, o.Killed = kube.StageStopping, 30, time.Time{}
		}),
		"ended": order(func(o *kube.SavedOrder) { o.Ended = true }),
	} {
		if got, cause, err := parseNote("id", testUID, noteOf(&o, "memory.available")); err != nil || cause != "memory.available" || !cmp.Equal(got, o) {
			t.Errorf("%s: cause %q, %v\n%s", name, cause, err, cmp.Diff(o, got))
		}
	}
	for name, o := range map[string]kube.SavedOrder{
		"annotations":     order(func(o *kube.SavedOrder) { o.Order.Annotations = map[string]string{"a": strings.Repeat("b", 4000)} }),
		"long message":    order(func(o *kube.SavedOrder) { o.Order.Message = strings.Repeat("€", 1000) }),
		"escaped message": order(func(o *kube.SavedOrder) { o.Order.Message = strings.Repeat("<\"", 300) }),
		"long names":      order(long),
		"long everything": order(func(o *kube.SavedOrder) { long(o); o.Order.Message = strings.Repeat("m", 4000) }),
	} {
		note := noteOf(&o, "allocatableMemory.available")
		got, _, err := parseNote("id", testUID, note)
		if err != nil || len(note) > podfence.MaxNote || !strings.HasPrefix(o.Order.Message, got.Order.Message) {
			t.Errorf("%s: note of %d bytes, message %q, %v; want what fits", name, len(note), got.Order.Message, err)
		}
		got.Order.Message, got.Order.Annotations = o.Order.Message, o.Order.Annotations
		if !cmp.Equal(got, o) {
			t.Errorf("%s:\n%s", name, cmp.Diff(o, got))
		}
	}
	for _, text := range []string{"", "{", `{"d":"x"}`} {
		if o, _, err := parseNote("id", testUID, text); err == nil {
			t.Errorf("parseNote(%q) = %+v; want an error", text, o)
		}
	}
}

// An evictd that was killed before it saved an eviction has the record from the mark, and one record only if
// it was saved. The order then has its annotations.
func TestRecordFromMark(t *testing.T) {
	for _, recordSaved := range []bool{false, true} {
		n := newNode(t)
		job := n.job()
		job.Order.Cause = "memory.available"
		n.execute.Evict(t.Context(), evict.Record{
			UID: testUID, Pod: testPod, Decided: time.Now(), Result: evict.ResultPending, Reason: evict.ReasonEvicted,
			Message: "The node was low on resource: memory.", Annotations: map[string]string{"starved_resource": "memory"},
		}, *job)
		if err := n.Fence(job); err != nil {
			t.Fatal(err)
		}
		killed, _ := n.records.Last(testUID)
		if !recordSaved {
			n.records = nil
		}
		n.restart(false)
		list := n.records.List()
		if len(list) != 1 || list[0].Result != evict.ResultUnknown || list[0].Error == "" {
			t.Fatalf("saved %t: records %+v; want one whose result is unknown", recordSaved, list)
		}
		if recordSaved {
			if o := n.order().Order; !maps.Equal(o.Annotations, killed.Annotations) || len(o.Annotations) == 0 {
				t.Errorf("order %+v; want the annotations of the record", o)
			}
			continue
		}
		got, order := list[0], n.order()
		want := evict.Record{
			UID: testUID, Pod: testPod, Cause: "memory.available", Reason: killed.Reason, Message: killed.Message,
			Decided: killed.Decided.UTC().Truncate(time.Millisecond), SignalSent: order.Killed, Result: got.Result, Error: got.Error,
		}
		if !cmp.Equal(got, want) || got.SignalSent.IsZero() {
			t.Errorf("record:\n%s", cmp.Diff(want, got))
		}
	}
}
