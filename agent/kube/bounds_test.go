package kube

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
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

// evictd reads a bounded number of lines and bytes in a second, after one complete list.
func TestThrottle(t *testing.T) {
	const seconds = 30
	for name, tt := range map[string]struct {
		line string
		n    int
	}{
		"lines":    {"", lineBurst + seconds*lineRate},
		"bytes":    {strings.Repeat("x", 8<<10), (decodeBurst + seconds*decodeRate) / (16 << 10)},
		"elements": {strings.Repeat(",", 127), (decodeBurst + seconds*decodeRate) / (127 * (2 + elementSize))},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began, s := time.Now(), &Server{}
				for range tt.n {
					if !s.throttle(t.Context(), decodedSize([]byte(tt.line))) {
						t.Fatal("throttle() = false")
					}
				}
				if got := time.Since(began); (got - seconds*time.Second).Abs() > time.Second/5 {
					t.Errorf("%d lines took %v; want %ds", tt.n, got, seconds)
				}
				ended, cancel := context.WithCancel(t.Context())
				cancel()
				if s.throttle(ended, decodeBurst) {
					t.Error("throttle() = true after the end of its context; want false")
				}
			})
		})
	}
}

// A list visits all facts: evictd ends at most one a second, in all sessions together.
func TestListsAreThrottled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var changes atomic.Int32
		s := &Server{Facts: NewFacts(), Changed: func() { changes.Add(1) }, Log: slog.New(slog.DiscardHandler)}
		const sessions, lists = 3, 4
		began := time.Now()
		for range sessions {
			conn, r := pipe(t, s)
			for range lists {
				fmt.Fprint(conn, `{"list":{"id":1}}`+"\n"+`{"listed":{"id":1}}`+"\n")
				if _, err := r.ReadString('\n'); err != nil {
					t.Fatal(err)
				}
			}
			conn.Close()
			synctest.Wait()
		}
		took := time.Since(began)
		if want := (sessions*lists - 1) * listInterval; took < want {
			t.Errorf("%d lists took %v; want at least %v", sessions*lists, took, want)
		}
		time.Sleep(changeInterval)
		synctest.Wait()
		if most := 1 + int32((took+changeInterval)/changeInterval); changes.Load() > most {
			t.Errorf("%d calls of Changed in %v; want at most %d", changes.Load(), took, most)
		}
	})
}

// A session takes buffers: a peer can't begin one after the other.
func TestSessionsAreThrottled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Server{Facts: NewFacts(), Changed: func() {}, Log: slog.New(slog.DiscardHandler)}
		began := time.Now()
		const sessions = 1000
		for range sessions {
			conn, _ := pipe(t, s)
			conn.Close()
			synctest.Wait()
		}
		if took, want := time.Since(began), (sessions*sessionSize-decodeBurst)/decodeRate*time.Second; took < want {
			t.Errorf("%d sessions took %v; want at least %v", sessions, took, want)
		}
	})
}

// pipe begins a session of a server in a synctest bubble, and returns the peer's side of it.
func pipe(t *testing.T, s *Server) (net.Conn, *bufio.Reader) {
	t.Helper()
	evictdEnd, kubeEnd := net.Pipe()
	go s.serveConn(t.Context(), evictdEnd)
	fmt.Fprint(kubeEnd, hello)
	r := bufio.NewReader(kubeEnd)
	if _, err := r.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	return kubeEnd, r
}

// failingListener accepts nothing until it is closed.
type failingListener struct {
	net.Listener
	closed atomic.Bool
}

func (l *failingListener) Accept() (net.Conn, error) {
	if l.closed.Load() {
		return nil, net.ErrClosed
	}
	return nil, unix.EMFILE
}

func (l *failingListener) Close() error {
	l.closed.Store(true)
	return nil
}

// evictd tries again to accept connections, and does not log each failure.
func TestFailuresToAcceptAreNotAllLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log buffer
		s := &Server{Facts: NewFacts(), Log: slog.New(slog.NewTextHandler(&log, nil))}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.Serve(ctx, &failingListener{}) }()
		time.Sleep(10 * logInterval)
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve() = %v", err)
		}
		if n := strings.Count(log.String(), "\n"); n == 0 || n > 11 {
			t.Errorf("%d log lines in %v:\n%s\nwant at least 1 and at most 11", n, 10*logInterval, log.String())
		}
	})
}

// A list that evictd reads slowly is written in full.
func TestWriteSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		evictdEnd, kubeEnd := net.Pipe()
		const n = 640
		done := make(chan bool)
		go func() {
			defer close(done)
			lines := newLineReader(evictdEnd, maxPodSize)
			for {
				if _, err := lines.next(); err != nil {
					return
				}
				time.Sleep(writeTimeout / 20)
			}
		}()
		if err := write(kubeEnd, slices.Repeat([][]byte{[]byte("line\n")}, n)); err != nil {
			t.Errorf("write() = %v; want all %d lines written", err, n)
		}
		kubeEnd.Close()
		<-done
	})
}
