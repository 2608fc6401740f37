package evictions

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/kube"
	"github.com/evictd/evictd/agent/podfence"
)

// note is what the mark of a fence says about its order besides the ID and the pod's UID. The
// state is saved some time after the kill, on a slow disk seconds, on a full one never: an evictd
// that starts after a crash makes the order again from the note. The event's annotations are not in
// it.
type note struct {
	Namespace string     `json:"ns"`
	Name      string     `json:"n"`
	Stage     kube.Stage `json:"s"`
	Exclusive string     `json:"x,omitempty"`
	Cause     string     `json:"c,omitempty"`
	Reason    string     `json:"r"`
	Message   string     `json:"m,omitempty"` // cut to what fits
	Taint     string     `json:"t,omitempty"`
	Grace     int64      `json:"g,omitempty"` // in seconds
	Ended     bool       `json:"e,omitempty"`
	// These are Unix times, in milliseconds and nanoseconds.
	Decided int64 `json:"d"`
	Killed  int64 `json:"k,omitempty"`
}

// noteOf returns the note about an order with the cause of its eviction; "" if it does not fit even without
// the message.
func noteOf(o *kube.SavedOrder, cause string) string {
	n := note{
		Namespace: o.Order.Namespace, Name: o.Order.Name, Stage: o.Order.Stage, Exclusive: o.Order.Exclusive,
		Cause: cause, Reason: o.Order.Reason, Message: o.Order.Message, Taint: o.Order.Taint, Grace: o.Order.GraceSeconds,
		Ended: o.Ended, Decided: o.Order.Decided.UnixMilli(),
	}
	if !o.Killed.IsZero() {
		n.Killed = cmp.Or(o.KilledAt, o.Killed.UnixNano())
	}
	for {
		text, err := json.Marshal(n)
		over := len(text) - podfence.MaxNote
		switch {
		case err != nil || over > 0 && n.Message == "":
			return ""
		case over <= 0:
			return string(text)
		}
		// A character takes up to six bytes in JSON, so the first cut may take more than needed.
		n.Message = strings.ToValidUTF8(n.Message[:max(0, len(n.Message)-over)], "")
	}
}

// parseNote returns the order that a mark is about, without Began, and the cause of its eviction.
func parseNote(id, uid, text string) (o kube.SavedOrder, cause string, err error) {
	var n note
	if err := json.Unmarshal([]byte(text), &n); err != nil {
		return kube.SavedOrder{}, "", fmt.Errorf("note of order %s: %w", id, err)
	}
	o = kube.SavedOrder{
		Order: kube.Order{
			ID: id, UID: uid, Namespace: n.Namespace, Name: n.Name, Stage: n.Stage, Exclusive: n.Exclusive, Reason: n.Reason,
			Message: n.Message, Taint: n.Taint, GraceSeconds: n.Grace, Decided: time.UnixMilli(n.Decided).UTC(),
		},
		Ended: n.Ended,
	}
	if n.Killed != 0 {
		o.Killed, o.KilledAt = time.Unix(0, n.Killed), n.Killed
	}
	return o, n.Cause, nil
}

// withMarks returns the saved orders with those that only marks have, and sees to the records of these. An
// order in a mark replaces an earlier one of the pod that was saved, and the same one from before the kill.
func (e *Evictions) withMarks(saved []kube.SavedOrder, now time.Time) []kube.SavedOrder {
	orders := slices.Clone(saved)
	for _, f := range e.found {
		if f.Note == "" {
			continue
		}
		o, cause, err := parseNote(f.Order, f.UID(), f.Note)
		if err != nil {
			e.o.Log.Warn("the mark of a fence can't be used to report the pod", "uid", f.UID(), "error", err)
			continue
		}
		at := slices.IndexFunc(orders, func(s kube.SavedOrder) bool { return s.Order.UID == f.UID() })
		if at >= 0 && !supersedes(&o, &orders[at]) {
			continue
		}
		e.o.Log.Info("the order for a pod was not saved; the mark of the pod's fence has it", "pod", o.Order.Namespace+"/"+o.Order.Name, "uid", f.UID())
		if rec, _ := e.o.Records.Last(f.UID()); rec.Decided.UnixMilli() == o.Order.Decided.UnixMilli() {
			o.Order.Annotations = rec.Annotations // the record was saved before the order
		}
		e.o.Records.Recover(evict.Record{
			UID: o.Order.UID, Pod: o.Order.Namespace + "/" + o.Order.Name, Cause: cause, Reason: o.Order.Reason, Message: o.Order.Message,
			Decided: o.Order.Decided, SignalSent: o.Killed,
		})
		o.Began = now // the clock may have been set since: the order gets its whole time again
		if at >= 0 {
			orders[at] = o
		} else {
			orders = append(orders, o)
		}
	}
	return orders
}

// supersedes reports whether the order in a mark is later than the one that was saved. The times of
// their decisions are compared, which are never converted to another clock.
func supersedes(mark, saved *kube.SavedOrder) bool {
	if mark.Order.ID == saved.Order.ID {
		return saved.Order.Stage == kube.StageStopping && mark.Order.Stage != kube.StageStopping
	}
	return !mark.Order.Decided.Before(saved.Order.Decided)
}
