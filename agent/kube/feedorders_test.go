package kube

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// evictd-kube sends answers at once, while changed facts wait for sendInterval.
func TestReportsAreSentAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		evictdEnd, kubeEnd := net.Pipe()
		f := NewFeed("n1", "test", slog.New(slog.DiscardHandler))
		f.Orders = &recorder{feed: f, orders: map[string]Order{}}
		f.Replace(pods(1))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = f.serve(ctx, kubeEnd)
		}()
		lines := newLineReader(evictdEnd, maxPodSize)
		next := func(want string) {
			t.Helper()
			if line, err := lines.next(); err != nil || !strings.HasPrefix(string(line), `{"`+want) {
				t.Fatalf("line %q, %v; want a %s", line, err, want)
			}
		}
		next("hello")
		fmt.Fprint(evictdEnd, hello)
		for _, want := range []string{"state", "list", "pod", "listed"} {
			next(want)
		}
		began := time.Now()
		f.Put(pods(2)[1])
		fmt.Fprint(evictdEnd, mustEncode(t, &Order{ID: "i", UID: "u", Namespace: "n", Name: "p", Stage: StageEnded, Reason: "Evicted"}))
		next("report")
		if took := time.Since(began); took != 0 {
			t.Errorf("report after %v; want it at once", took)
		}
		synctest.Wait()
		for { // the recorder may have been faster with its second answer, or not
			line, err := lines.next()
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasPrefix(string(line), `{"pod`) {
				break
			}
		}
		if took := time.Since(began); took != sendInterval {
			t.Errorf("changed facts after %v; want %v", took, sendInterval)
		}
		cancel()
		<-done
	})
}

// evictd-kube refuses orders that no evictd sends, and more than evictd may have.
func TestFeedRefusesOrders(t *testing.T) {
	good := Order{ID: "i", UID: "u", Namespace: "n", Name: "p", Stage: StageEnded, Reason: "Evicted"}
	many := func(n int) (lines bytes.Buffer) {
		for i := range n {
			o := good
			o.ID = fmt.Sprint(i)
			lines.WriteString(mustEncode(t, &o))
		}
		return lines
	}
	for name, tt := range map[string]struct {
		lines bytes.Buffer
		want  error
	}{
		"as many as there may be": {many(MaxOrders), io.EOF},
		"one more":                {many(MaxOrders + 1), nil},
		"stage":                   {*bytes.NewBufferString(strings.Replace(mustEncode(t, &good), "ended", "later", 1)), nil},
		"ID":                      {*bytes.NewBufferString(strings.Replace(mustEncode(t, &good), `"i"`, `"a b"`, 1)), nil},
		"report":                  {*bytes.NewBufferString(`{"report":{"id":"i","answer":"gone"}}` + "\n"), nil},
	} {
		f := NewFeed("n1", "test", slog.New(slog.DiscardHandler))
		f.Orders = &recorder{feed: f, orders: map[string]Order{}}
		f.resetOrders()
		err := f.answers(newLineReader(&tt.lines, maxLine))
		if ended := err.Error() == "evictd has closed the connection"; ended != (tt.want == io.EOF) {
			t.Errorf("%s: %v", name, err)
		}
		if len(f.reports) > MaxOrders {
			t.Errorf("%s: %d reports wait; want at most %d", name, len(f.reports), MaxOrders)
		}
	}
}

// evictd-kube goes on with its orders while evictd restarts, and not when it does not come back.
func TestOrdersAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := NewFeed("n1", "test", slog.New(slog.DiscardHandler))
		r := &resets{}
		f.Orders = r
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		defer func() { cancel(); <-done }()
		var up, version atomic.Bool
		up.Store(true)
		go func() {
			defer close(done)
			f.run(ctx, "socket", func() (bool, error) {
				switch {
				case up.Load():
					f.resetOrders()
					sleep(ctx, time.Hour)
					return true, io.EOF
				case version.Load():
					return false, &VersionError{}
				}
				return false, io.ErrClosedPipe
			})
		}()
		want := func(when string, n int) {
			t.Helper()
			synctest.Wait()
			if got := int(r.n.Load()); got != n {
				t.Errorf("%s: orders withdrawn %d times; want %d", when, got, n)
			}
		}
		time.Sleep(time.Minute)
		want("in the first session", 1)
		up.Store(false)
		time.Sleep(time.Hour - time.Millisecond)
		want("a minute after it, less a millisecond", 1)
		time.Sleep(time.Millisecond)
		want("a minute after it", 2)
		time.Sleep(time.Hour)
		want("an hour later", 2)
		up.Store(true)
		time.Sleep(longestBackoff)
		want("in the second session", 3)
		up.Store(false)
		version.Store(true)
		time.Sleep(time.Hour + ordersKept)
		want("a minute after that, with another version", 4)
		up.Store(true)
		version.Store(false)
		time.Sleep(versionBackoff)
		want("in the third session", 5)
		up.Store(false)
		time.Sleep(time.Hour - versionBackoff)
		up.Store(true)
		time.Sleep(2 * ordersKept)
		want("evictd was back within a minute", 6)
	})
}

// resets counts calls of Reset.
type resets struct{ n atomic.Int32 }

func (r *resets) Reset()          { r.n.Add(1) }
func (r *resets) Order(*Order)    {}
func (r *resets) Withdraw(string) {}

// BenchmarkOrder measures the times from Ended to the call of the handler in evictd-kube, and to
// its answer in evictd, if the handler answers at once.
func BenchmarkOrder(b *testing.B) {
	socket := filepath.Join(b.TempDir(), "kube.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		b.Fatal(err)
	}
	orders := NewOrders(OrdersOptions{Save: func() {}, Lift: func(string, string) {}, Log: slog.New(slog.DiscardHandler)})
	s := &Server{Facts: NewFacts(), Orders: orders, Changed: func() {}, Log: slog.New(slog.DiscardHandler)}
	conns := make(chan net.Conn, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			close(conns)
			return
		}
		conns <- conn
		s.serveConn(b.Context(), conn)
	}()
	go orders.Run(b.Context())
	r, _ := handled(b, socket, func(f *Feed, socket string) func() {
		f.Orders.(*recorder).notify = make(chan struct{}, 10)
		go f.Run(b.Context(), socket)
		return nil
	})
	<-conns
	var ordered, answered []time.Duration
	for i := 0; b.Loop(); i++ {
		uid := fmt.Sprintf("u%d", i)
		if _, err := orders.Begin(eviction(uid, ExclusiveJob)); err != nil {
			b.Fatal(err)
		}
		<-r.notify
		time.Sleep(time.Millisecond) // idle, as between two evictions
		began := time.Now()
		orders.Ended(uid)
		<-r.notify
		ordered = append(ordered, time.Since(began))
		<-orders.answered
		answered = append(answered, time.Since(began))
		orders.CgroupGone(uid)
		<-orders.answered
	}
	for name, times := range map[string][]time.Duration{"order": ordered, "answer": answered} {
		slices.Sort(times)
		b.ReportMetric(float64(times[len(times)/2].Microseconds()), "µs-"+name+"-median")
		b.ReportMetric(float64(times[len(times)*99/100].Microseconds()), "µs-"+name+"-p99")
	}
	l.Close()
}
