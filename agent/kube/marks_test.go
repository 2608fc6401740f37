package kube

import (
	"log/slog"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/selffence"
)

func TestMarksCheck(t *testing.T) {
	for _, test := range []struct {
		marks NodeMarks
		want  string
	}{
		{NodeMarks{Number: 1, Watchdog: "{}"}, ""},
		{NodeMarks{Number: 1, Watchdog: "{}", PlannedShutdown: "t"}, ""},
		{NodeMarks{Watchdog: "{}"}, "without a number"},
		{NodeMarks{Number: 1}, "without an advert"},
		{NodeMarks{Number: 1, Watchdog: strings.Repeat("x", maxMark+1)}, "too long"},
		{NodeMarks{Number: 1, Watchdog: "{}", PlannedShutdown: "a\nb"}, "cannot be printed"},
	} {
		if err := test.marks.check(); (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v.check() = %v; want %q", test.marks, err, test.want)
		}
	}
	if err := (&MarksReport{Why: strings.Repeat("x", maxWhy+1)}).check(); err == nil {
		t.Error("a reason that is too long is accepted")
	}
}

// The state has the count of the nodes that cannot reach the API server, at once when it changes. One that is not valid
// ends the session.
func TestPeersSession(t *testing.T) {
	counts := make(chan selffence.Count, 10)
	marks := NewMarks(func(uint64) {}, slog.New(slog.DiscardHandler))
	marks.Peers = func(c selffence.Count) { counts <- c }
	socket := filepath.Join(t.TempDir(), "kube.sock")
	e := serve(t, socket, NewFacts(), func(s *Server) { s.Marks = marks })
	var now atomic.Pointer[selffence.Count]
	now.Store(&selffence.Count{Nodes: 5, ListAge: time.Minute})
	feed := NewFeed("n1", "test", slog.New(slog.DiscardHandler))
	feed.Peers = func() selffence.Count { return *now.Load() }
	run(t, feed, socket)
	for _, want := range []selffence.Count{*now.Load(), {CannotReach: 3, Nodes: 5, ListAge: time.Minute, At: time.Hour}} {
		now.Store(&want)
		feed.SendState()
		for got := range counts {
			if got == want {
				break
			}
		}
	}
	now.Store(&selffence.Count{CannotReach: 6, Nodes: 5})
	feed.SendState()
	until(t, "reason", func() bool { return strings.Contains(e.Facts.Status(time.Now()).Error, "6 of 5 nodes") })
}

// marksPeer is an evictd-kube that writes marks.
type marksPeer chan *NodeMarks

func (p marksPeer) SetMarks(m *NodeMarks) { p <- m }

// Marks are sent at the beginning of a session and when they change, answered by number, and withdrawn at its end.
func TestMarksSession(t *testing.T) {
	accepted := make(chan uint64, 10)
	marks := NewMarks(func(number uint64) { accepted <- number }, slog.New(slog.DiscardHandler))
	marks.Set(NodeMarks{Number: 1, Watchdog: "first"})
	socket := filepath.Join(t.TempDir(), "kube.sock")
	serve(t, socket, NewFacts(), func(s *Server) { s.Marks = marks })
	peer := make(marksPeer, 10)
	feed := NewFeed("n1", "test", slog.New(slog.DiscardHandler))
	feed.Marks = peer
	stop := run(t, feed, socket)
	expect := func(want string) {
		t.Helper()
		if m := <-peer; (m == nil) != (want == "") || m != nil && m.Watchdog != want {
			t.Fatalf("marks %+v; want %q", m, want)
		}
	}
	expect("first")
	marks.Set(NodeMarks{Number: 2, Watchdog: "second"})
	expect("second")
	feed.ReportMarks(&MarksReport{Number: 2, Why: "away"})
	until(t, "reason", func() bool { return marks.Why() == "away" })
	feed.ReportMarks(&MarksReport{Number: 2})
	if got := <-accepted; got != 2 || marks.Why() != "" {
		t.Errorf("accepted %d, reason %q; want 2 and none", got, marks.Why())
	}
	stop()
	expect("")
}
