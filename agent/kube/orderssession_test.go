package kube

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// recorder is an OrderHandler that answers each order at StageEnded.
type recorder struct {
	feed   *Feed
	mu     sync.Mutex
	calls  []string
	orders map[string]Order
	notify chan struct{} // receives each call of Order, if not nil
}

func (r *recorder) Reset() { r.call("reset", nil) }

func (r *recorder) Withdraw(string) { r.call("withdraw", nil) }

func (r *recorder) Order(o *Order) {
	r.call(string(o.Stage)+" "+o.UID, o)
	if o.Stage == StageEnded {
		r.feed.Report(&Report{ID: o.ID, Answer: AnswerDelayed, Why: "too slow\n"}) // sent or not
		r.feed.Report(&Report{ID: o.ID, Answer: AnswerReported})
	}
	r.feed.Report(&Report{ID: "unknown", Answer: AnswerForbidden})
	if r.notify != nil {
		r.notify <- struct{}{}
	}
}

func (r *recorder) call(name string, o *Order) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, name)
	if o != nil {
		r.orders[o.UID] = *o
	}
}

// has reports whether the calls are exactly these, the orders for several pods in any order.
func (r *recorder) has(want ...string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Equal(slices.Sorted(slices.Values(r.calls)), slices.Sorted(slices.Values(want)))
}

func (r *recorder) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.calls, ", ")
}

// handled starts a Feed that reports evictions.
func handled(t testing.TB, socket string, run func(*Feed, string) func()) (_ *recorder, stop func()) {
	t.Helper()
	feed := NewFeed("n1", "test", slog.New(slog.DiscardHandler))
	r := &recorder{feed: feed, orders: map[string]Order{}}
	feed.Orders = r
	feed.CannotReport("")
	feed.Replace(pods(1))
	return r, run(feed, socket)
}

// serveOrders serves orders on a socket.
func serveOrders(t *testing.T, socket string, saved ...SavedOrder) (*evictdSide, *Orders) {
	t.Helper()
	e := serve(t, socket, NewFacts())
	e.stop()
	e.Orders = NewOrders(OrdersOptions{Save: func() {}, Lift: func(string, string) {}, Log: e.Log})
	e.Orders.Restore(saved, time.Now())
	e.start(t)
	ctx := t.Context()
	go e.Orders.Run(ctx)
	return e, e.Orders
}

// Orders reach evictd-kube, and its answers evictd, over restarts of either side in the middle.
func TestOrdersInSessions(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "kube.sock")
	e, orders := serveOrders(t, socket)
	start := func() (*recorder, func()) {
		return handled(t, socket, func(f *Feed, socket string) func() { return run(t, f, socket) })
	}
	expect := func(r *recorder, what string, want ...string) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); !r.has(want...); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: calls %s; want %q", what, r, want)
			}
		}
	}
	begin := func(uid, exclusive string) {
		t.Helper()
		if _, err := orders.Begin(eviction(uid, exclusive)); err != nil {
			t.Fatal(err)
		}
	}
	begin("u", ExclusiveJob) // before there is a session
	r, stop := start()
	expect(r, "first session", "reset", "killed u")
	want, err := new(eviction("u", ExclusiveJob)).order(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	got := r.orders["u"]
	want.ID, want.Decided = got.ID, got.Decided
	if a, b := mustEncode(t, want), mustEncode(t, &got); a != b || got.ID == "" || got.Decided.IsZero() {
		t.Errorf("order %s; want %s", b, a)
	}
	until(t, "statement", func() bool { return e.Facts.CannotReport() == "" })
	begin("v", ExclusiveClaim)
	expect(r, "next order", "reset", "killed u", "killed v")
	orders.Refused("v", "a guarded process")
	expect(r, "withdrawn", "reset", "killed u", "killed v", "withdraw")

	stop() // the pod ends while evictd-kube restarts
	until(t, "end of the session", func() bool { return !e.Facts.Status(time.Now()).Connected })
	orders.Ended("u")
	r, _ = start()
	expect(r, "evictd-kube restarted", "reset", "ended u")
	until(t, "answer", func() bool { return orders.Status().Unanswered == 0 })
	if s := orders.Status(); s.Answers[AnswerReported] != 1 || s.Answers[AnswerDelayed] > 1 || s.Unknown != 0 || s.Forbidden != 0 || s.Pending[0].Why != "" {
		t.Errorf("status %+v; want one report, and none for an unknown order", s)
	}

	saved := orders.Saved() // evictd restarts
	e.stop()
	_, orders = serveOrders(t, socket, saved...)
	expect(r, "evictd restarted", "reset", "ended u", "reset", "ended u")
	orders.CgroupGone("u")
	expect(r, "end", "reset", "ended u", "reset", "ended u", "withdraw")
}

func mustEncode(t *testing.T, o *Order) string {
	t.Helper()
	line, err := encode(&Message{Order: o})
	if err != nil {
		t.Fatal(err)
	}
	return string(line)
}

// Malformed answers end their session, and change no order. An unknown order is no error: it may
// have been withdrawn.
func TestHostileReports(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "kube.sock")
	e, orders := serveOrders(t, socket)
	id, err := orders.Begin(eviction("u", ExclusiveJob))
	if err != nil {
		t.Fatal(err)
	}
	report := func(id, answer, why string) string {
		line, err := json.Marshal(map[string]any{"report": map[string]string{"id": id, "answer": answer, "why": why}})
		if err != nil {
			t.Fatal(err)
		}
		return string(line) + "\n"
	}
	const list = `{"list":{"id":1}}` + "\n" + `{"listed":{"id":1}}` + "\n" // evictd answers it
	for _, tt := range []struct {
		line string
		ok   bool
	}{
		{report(id, "delayed", strings.Repeat("x", maxWhy)), true},
		{report("other", "forbidden", ""), true},
		{report(id, "delayed", strings.Repeat("x", maxWhy+1)), false},
		{report(id, "delayed", "a\nb"), false},
		{report(id, "delayed", "\u202e"), false},
		{report(id, "forgiven", ""), false},
		{report(id, "", ""), false},
		{report("", "reported", ""), false},
		{report(strings.Repeat("x", maxOrderID+1), "reported", ""), false},
		{report("a b", "reported", ""), false},
		{`{"report":{"id":"` + id + `","answer":"delayed","why":"` + "\xff" + `"}}` + "\n", false},
		{`{"report":{"id":"` + id + `","answer":"reported","uid":"u"}}` + "\n", false},
		{strings.Replace(mustEncode(t, &Order{ID: id}), "null", `"x"`, 1), false},
		{`{"withdraw":{"id":"` + id + `"}}` + "\n", false},
	} {
		conn, r := raw(t, socket, hello, tt.line, list)
		answered := false
		for {
			line, err := r.ReadString('\n')
			if err != nil || strings.Contains(line, "accepted") {
				answered = err == nil
				break
			}
		}
		if answered != tt.ok {
			t.Errorf("%.100q: session goes on = %v; want %v", tt.line, answered, tt.ok)
		}
		conn.Close()
		until(t, "end of the session", func() bool { return !e.Facts.Status(time.Now()).Connected })
	}
	s := orders.Status()
	if len(s.Pending) != 1 || s.Pending[0].Answer != AnswerDelayed || len(s.Pending[0].Why) != maxWhy || s.Forbidden != 0 || s.Unknown != 1 {
		t.Errorf("status %+v; want the order delayed", s)
	}
}

// A peer that is stopped delays neither the callers of Orders nor what evictd reads. Its session
// ends when evictd can't write.
func TestStoppedPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newOrders(t)
		s := &Server{Facts: NewFacts(), Orders: u.Orders, Changed: func() {}, Log: slog.New(slog.DiscardHandler)}
		conn, _ := pipe(t, s)
		began := time.Now()
		for i := range MaxOrders {
			u.begin(t, eviction(fmt.Sprintf("u%d", i), ""))
		}
		fmt.Fprint(conn, `{"state":{"connected":true,"ageMilliseconds":9,"error":"read"}}`+"\n")
		synctest.Wait()
		if got := s.Facts.Status(time.Now()); !got.Connected || got.Error != "read" || time.Since(began) != 0 {
			t.Errorf("status %+v after %v; want the state read at once", got, time.Since(began))
		}
		time.Sleep(writeTimeout)
		synctest.Wait()
		if got := s.Facts.Status(time.Now()); got.Connected || got.Error != errNotRead.Error() || time.Since(began) != writeTimeout {
			t.Errorf("status %+v; want the session ended because of the write", got)
		}
		if u.session != nil || len(u.Saved()) != MaxOrders {
			t.Errorf("%d orders; want all, without a session", len(u.Saved()))
		}
		next, r := pipe(t, s)
		for range MaxOrders {
			if line, err := r.ReadString('\n'); err != nil || !strings.Contains(line, `"stage":"ended"`) {
				t.Fatalf("line %q, %v; want the newest stage of each order", line, err)
			}
		}
		next.Close()
		conn.Close()
		u.stop()
	})
}

// When evictd-kube can report again after it could not, pods whose report it refused are no longer
// exempt, and evictd lists the pods.
func TestForbiddenPodsAreAllowedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newOrders(t)
		changed := 0
		s := &Server{Facts: NewFacts(), Orders: u.Orders, Changed: func() { changed++ }, Log: slog.New(slog.DiscardHandler)}
		conn, _ := pipe(t, s)
		u.begin(t, eviction("u", ""))
		synctest.Wait()
		u.answer("u", AnswerForbidden)
		for i, tt := range []struct {
			why       string
			forbidden bool
		}{{"", true}, {"no right", true}, {"no other right", true}, {"", false}, {"", false}} {
			fmt.Fprintf(conn, `{"state":{"connected":true,"ageMilliseconds":9,"cannotReport":%q}}`+"\n", tt.why)
			if i == 0 {
				fmt.Fprint(conn, `{"list":{"id":1}}`+"\n"+`{"listed":{"id":1}}`+"\n")
			}
			time.Sleep(time.Second)
			synctest.Wait()
			if got := u.Forbidden("u"); got != tt.forbidden || changed != map[bool]int{true: 0, false: 1}[got] {
				t.Errorf("state %d, cannot report %q: Forbidden() = %v, %d changes; want %v", i, tt.why, got, changed, tt.forbidden)
			}
		}
		conn.Close()
		u.stop()
	})
}

// A peer that is stopped on a real socket, whose buffer its orders fill, does not keep the next
// evictd-kube from getting them at once.
func TestStoppedPeerIsReplaced(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "kube.sock")
	e, orders := serveOrders(t, socket)
	stopped, r := raw(t, socket, hello)
	if _, err := r.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	until(t, "session", func() bool { return e.Facts.Status(time.Now()).Connected })
	began := time.Now()
	for i := range MaxOrders {
		large := eviction(fmt.Sprintf("u%d", i), ExclusiveJob)
		large.Message = strings.Repeat("x", maxMessage)
		if _, err := orders.Begin(large); err != nil {
			t.Fatal(err)
		}
	}
	fmt.Fprint(stopped, `{"state":{"connected":true,"ageMilliseconds":9,"error":"read"}}`+"\n")
	until(t, "state of the stopped peer", func() bool { return e.Facts.Status(time.Now()).Error == "read" })
	_, r = raw(t, socket, hello)
	for i := range 1 + MaxOrders {
		if line, err := r.ReadString('\n'); err != nil || strings.Contains(line, "order") != (i > 0) {
			t.Fatalf("line %d is %.100q, %v; want a hello and the orders", i, line, err)
		}
	}
	if took := time.Since(began); took > writeTimeout/2 {
		t.Errorf("the next evictd-kube had all orders after %v; want it not to wait for the timeout of the stopped one", took)
	}
}

// What waits for a peer is bounded: an order waits once.
func TestOutbox(t *testing.T) {
	b := newOutbox()
	for range 3 * maxOutgoing {
		b.order("i")
	}
	if next, full := b.take(); len(next) != 1 || full {
		t.Errorf("%d messages, lost %v; want 1", len(next), full)
	}
	b.order("i")
	for range 3 * maxOutgoing {
		b.message(&Message{Withdraw: &OrderID{"i"}})
	}
	if len(b.queue) != maxOutgoing {
		t.Errorf("%d messages; want %d", len(b.queue), maxOutgoing)
	}
	if err := b.write(t.Context(), nil, nil); err != errNotRead {
		t.Errorf("write() = %v; want %v", err, errNotRead)
	}
}

// Orders wait for a peer of the same version.
func TestOrdersWaitForTheVersion(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "kube.sock")
	e, orders := serveOrders(t, socket)
	if _, err := orders.Begin(eviction("u", "")); err != nil {
		t.Fatal(err)
	}
	_, r := raw(t, socket, `{"hello":{"version":5,"software":"v9.0"}}`+"\n")
	if line, err := r.ReadString('\n'); err != nil || !strings.Contains(line, "hello") {
		t.Errorf("answer %q, %v; want a hello", line, err)
	}
	if line, err := r.ReadString('\n'); err != io.EOF {
		t.Errorf("answer %q, %v; want no order", line, err)
	}
	until(t, "reason", func() bool {
		return strings.Contains(e.Facts.Status(time.Now()).Error, "has version 5 of the protocol")
	})
	if !orders.Pending("u") {
		t.Error("the order has ended")
	}
	_, r = raw(t, socket, hello)
	if line, err := r.ReadString('\n'); err != nil || !strings.Contains(line, "hello") {
		t.Fatalf("answer %q, %v; want a hello first", line, err)
	}
	if line, err := r.ReadString('\n'); err != nil || !strings.Contains(line, `{"order":{"id":"`) {
		t.Errorf("line %q, %v; want the order", line, err)
	}
}
