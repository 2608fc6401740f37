package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// ordersUnderTest are Orders that run, and what they have called.
type ordersUnderTest struct {
	*Orders
	log   buffer
	saves atomic.Int32
	lifts []string
	box   *outbox // a session
	stop  func()
}

func newOrders(t *testing.T, saved ...SavedOrder) *ordersUnderTest {
	t.Helper()
	u := &ordersUnderTest{box: newOutbox()}
	u.Orders = NewOrders(OrdersOptions{
		Lift: func(uid, why string) {
			if _, err := u.Begin(eviction(uid, "")); !u.Pending(uid) || !errors.Is(err, ErrEnding) && !errors.Is(err, ErrForbidden) {
				t.Errorf("Begin() while the fence of %s is lifted = %v; want the order pending", uid, err)
			}
			for _, p := range u.Status().Pending {
				if p.Order.UID == uid && u.lookup(p.Order.ID) != nil {
					t.Errorf("a session that begins while the fence of %s is lifted gets its order", uid)
				}
			}
			u.lifts = append(u.lifts, uid+": "+why)
		},
		Save: func() {
			u.Saved() // would not return if the mutex were locked
			u.saves.Add(1)
		},
		Log: slog.New(slog.NewTextHandler(&u.log, nil)),
	})
	u.Restore(saved, time.Now())
	u.attach(u.box)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		u.Run(ctx)
	}()
	u.stop = func() {
		cancel()
		<-done
	}
	t.Cleanup(u.stop)
	synctest.Wait()
	return u
}

// sent returns what is sent to evictd-kube: the stage and the UID of an order, or "withdraw".
func (u *ordersUnderTest) sent() (list []string) {
	synctest.Wait()
	for {
		next, _ := u.box.take()
		if len(next) == 0 {
			return list
		}
		for _, m := range next {
			switch {
			case m.message != nil:
				list = append(list, "withdraw")
			case u.lookup(m.key) != nil:
				order := u.lookup(m.key)
				list = append(list, string(order.Stage)+" "+order.UID)
			}
		}
	}
}

// answer reports an answer to the order for a pod.
func (u *ordersUnderTest) answer(uid string, a Answer) {
	u.mu.Lock()
	p := u.byUID[uid]
	u.mu.Unlock()
	id := "unknown"
	if p != nil {
		id = p.Order.ID
	}
	u.report(&Report{ID: id, Answer: a, Why: "because"}, time.Now())
	synctest.Wait()
}

func eviction(uid, exclusive string) Eviction {
	return Eviction{
		UID: uid, Namespace: "default", Name: "web", Exclusive: exclusive, Reason: "Evicted", Message: "The node was low on resource: memory.",
		Annotations: map[string]string{"starved_resource": "memory"},
	}
}

func notStarted(e Eviction) Eviction {
	e.NotStarted = true
	return e
}

func (u *ordersUnderTest) begin(t *testing.T, e Eviction) string {
	t.Helper()
	id, err := u.Begin(e)
	if err != nil {
		t.Fatalf("Begin() = %v", err)
	}
	return id
}

// step is something that happens to the order for the pod "u", and what is sent then.
type step struct {
	name string
	do   func(*ordersUnderTest)
	sent string
}

func after(d time.Duration, sent string) step {
	return step{"after " + d.String(), func(*ordersUnderTest) { time.Sleep(d) }, sent}
}

func answered(a Answer, sent string) step {
	return step{"answer " + string(a), func(u *ordersUnderTest) { u.answer("u", a) }, sent}
}

var (
	ended = func(sent string) step { return step{"Ended", func(u *ordersUnderTest) { u.Ended("u") }, sent} }
	gone  = func(sent string) step {
		return step{"CgroupGone", func(u *ordersUnderTest) { u.CgroupGone("u") }, sent}
	}
	refuse = step{"Refused", func(u *ordersUnderTest) { u.Refused("u", "its cgroup contains pid 1") }, "withdraw"}
)

// orderCases are the lives of orders: each begins with Begin.
var orderCases = []struct {
	name     string
	eviction Eviction
	first    string
	steps    []step
	// pending is whether the order is pending at the end, and lift why its fence was lifted.
	pending bool
	lift    string
}{
	{"pod that may run twice", eviction("u", ""), "killed u", []step{
		after(EndedDelay-time.Millisecond, ""), after(time.Millisecond, "ended u"), ended(""), answered(AnswerReported, ""), gone("withdraw"),
	}, false, ""},
	{"its processes end soon", eviction("u", ""), "killed u", []step{
		after(20*time.Millisecond, ""), ended("ended u"), after(time.Minute, ""), gone(""), answered(AnswerReported, "withdraw"),
	}, false, ""},
	{"pod that must not run twice", eviction("u", ExclusiveStatefulSet), "killed u", []step{
		after(WaitingEventDelay-time.Millisecond, ""), after(time.Millisecond, "waiting u"), after(time.Minute, ""), answered(AnswerMarked, ""),
		ended("ended u"), answered(AnswerReported, ""), gone("withdraw"),
	}, false, ""},
	{"its processes end at once", eviction("u", ExclusiveJob), "killed u", []step{ended("ended u"), after(time.Minute, "")}, true, ""},
	{"its processes do not end, whatever is answered", eviction("u", ExclusiveJob), "killed u", []step{
		answered(AnswerReported, ""), answered(AnswerGone, ""), after(59*time.Minute, "waiting u"),
	}, true, ""},
	{"its cgroup is gone first", eviction("u", ExclusiveClaim), "killed u", []step{gone("ended u"), answered(AnswerGone, "withdraw")}, false, ""},
	{"terminating", eviction("u", ""), "killed u", []step{answered(AnswerTerminating, ""), gone("withdraw")}, false, ""},
	{"deleted", eviction("u", ""), "killed u", []step{ended("ended u"), answered(AnswerDeleted, ""), gone("withdraw")}, false, ""},
	{"not final", eviction("u", ""), "killed u", []step{
		ended("ended u"), answered(AnswerMarked, ""), answered(AnswerDelayed, ""), answered(AnswerAsserted, ""), gone(""), after(59*time.Minute, ""),
	}, true, ""},
	{"not started", notStarted(eviction("u", "")), "ended u", []step{after(time.Minute, ""), answered(AnswerReported, ""), gone("withdraw")}, false, ""},
	{"not started and without a sandbox", notStarted(eviction("u", "")), "ended u", []step{gone(""), answered(AnswerReported, "withdraw")}, false, ""},
	{"refused", eviction("u", ""), "killed u", []step{refuse, after(2*time.Hour, "")}, false, ""},
	{"forbidden", eviction("u", ""), "killed u", []step{answered(AnswerForbidden, "withdraw")}, false, "the API server forbids the report: because"},
	{"forbidden after a success", eviction("u", ""), "killed u", []step{
		ended("ended u"), answered(AnswerReported, ""), answered(AnswerForbidden, ""),
	}, true, ""},
	{"forbidden without a cgroup", eviction("u", ""), "killed u", []step{gone("ended u"), answered(AnswerForbidden, "withdraw")}, false, ""},
	{"not answered", eviction("u", ExclusiveJob), "killed u", []step{
		after(time.Hour-time.Millisecond, "waiting u"), after(time.Millisecond, "withdraw"),
	}, false, "its processes did not end within 1h0m0s, and it must not run twice (Job)"},
	{"marked, and its processes do not end", eviction("u", ExclusiveJob), "killed u", []step{
		answered(AnswerMarked, ""), after(time.Hour, "withdraw"),
	}, false, "its processes did not end within 1h0m0s, and it must not run twice (Job)"},
	{"ended, and not answered", eviction("u", ExclusiveJob), "killed u", []step{
		ended("ended u"), after(time.Hour, "withdraw"),
	}, false, "evictd-kube did not answer within 1h0m0s"},
	{"killed again before an answer", eviction("u", ExclusiveJob), "killed u", []step{
		ended("ended u"), after(time.Minute, ""), answered(AnswerDelayed, ""), {"Begin", killed, "killed u"}, after(WaitingEventDelay, "waiting u"),
		ended("ended u"), answered(AnswerReported, ""), {"Begin", killed, ""}, gone("withdraw"),
	}, false, ""},
	{"killed again, and may run twice", eviction("u", ""), "killed u", []step{
		ended("ended u"), {"Begin", killed, ""}, gone(""), answered(AnswerReported, "withdraw"),
	}, false, ""},
	{"killed again without a cgroup", eviction("u", ExclusiveJob), "killed u", []step{
		gone("ended u"), {"Begin", killed, ""}, answered(AnswerReported, "withdraw"),
	}, false, ""},
	{"delayed for ever", eviction("u", ""), "killed u", []step{
		ended("ended u"), answered(AnswerDelayed, ""), after(time.Hour, "withdraw"),
	}, false, `evictd-kube did not report the eviction within 1h0m0s (last answer "delayed": because)`},
	{"answered late", eviction("u", ""), "killed u", []step{
		ended("ended u"), after(59*time.Minute, ""), answered(AnswerReported, ""), after(59*time.Minute, ""), gone("withdraw"),
	}, false, ""},
	{"reported, but its cgroup stays", eviction("u", ""), "killed u", []step{
		ended("ended u"), answered(AnswerReported, ""), after(time.Hour, "withdraw"),
	}, false, `the pod's cgroup was not removed within 1h0m0s after the answer "reported"`},
	{"timeout without a cgroup", eviction("u", ""), "killed u", []step{gone("ended u"), after(time.Hour, "withdraw")}, false, ""},
	{"grace period", soft(""), "stopping u", []step{
		answered(AnswerReported, ""), after(30*time.Second, ""), {"Begin", killed, "killed u"}, after(EndedDelay, "ended u"), gone("withdraw"),
	}, false, ""},
	{"it ends within its grace period", soft(ExclusiveStatefulSet), "stopping u", []step{
		answered(AnswerReported, ""), after(5*time.Second, ""), ended("ended u"), {"Begin", killed, ""}, gone("withdraw"),
	}, false, ""},
	{"grace period of a pod that must not run twice", soft(ExclusiveStatefulSet), "stopping u", []step{
		after(30*time.Second, ""), {"Begin", killed, "killed u"}, after(WaitingEventDelay, "waiting u"), ended("ended u"),
	}, true, ""},
	{"timeout after the grace period", soft(ExclusiveJob), "stopping u", []step{
		after(time.Hour+30*time.Second-time.Millisecond, ""), after(time.Millisecond, "withdraw"),
	}, false, "evictd-kube did not answer within 1h0m0s"},
}

func soft(exclusive string) Eviction {
	e := eviction("u", exclusive)
	e.Grace = 30 * time.Second
	return e
}

// killed begins the eviction again, without a grace period.
func killed(u *ordersUnderTest) {
	if _, err := u.Begin(eviction("u", "")); err != nil {
		panic(err)
	}
}

func TestOrders(t *testing.T) {
	for _, tt := range orderCases {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				u := newOrders(t)
				id := u.begin(t, tt.eviction)
				u.wantSent(t, "Begin", tt.first)
				for _, s := range tt.steps {
					s.do(u)
					u.wantSent(t, s.name, s.sent)
				}
				u.wantEnd(t, id, tt.pending, tt.lift)
				u.stop()
			})
		})
	}
}

// Each order goes on after a restart of evictd at each of its steps.
func TestOrdersRestart(t *testing.T) {
	for _, tt := range orderCases {
		for restart := range len(tt.steps) + 1 {
			t.Run(fmt.Sprintf("%s/%d", tt.name, restart), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					u := newOrders(t)
					id := u.begin(t, tt.eviction)
					u.wantSent(t, "Begin", tt.first)
					var lifts []string
					var log string
					for i, s := range append(tt.steps, step{"end", func(*ordersUnderTest) {}, ""}) {
						if i == restart {
							saved := u.Saved()
							u.stop()
							lifts, log = u.lifts, u.log.String()
							u = newOrders(t, moved(saved)...)
							if got := u.Saved(); len(got) != len(saved) || len(got) > 0 && got[0].Order.Decided != saved[0].Order.Decided {
								t.Fatalf("orders after a restart %+v; want %+v", got, saved)
							}
							u.sent() // all, to the new session
						}
						s.do(u)
						u.wantSent(t, s.name, s.sent)
					}
					u.lifts = append(lifts, u.lifts...)
					_, _ = u.log.Write([]byte(log))
					u.wantEnd(t, id, tt.pending, tt.lift)
					u.stop()
				})
			})
		}
	}
}

// moved returns orders as an evictd that restarts at once restores them.
func moved(saved []SavedOrder) []SavedOrder {
	for i := range saved {
		saved[i].EachTime(func(t *time.Time) { *t = t.Round(0) })
	}
	return saved
}

func (u *ordersUnderTest) wantSent(t *testing.T, name, want string) {
	t.Helper()
	if got := strings.Join(u.sent(), ", "); got != want {
		t.Fatalf("%s: sent %q; want %q", name, got, want)
	}
}

// wantEnd checks whether the order is pending, and its fence.
func (u *ordersUnderTest) wantEnd(t *testing.T, id string, pending bool, lift string) {
	t.Helper()
	var want []string
	if lift != "" {
		want = []string{"u: " + lift}
	}
	if diff := cmp.Diff(want, u.lifts); diff != "" {
		t.Errorf("lifted fences (-want +got):\n%s", diff)
	}
	saved := u.Saved()
	if u.Pending("u") != pending || (len(saved) == 1) != pending || pending && saved[0].Order.ID != id {
		t.Errorf("Pending() = %v, saved %+v; want %v", u.Pending("u"), saved, pending)
	}
	if s := u.Status(); len(s.Pending) != len(saved) || lift != "" && !strings.Contains(u.log.String(), "evicted pod may run again") {
		t.Errorf("status %+v, log %s", s, u.log.String())
	}
}

// A pod has one order at a time, and each of its evictions has its own.
func TestRevivedPodGetsAnotherOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newOrders(t)
		first := eviction("u", ExclusiveStatefulSet)
		first.Decided = time.Now()
		id := u.begin(t, first)
		if again := u.begin(t, first); again != id {
			t.Errorf("Begin() again = %s; want %s", again, id)
		}
		second := first
		second.Decided = first.Decided.Add(time.Second)
		if again := u.begin(t, second); again != id {
			t.Errorf("Begin() of a pod with processes = %s; want %s", again, id)
		}
		u.Ended("u")
		u.wantSent(t, "first", "ended u")
		if again := u.begin(t, first); again != id {
			t.Errorf("Begin() of the same eviction after its end = %s; want %s", again, id)
		}
		u.wantSent(t, "first again", "killed u")
		u.Ended("u")
		u.wantSent(t, "end of the first", "ended u")
		revived := u.begin(t, second)
		if revived == id {
			t.Error("Begin() of a later eviction = the ID of the first; want another")
		}
		u.wantSent(t, "second", "withdraw, killed u")
		u.report(&Report{ID: id, Answer: AnswerReported}, time.Now())
		time.Sleep(time.Hour)
		synctest.Wait()
		if len(u.lifts) != 1 {
			t.Errorf("lifted %q; want one fence: the answer was to the earlier order", u.lifts)
		}
		if third := u.begin(t, second); third == id || third == revived {
			t.Errorf("Begin() after the timeout = %s, which was used", third)
		}
		if s := u.Status(); s.Begun != 3 || s.TimedOut != 1 || s.Lifted != 1 || s.Unknown != 1 || s.Unanswered != 1 {
			t.Errorf("status %+v; want 3 orders, 1 timed out and lifted", s)
		}
		u.stop()
	})
}

// The end of processes is waited for since the kill, not since the beginning of the grace period.
func TestWaitsSince(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newOrders(t)
		began := time.Now()
		u.begin(t, soft(ExclusiveJob))
		time.Sleep(20 * time.Second)
		if got := u.Status().Pending[0].WaitsSince(); !got.Equal(began) {
			t.Errorf("WaitsSince() in the grace period = %v; want %v", got, began)
		}
		killed(u)
		if got, want := u.Status().Pending[0].WaitsSince(), time.Now(); !got.Equal(want) {
			t.Errorf("WaitsSince() after the kill = %v; want %v", got, want)
		}
	})
}
