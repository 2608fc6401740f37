package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/evictd/evictd/agent/signal"
)

// nodeRecorder is a NodeHandler that reports each state as written.
type nodeRecorder struct {
	feed   *Feed
	mu     sync.Mutex
	states []*NodeState
	notify chan struct{} // receives each call of SetNode, if not nil
}

func (r *nodeRecorder) SetNode(s *NodeState) {
	r.mu.Lock()
	r.states = append(r.states, s)
	r.mu.Unlock()
	if s != nil {
		r.feed.ReportNode(&NodeReport{Why: "too slow\n"}) // sent or not
		r.feed.ReportNode(&NodeReport{Number: s.Number})
		r.feed.ReportNode(&NodeReport{Number: s.Number + 1})
	}
	if r.notify != nil {
		r.notify <- struct{}{}
	}
}

// String returns the states that came.
func (r *nodeRecorder) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []string
	for _, s := range r.states {
		list = append(list, s.text())
	}
	return strings.Join(list, ", ")
}

// maintains starts a Feed that maintains the Node object.
func maintains(t testing.TB, socket string, run func(*Feed, string) func()) (_ *nodeRecorder, stop func()) {
	t.Helper()
	feed := NewFeed("n1", "test", slog.New(slog.DiscardHandler))
	r := &nodeRecorder{feed: feed}
	feed.Node = r
	feed.Replace(pods(1))
	return r, run(feed, socket)
}

var memoryPressure = []signal.Condition{signal.MemoryPressure}

const memoryOnly = "+Memory -Disk -PID -NodeShutdown"

// The state reaches evictd-kube in each session, and its answer evictd. A restart of either side
// under pressure changes nothing in between.
func TestNodeStateInSessions(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "kube.sock")
	evictd := func(uptime time.Duration) (*evictdSide, *Node) {
		e := serve(t, socket, NewFacts(), func(s *Server) { s.Node = NewNode(NodeOptions{Uptime: uptime, Log: s.Log}) })
		return e, e.Node
	}
	start := func() (*nodeRecorder, func()) {
		return maintains(t, socket, func(f *Feed, socket string) func() { return run(t, f, socket) })
	}
	e, node := evictd(time.Minute)
	node.Set(nil, false, time.Now()) // before there is a session
	r, stop := start()
	until(t, "first state", func() bool { return r.String() == noPressure })
	until(t, "answer", func() bool { return node.Status().Reported })
	node.Set(memoryPressure, false, time.Now())
	until(t, "change", func() bool { return r.String() == noPressure+", "+memoryOnly })
	written := func() bool { s := node.Status(); return s.Unwritten.IsZero() && s.Unknown == 0 && s.Why == "" }
	until(t, "answer to the change", written)

	stop() // evictd-kube restarts
	until(t, "end of the session", func() bool { return !e.Facts.Status(time.Now()).Connected })
	r, _ = start()
	until(t, "state after a restart of evictd-kube", func() bool { return r.String() == memoryOnly })
	number := r.states[0].Number
	until(t, "answer of the next evictd-kube", written)

	e.stop() // evictd restarts
	e, node = evictd(time.Minute + time.Second)
	until(t, "session with the next evictd", func() bool { return e.Facts.Status(time.Now()).Connected })
	time.Sleep(50 * time.Millisecond) // before its first decision it sends nothing
	if got := r.String(); got != memoryOnly {
		t.Errorf("states %s before the first decision; want nothing new", got)
	}
	node.Set(memoryPressure, false, time.Now())
	until(t, "state after a restart of evictd", func() bool { return r.String() == memoryOnly+", "+memoryOnly })
	until(t, "answer", written)
	if r.states[1].Number <= number {
		t.Errorf("number %d after a restart of evictd; want more than %d", r.states[1].Number, number)
	}
}

// Changes that a peer does not read are one, and delay neither the decision loop nor the end
// of evictd.
func TestNodeWithStoppedPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := NewNode(NodeOptions{Log: slog.New(slog.DiscardHandler)})
		s := &Server{Facts: NewFacts(), Node: node, Changed: func() {}, Log: slog.New(slog.DiscardHandler)}
		conn, r := pipe(t, s)
		began := time.Now()
		for i := range 2 * maxOutgoing {
			node.Set(memoryPressure[:i%2], false, time.Now())
			synctest.Wait()
		}
		if time.Since(began) != 0 {
			t.Errorf("changes took %v; want no wait", time.Since(began))
		}
		var got []string
		for range 2 {
			line, err := r.ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			var m Message
			if err := json.Unmarshal([]byte(line), &m); err != nil {
				t.Fatal(err)
			}
			got = append(got, m.NodeState.text())
		}
		if want := []string{noPressure, memoryOnly}; !slices.Equal(got, want) {
			t.Errorf("states %q; want the first and the newest, %q", got, want)
		}

		began = time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		node.Stop(ctx)
		if took := time.Since(began); took != 5*time.Second+flushTimeout {
			t.Errorf("Stop took %v with a peer that does not read; want %v", took, 5*time.Second+flushTimeout)
		}
		conn.Close()
		synctest.Wait()
		if node.session != nil {
			t.Error("the session has not ended")
		}
	})
}

// What evictd set is stale a minute after the last session, or after the start without one.
func TestNodeIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := NewFeed("n1", "test", slog.New(slog.DiscardHandler))
		r := &nodeRecorder{feed: f}
		f.Node = r
		ctx, cancel := context.WithCancel(t.Context())
		done, sessions := make(chan struct{}), make(chan time.Duration, 1)
		defer func() { cancel(); <-done }()
		go func() {
			defer close(done)
			f.run(ctx, "socket", func() (bool, error) {
				select {
				case length := <-sessions:
					f.beginSession()
					if err := f.setNode(&NodeState{Number: 7}); err != nil {
						t.Error(err)
					}
					sleep(ctx, length)
					return true, io.EOF
				default:
					return false, io.ErrClosedPipe
				}
			})
		}()
		want := func(when, want string) {
			t.Helper()
			synctest.Wait()
			if got := r.String(); got != want {
				t.Errorf("%s: states %q; want %q", when, got, want)
			}
		}
		time.Sleep(ordersKept - time.Millisecond)
		want("within a minute", "")
		time.Sleep(time.Millisecond)
		want("after a minute", "nothing")
		time.Sleep(time.Hour)
		want("later", "nothing")
		sessions <- time.Hour
		time.Sleep(time.Hour + longestBackoff)
		want("after a session", "nothing, ")
		if r.feed.nodeReport == nil || r.feed.nodeReport.Number != 7 {
			t.Errorf("report %+v; want that of the state", r.feed.nodeReport)
		}
		sessions <- 0 // evictd is back within a minute
		time.Sleep(ordersKept - longestBackoff)
		want("in the next session", "nothing, , ")
		time.Sleep(2 * ordersKept)
		want("a minute after it", "nothing, , , nothing")
	})
}

// recordSessions runs the sessions of a Feed and records its states of the Node until end is called.
func recordSessions(t *testing.T, session func(context.Context, *Feed) (established bool, err error)) (r *nodeRecorder, end func()) {
	t.Helper()
	f := NewFeed("n1", "test", slog.New(slog.DiscardHandler))
	r = &nodeRecorder{feed: f}
	f.Node = r
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f.run(ctx, "socket", func() (bool, error) { return session(ctx, f) })
	}()
	return r, func() { cancel(); <-ended }
}

// What evictd set is stale, too, if it says nothing about the Node for three minutes in a session.
func TestSilentEvictdIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := NewNode(NodeOptions{Log: slog.New(slog.DiscardHandler)})
		s := &Server{Facts: NewFacts(), Node: node, Changed: func() {}, Log: slog.New(slog.DiscardHandler)}
		r, end := recordSessions(t, func(ctx context.Context, f *Feed) (bool, error) {
			kube, evictd := net.Pipe()
			go s.serveConn(ctx, evictd)
			return f.serve(ctx, kube)
		})
		defer end()
		time.Sleep(stateKept + StateInterval)
		synctest.Wait()
		if got := r.String(); got != "nothing" {
			t.Errorf("states %q of an evictd that decides nothing; want that it is gone", got)
		}
		for range 60 { // 10 min
			node.Set(memoryPressure, false, time.Now())
			time.Sleep(10 * time.Second)
		}
		synctest.Wait()
		if got := strings.Count(r.String(), memoryOnly); got < 10 || strings.Count(r.String(), "nothing") != 1 {
			t.Errorf("states %q; want one each minute", r.String())
		}
		time.Sleep(stateKept + repeatInterval) // the loop hangs
		synctest.Wait()
		if got := r.String(); strings.Count(got, "nothing") != 2 || !strings.HasSuffix(got, "nothing") {
			t.Errorf("states %q of an evictd that measures nothing; want that it is gone", got)
		}
		for range 7 {
			node.Set(memoryPressure, false, time.Now())
			time.Sleep(10 * time.Second)
		}
		synctest.Wait()
		if got := r.String(); !strings.HasSuffix(got, memoryOnly) {
			t.Errorf("states %q of an evictd that measures again", got)
		}
	})
}

// The same goes for an evictd that crashes again and again before it says anything: no session lasts
// until its first look, and no time without one lasts a minute.
func TestCrashingEvictdIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const lives = 6 * time.Second
		s := &Server{Facts: NewFacts(), Node: NewNode(NodeOptions{Log: slog.New(slog.DiscardHandler)}), Changed: func() {}, Log: slog.New(slog.DiscardHandler)}
		r, end := recordSessions(t, func(ctx context.Context, f *Feed) (bool, error) {
			life, stop := context.WithTimeout(ctx, lives)
			defer stop()
			kube, evictd := net.Pipe()
			var serving sync.WaitGroup
			defer serving.Wait() // a server has one session at a time
			serving.Go(func() { s.serveConn(life, evictd) })
			return f.serve(ctx, kube)
		})
		defer end()
		time.Sleep(stateKept - time.Second)
		synctest.Wait()
		if got := r.String(); got != "" {
			t.Errorf("states %q before %v; want none", got, stateKept)
		}
		time.Sleep(time.Second + lives + longestBackoff)
		synctest.Wait()
		if got := r.String(); got != "nothing" {
			t.Errorf("states %q of an evictd that crashes again and again; want that it is gone", got)
		}
	})
}

// evictd-kube answers states of this session only.
func TestReportNode(t *testing.T) {
	f := NewFeed("n1", "test", slog.New(slog.DiscardHandler))
	sent := func() string {
		t.Helper()
		batch, err := f.takeReports(time.Now())
		if err != nil {
			t.Fatal(err)
		}
		var lines []string
		for _, line := range batch {
			lines = append(lines, strings.TrimSpace(string(line)))
		}
		return strings.Join(lines, ", ")
	}
	f.ReportNode(&NodeReport{Number: 1})
	if got := sent(); got != "" {
		t.Errorf("sent %s before the first state", got)
	}
	f.Node = &nodeRecorder{feed: f}
	if err := f.apply(&Message{NodeState: &NodeState{Number: 8}}); err != nil {
		t.Fatal(err)
	}
	if got, want := sent(), `{"nodeReport":{"number":8}}`; got != want {
		t.Errorf("sent %s; want %s", got, want)
	}
	f.ReportNode(&NodeReport{Number: 7, Why: "no\nright"})
	f.ReportNode(&NodeReport{Number: 9})
	select {
	case <-f.reported:
	default:
		t.Error("the session is not woken")
	}
	if got, want := sent(), `{"nodeReport":{"number":7,"why":"no right"}}`; got != want {
		t.Errorf("sent %s; want %s", got, want)
	}
	f.ReportNode(&NodeReport{Number: 8})
	f.beginSession()
	f.ReportNode(&NodeReport{Number: 8})
	if got := sent(); got != "" {
		t.Errorf("sent %s in a session without a state", got)
	}
	if err := f.apply(&Message{NodeState: &NodeState{Number: 8, Conditions: []NodeCondition{{Type: "Ready"}}}}); err == nil {
		t.Error("a state with the condition Ready is accepted")
	}
}

// Malformed answers end their session, and change nothing.
func TestHostileNodeReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := NewNode(NodeOptions{Log: slog.New(slog.DiscardHandler)})
		node.Set(memoryPressure, false, time.Now())
		s := &Server{Facts: NewFacts(), Node: node, Changed: func() {}, Log: slog.New(slog.DiscardHandler)}
		for _, tt := range []struct {
			line string
			ok   bool
		}{
			{fmt.Sprintf(`{"nodeReport":{"number":18446744073709551615,"why":%q}}`, strings.Repeat("x", maxWhy)), true},
			{`{"nodeReport":{"number":0}}`, true},
			{`{"nodeReport":{"number":2}}`, true},
			{fmt.Sprintf(`{"nodeReport":{"number":0,"why":%q}}`, strings.Repeat("x", maxWhy+1)), false},
			{`{"nodeReport":{"number":0,"why":"\u202e"}}`, false},
			{`{"nodeReport":{"number":-1}}`, false},
			{`{"nodeReport":{"number":1,"conditions":[]}}`, false},
			{`{"nodeReport":{"number":1},"report":{"id":"i","answer":"gone"}}`, false},
			{`{"nodeState":{"number":1}}`, false},
		} {
			conn, r := pipe(t, s)
			if line, err := r.ReadString('\n'); err != nil || !strings.HasPrefix(line, `{"nodeState":{"number":1,`) {
				t.Fatalf("line %q, %v; want the state", line, err)
			}
			fmt.Fprintln(conn, tt.line)
			synctest.Wait()
			_ = conn.SetReadDeadline(time.Now().Add(time.Second))
			if _, err := r.ReadString('\n'); errors.Is(err, io.EOF) == tt.ok {
				t.Errorf("%.80s: session ended with %v; want it to go on = %v", tt.line, err, tt.ok)
			}
			conn.Close()
			synctest.Wait()
		}
		if s := node.Status(); s.Reported || s.Unwritten.IsZero() || s.Unknown != 2 || s.Why != "" {
			t.Errorf("status %+v; want nothing written, and two unknown states", s)
		}
	})
}

// An evictd without a Node, and an evictd-kube without a handler, ignore what they don't need.
func TestNodeIsOptional(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Server{Facts: NewFacts(), Changed: func() {}, Log: slog.New(slog.DiscardHandler)}
		conn, _ := pipe(t, s)
		fmt.Fprintln(conn, `{"nodeReport":{"number":1}}`)
		synctest.Wait()
		if !s.Facts.Status(time.Now()).Connected {
			t.Error("evictd has ended the session")
		}
		conn.Close()
		synctest.Wait()
	})
	f := NewFeed("n1", "test", slog.New(slog.DiscardHandler))
	if err := f.apply(&Message{NodeState: &NodeState{Number: 8}}); err != nil {
		t.Error(err)
	}
	f.forget()
}

// BenchmarkNodeState measures the times from Set to the call of the handler in evictd-kube, and to
// its answer in evictd, if the handler answers at once.
func BenchmarkNodeState(b *testing.B) {
	socket := filepath.Join(b.TempDir(), "kube.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		b.Fatal(err)
	}
	node := NewNode(NodeOptions{Log: slog.New(slog.DiscardHandler)})
	node.Set(nil, false, time.Now())
	s := &Server{Facts: NewFacts(), Node: node, Changed: func() {}, Log: slog.New(slog.DiscardHandler)}
	go func() {
		if conn, err := l.Accept(); err == nil {
			s.serveConn(b.Context(), conn)
		}
	}()
	r, _ := maintains(b, socket, func(f *Feed, socket string) func() {
		f.Node.(*nodeRecorder).notify = make(chan struct{}, 10)
		go f.Run(b.Context(), socket)
		return nil
	})
	<-r.notify
	<-node.written
	var stated, answered []time.Duration
	for i := 1; b.Loop(); i++ {
		time.Sleep(time.Millisecond) // idle, as between two changes
		began := time.Now()
		node.Set(memoryPressure[:i%2], false, began)
		<-r.notify
		stated = append(stated, time.Since(began))
		<-node.written
		answered = append(answered, time.Since(began))
	}
	for name, times := range map[string][]time.Duration{"state": stated, "answer": answered} {
		slices.Sort(times)
		b.ReportMetric(float64(times[len(times)/2].Microseconds()), "µs-"+name+"-median")
		b.ReportMetric(float64(times[len(times)*99/100].Microseconds()), "µs-"+name+"-p99")
	}
	l.Close()
}
