package kube

import (
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Two evictd-kube at once end each other's sessions; evictd keeps the facts and logs the
// reason. What they cause to be logged is bounded.
func TestTwoFeeds(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "kube.sock")
	e := serve(t, socket, NewFacts())
	for range 2 {
		feed := NewFeed("n1", "test", slog.New(slog.DiscardHandler))
		feed.Replace(pods(30))
		run(t, feed, socket)
	}
	until(t, "facts", func() bool { return e.Facts.Status(time.Now()).Pods == 30 })
	for began := time.Now(); time.Since(began) < 2*time.Second; time.Sleep(time.Millisecond) {
		if e.Facts.Specification(runs(29)) == nil || e.Facts.Specification(runs(0)) == nil {
			t.Fatal("no facts while the sessions alternate")
		}
	}
	if log := e.log.String(); !strings.Contains(log, "another process has connected as evictd-kube") || strings.Count(log, "\n") > 4 {
		t.Errorf("log:\n%s\nwant the reason, in at most 4 lines", log)
	}
}

// A peer that connects again and again can't fill the log.
func TestReconnectsAreNotAllLogged(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "kube.sock")
	e := serve(t, socket, NewFacts())
	for range 20 {
		conn, r := raw(t, socket, hello)
		if _, err := r.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		conn.Close()
	}
	e.stop()
	if log := e.log.String(); strings.Count(log, "\n") > 4 {
		t.Errorf("log:\n%s\nwant at most 4 lines", log)
	}
}

// evictd reads a bounded number of lines and bytes in a second.
func TestThrottle(t *testing.T) {
	for name, size := range map[string]int{"lines": 1, "bytes": MaxLine} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				s := &Server{second: began}
				for range 3 * min(maxRate, maxByteRate/size) {
					if !s.throttle(t.Context(), 1, size) {
						t.Fatal("throttle() = false")
					}
				}
				if got := time.Since(began); got != 2*time.Second {
					t.Errorf("took %v; want 2s", got)
				}
				ended, cancel := context.WithCancel(t.Context())
				cancel()
				s.lines = maxRate
				if s.throttle(ended, 1, size) {
					t.Error("throttle() = true after the end of its context; want false")
				}
			})
		})
	}
}

// A peer that opens session after session, or sends what goes through all facts, is
// bounded as one that sends lines.
func TestSessionsShareTheBounds(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "kube.sock")
	e := serve(t, socket, NewFacts())
	began := time.Now()
	const sessions, lists = 5, maxRate / walkWeight / 2 // two lines each
	for range sessions {
		conn, r := raw(t, socket, hello, strings.Repeat(`{"list":{"id":1}}`+"\n"+`{"listed":{"id":1}}`+"\n", lists))
		for range 1 + lists {
			if _, err := r.ReadString('\n'); err != nil {
				t.Fatal(err)
			}
		}
		conn.Close()
	}
	if took := time.Since(began); took < (sessions-2)*time.Second {
		t.Errorf("%d lists in %d sessions took %v; want one second for each session's", sessions*lists, sessions, took)
	}
	if n := e.changes.Load(); n > 1+int32(time.Since(began)/changeInterval) {
		t.Errorf("%d calls of Changed in %v; want one a second", n, time.Since(began))
	}
}

// A list that evictd reads slowly is written in full.
func TestWriteSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		evictdEnd, kubeEnd := net.Pipe()
		const n = 640
		done := make(chan bool)
		go func() {
			defer close(done)
			lines := newLineReader(evictdEnd)
			for {
				if _, err := lines.next(); err != nil {
					return
				}
				time.Sleep(writeTimeout / 100)
			}
		}()
		if err := write(kubeEnd, slices.Repeat([][]byte{[]byte("line\n")}, n)); err != nil {
			t.Errorf("write() = %v; want all %d lines written", err, n)
		}
		kubeEnd.Close()
		<-done
	})
}
