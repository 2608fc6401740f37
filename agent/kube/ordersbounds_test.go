package kube

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A pod whose report was forbidden is remembered; as many as can have facts.
func TestForbiddenIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newOrders(t)
		for i := range maxUIDs + 1 {
			uid := fmt.Sprintf("u%d", i)
			u.begin(t, eviction(uid, ""))
			u.answer(uid, AnswerForbidden)
			if _, err := u.Begin(eviction(uid, "")); !errors.Is(err, ErrForbidden) {
				t.Fatalf("Begin() of a forbidden pod = %v; want ErrForbidden", err)
			}
		}
		if u.Forbidden("u0") || !u.Forbidden("u1") || !u.Forbidden(fmt.Sprintf("u%d", maxUIDs)) {
			t.Error("want the last pods remembered")
		}
		if s := u.Status(); s.Forbidden != maxUIDs || s.Lifted != maxUIDs+1 || len(s.Pending) != 0 || s.Answers[AnswerForbidden] != maxUIDs+1 {
			t.Errorf("status %+v", s)
		}
		if n := strings.Count(u.log.String(), "\n"); n != 1 {
			t.Errorf("%d log lines; want 1", n)
		}
		u.stop()
	})
}

// Pods that had not started take a quarter of the orders at most, also after a restart.
func TestTooManyRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newOrders(t)
		soft := eviction("soft", "")
		soft.Grace = time.Minute
		u.begin(t, soft)
		u.Ended("soft")
		for i := range maxRefusals {
			u.begin(t, notStarted(eviction(fmt.Sprintf("u%d", i), "")))
		}
		restored := NewOrders(u.o)
		restored.Restore(u.Saved(), time.Now())
		for _, o := range []*Orders{u.Orders, restored} {
			if _, err := o.Begin(notStarted(eviction("more", ""))); !errors.Is(err, ErrTooManyRefusals) {
				t.Errorf("Begin() = %v; want ErrTooManyRefusals", err)
			}
			if _, err := o.Begin(notStarted(eviction("u0", ""))); err != nil {
				t.Errorf("Begin() of a pending refusal = %v", err)
			}
			if _, err := o.Begin(eviction("killed", "")); err != nil {
				t.Errorf("Begin() of an eviction = %v", err)
			}
		}
		u.Refused("u0", "")
		u.begin(t, notStarted(eviction("more", "")))
		u.stop()
	})
}

// There are at most MaxOrders orders, and what they wait for has room.
func TestTooManyOrders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newOrders(t)
		for i := range MaxOrders {
			u.begin(t, eviction(fmt.Sprintf("u%d", i), ""))
		}
		if _, err := u.Begin(eviction("one more", "")); err == nil || errors.Is(err, ErrTooManyOrders) {
			t.Errorf("Begin() of an invalid UID = %v; want another error", err)
		}
		if id, err := u.Begin(eviction("more", "")); id != "" || !errors.Is(err, ErrTooManyOrders) {
			t.Errorf("Begin() = %q, %v; want ErrTooManyOrders", id, err)
		}
		time.Sleep(EndedDelay)
		synctest.Wait()
		for i := range MaxOrders / 2 {
			u.Refused(fmt.Sprintf("u%d", i), "")
			u.begin(t, eviction(fmt.Sprintf("v%d", i), ""))
		}
		if _, full := u.box.take(); full {
			t.Error("messages lost")
		}
		if s := u.Status(); len(s.Pending) != MaxOrders || s.Rejected != 1 || s.Unanswered != MaxOrders {
			t.Errorf("%d orders, %d rejected, %d unanswered; want %d, 1, %d", len(s.Pending), s.Rejected, s.Unanswered, MaxOrders, MaxOrders)
		}
		saved := u.Saved()
		more := saved[0]
		more.Order.ID, more.Order.UID = "more", "more"
		restored := NewOrders(u.o)
		if restored.Restore(append(saved, more), time.Now()); len(restored.Saved()) != MaxOrders {
			t.Errorf("%d orders restored; want %d", len(restored.Saved()), MaxOrders)
		}
		u.stop()
	})
}

// Answers cost neither memory, nor log lines, nor writes of the state without bound.
func TestAnswersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newOrders(t)
		id := u.begin(t, eviction("u", ""))
		u.Ended("u")
		u.sent()
		before := u.saves.Load()
		for i := range 10000 {
			for _, a := range []Answer{AnswerDelayed, AnswerMarked, AnswerAsserted} {
				u.report(&Report{ID: id, Answer: a}, time.Now())
			}
			u.report(&Report{ID: fmt.Sprint(i), Answer: AnswerForbidden}, time.Now())
		}
		if n := u.saves.Load() - before; n != 0 {
			t.Errorf("%d saves for answers that are not final; want 0", n)
		}
		for range 100 {
			for _, a := range []Answer{AnswerReported, AnswerForbidden, AnswerGone} {
				u.report(&Report{ID: id, Answer: a}, time.Now())
			}
		}
		if n := u.saves.Load() - before; n != 1 {
			t.Errorf("%d saves for final answers; want 1", n)
		}
		if n := strings.Count(u.log.String(), "\n"); n != 2 {
			t.Errorf("log:\n%s\nwant the first delay and the first final answer", u.log.String())
		}
		waits := u.begin(t, eviction("v", ""))
		u.Ended("v")
		u.sent()
		for range 10 {
			time.Sleep(logInterval)
			u.report(&Report{ID: waits, Answer: AnswerDelayed}, time.Now())
		}
		if n := strings.Count(u.log.String(), "\n"); n != 3 {
			t.Errorf("log:\n%s\nwant one delay of the second order", u.log.String())
		}
		u.Refused("v", "")
		u.wantSent(t, "Refused", "withdraw")
		s := u.Status()
		if s.Unknown != 10000 || s.Answers[AnswerReported] != 1 || s.Answers[AnswerForbidden] != 0 || len(s.Pending) != 1 || s.Forbidden != 0 || len(u.lifts) != 0 {
			t.Errorf("status %+v, lifted %q", s, u.lifts)
		}
		if got := u.sent(); len(got) != 0 {
			t.Errorf("sent %q; want nothing", got)
		}
		u.stop()
	})
}

// A stop waits for answers, then withdraws the orders before the fences are lifted.
func TestStopOrders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newOrders(t)
		u.begin(t, eviction("u", ""))
		u.begin(t, eviction("v", ExclusiveJob))
		u.sent()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		began, stopped := time.Now(), make(chan struct{})
		go func() {
			u.Stop(ctx)
			close(stopped)
		}()
		time.Sleep(time.Second)
		if _, err := u.Begin(eviction("w", "")); !errors.Is(err, ErrStopping) {
			t.Errorf("Begin() = %v; want ErrStopping", err)
		}
		u.answer("u", AnswerReported)
		u.Ended("v")
		u.wantSent(t, "while it waits", "ended u, ended v")
		u.answer("v", AnswerReported)
		synctest.Wait()
		next, _ := u.box.take()
		if len(next) != 3 || next[0].message == nil || next[1].message == nil || next[2].written == nil || len(u.Saved()) != 0 {
			t.Fatalf("messages %+v; want both orders withdrawn, and a notice", next)
		}
		select {
		case <-stopped:
			t.Fatal("Stop() returned before the messages were written")
		default:
		}
		close(next[2].written)
		<-stopped
		if took := time.Since(began); took != time.Second {
			t.Errorf("Stop() took %v; want 1s", took)
		}
		u.stop()
	})
	synctest.Test(t, func(t *testing.T) {
		u := newOrders(t)
		u.begin(t, eviction("u", ""))
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		began := time.Now()
		u.Stop(ctx)
		if took := time.Since(began); took != 5*time.Second+flushTimeout || len(u.Saved()) != 0 || len(u.lifts) != 0 {
			t.Errorf("Stop() without an answer or a peer that reads took %v, lifted %q; want %v and nothing", took, u.lifts, 5*time.Second+flushTimeout)
		}
		u.stop()
	})
}

// An order is a line of the protocol, whatever its texts are.
func TestOrderFits(t *testing.T) {
	for _, text := range []string{"<", `"`, "ä", "\x00", "\xff", "\U0010ffff"} {
		text = strings.Repeat(text, 2*maxMessage)
		e := eviction("u", ExclusiveStatefulSet)
		e.Message, e.Annotations = text, map[string]string{"a": text[:maxAnnotations-1]}
		o, err := e.order(testTime)
		if err != nil {
			t.Fatal(err)
		}
		line, err := encode(&Message{Order: o})
		if err != nil {
			t.Fatalf("encode() of an order with %.10q = %v", text, err)
		}
		m, err := decode(line[:len(line)-1])
		if err != nil {
			t.Fatal(err)
		}
		if len(o.Annotations) != 1 || m.Order.Message != o.Message {
			t.Errorf("order %.200q; want the message and the annotation", line)
		}
		e.Annotations["b"] = "x"
		if o, err := e.order(testTime); err != nil || o.Annotations != nil {
			t.Errorf("order with annotations of %d bytes = %v, %v; want none", sizeOf(e.Annotations), o.Annotations, err)
		}
	}
	if o, err := (&Eviction{UID: "u", Namespace: "n", Name: "p", Reason: "Evicted", Grace: time.Millisecond, Decided: testTime.Add(1234567)}).order(testTime); err != nil ||
		o.GraceSeconds != 1 || o.Decided != testTime.UTC().Add(time.Millisecond) {
		t.Errorf("order() = %+v, %v; want a grace period of 1s, decided at a millisecond", o, err)
	}
}

func TestUIDSet(t *testing.T) {
	var s uidSet
	for i := range 3 * maxUIDs {
		s.add(fmt.Sprint(i))
		s.add(fmt.Sprint(i))
	}
	if len(s.uids) != maxUIDs || len(s.order) != maxUIDs || s.has("0") || !slices.Contains(s.order, fmt.Sprint(2*maxUIDs)) {
		t.Errorf("%d and %d UIDs; want the last %d", len(s.uids), len(s.order), maxUIDs)
	}
}
