package kube

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A clock that can't be is corrected: an order ends in any case.
func TestRestoreFromTheFuture(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		later := time.Now().Add(1000 * time.Hour)
		u := newOrders(t, SavedOrder{
			Order: Order{ID: "i", UID: "u", Namespace: "n", Name: "p", Stage: StageKilled, Reason: "Evicted", Decided: later}, Began: later, Killed: later,
		})
		u.wantSent(t, "restart", "killed u")
		time.Sleep(EndedDelay)
		u.wantSent(t, "later", "ended u")
		time.Sleep(time.Hour)
		u.wantSent(t, "timeout", "withdraw")
		u.stop()
	})
}

// Saved orders that no evictd has saved are ignored.
func TestRestoreRefusesOrders(t *testing.T) {
	good := SavedOrder{Order: Order{ID: "i", UID: "u", Namespace: "n", Name: "p", Stage: StageEnded, Reason: "Evicted"}, Began: testTime}
	var saved []SavedOrder
	for _, change := range []func(*SavedOrder){
		func(s *SavedOrder) { s.Order.ID = "" },
		func(s *SavedOrder) { s.Order.ID = strings.Repeat("i", maxOrderID+1) },
		func(s *SavedOrder) { s.Order.UID = "a b" },
		func(s *SavedOrder) { s.Order.Stage = "over" },
		func(s *SavedOrder) { s.Order.Reason = "" },
		func(s *SavedOrder) { s.Order.Message = "\x1b[2J" },
		func(s *SavedOrder) { s.Order.Exclusive = strings.Repeat("x", maxText+1) },
		func(s *SavedOrder) { s.Order.GraceSeconds = -1 },
		func(s *SavedOrder) { s.Order.Annotations = map[string]string{"a": strings.Repeat("x", maxAnnotations)} },
		func(s *SavedOrder) { s.Answer = "perhaps" },
	} {
		s := good
		change(&s)
		saved = append(saved, s)
	}
	for _, tt := range []struct {
		saved []SavedOrder
		want  int
	}{
		{saved, 0}, {append(saved, good), 1}, {[]SavedOrder{good, good}, 1}, {nil, 0},
	} {
		u := NewOrders(OrdersOptions{Save: func() {}, Lift: func(string, string) {}, Log: slog.New(slog.DiscardHandler)})
		u.Restore(tt.saved, testTime)
		if got := u.Saved(); len(got) != tt.want {
			t.Errorf("Restore() of %d orders: %d; want %d", len(tt.saved), len(got), tt.want)
		}
	}
}

// An evictd that ends between the answer and the lift of the fence lifts it after its restart.
func TestRestoreForbidden(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newOrders(t, SavedOrder{
			Order: Order{ID: "i", UID: "u", Namespace: "n", Name: "p", Stage: StageKilled, Reason: "Evicted"}, Began: time.Now(), Killed: time.Now(),
			Answer: AnswerForbidden, Why: "because", Answered: time.Now(),
		})
		u.wantSent(t, "restart", "")
		u.wantEnd(t, "", false, "the API server forbids the report: because")
		if !u.Forbidden("u") {
			t.Error("Forbidden() = false; want true")
		}
		u.stop()
	})
}
