package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/evictd/evictd/agent/evict"
)

// link is a session of a feed and a server in a synctest bubble.
type link struct {
	t      *testing.T
	cancel context.CancelFunc
	ended  chan bool
}

func connect(t *testing.T, s *Server, f *Feed) *link {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	evictdEnd, kubeEnd := net.Pipe()
	l := &link{t, cancel, make(chan bool, 2)}
	go func() { s.serveConn(ctx, evictdEnd); l.ended <- true }()
	go func() { f.serve(ctx, kubeEnd); l.ended <- true }()
	return l
}

// check fails if the session has ended by itself.
func (l *link) check() {
	l.t.Helper()
	select {
	case <-l.ended:
		l.t.Fatal("the session has ended")
	default:
	}
}

func (l *link) stop() {
	l.t.Helper()
	l.check()
	l.cancel()
	<-l.ended
	<-l.ended
}

func quietServer() *Server {
	return &Server{Facts: NewFacts(), Changed: func() {}, Log: slog.New(slog.DiscardHandler)}
}

func quietFeed() *Feed { return NewFeed("n1", "test", slog.New(slog.DiscardHandler)) }

// waitingPod returns pod i, which does not run.
func waitingPod(i int) *Pod {
	p := web()
	p.UID, p.Name = fmt.Sprintf("p%d", i), fmt.Sprintf("p-%d", i)
	return p
}

// large returns pod i, which runs, with a line of about 6 KB.
func large(i int, revision string) *Pod {
	p := fat(i)
	p.Started = true
	p.Labels["label-3"] = revision
	return p
}

// A pod that runs has facts within a second, whatever tenants write.
func TestFactsInTime(t *testing.T) {
	const most = time.Second
	list := func(n int, pod func(int) *Pod) (list []*Pod) {
		for i := range n {
			list = append(list, pod(i))
		}
		return list
	}
	revision := func(i int) *Pod { return large(i, "0") }
	created := func(rate int) func(f *Feed) {
		return func(f *Feed) {
			const rejects = 50 // a second
			for i, rejected := 0, 0; i < 30*rate; i++ {
				f.Put(waitingPod(i))
				for ; rejected < i*rejects/rate; rejected++ {
					f.Remove(waitingPod(rejected).UID)
				}
				time.Sleep(time.Second / time.Duration(rate))
			}
		}
	}
	for name, tt := range map[string]struct {
		first    []*Pod
		restarts int
		before   func(f *Feed)
	}{
		"80 pods a second":  {before: created(80)},
		"200 pods a second": {before: created(200)},
		"5000 pending pods": {first: list(5000, waitingPod), restarts: 1},
		"6 restarts":        {first: list(MaxPods, revision), restarts: 6},
		"labels": {first: list(100, revision), before: func(f *Feed) {
			for i := range 600 {
				f.Put(large(i%100, fmt.Sprint(i)))
				time.Sleep(time.Second / 10)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, f := quietServer(), quietFeed()
				f.Replace(tt.first)
				l := connect(t, s, f)
				for range tt.restarts {
					time.Sleep(3 * time.Second)
					l.stop()
					f = quietFeed()
					f.Replace(tt.first)
					l = connect(t, s, f)
				}
				if tt.before != nil {
					tt.before(f)
				}
				for i := range 3 { // the last ones have used the reserve
					hog, run := waitingPod(100_000+i), &evict.Pod{Kubelet: true}
					run.UID, run.Namespace, run.Name = hog.UID, hog.Namespace, hog.Name
					began := time.Now()
					if i == 1 { // the runtime has it before the API server has reported it
						s.Facts.Specification(run)
						time.Sleep(time.Second / 5)
						began = time.Now()
					}
					f.Put(hog)
					for s.Facts.Specification(run) == nil && time.Since(began) < time.Minute {
						time.Sleep(time.Second / 50)
					}
					t.Logf("facts after %v", time.Since(began))
					if got := time.Since(began); got > most {
						t.Errorf("pod %d: facts after %v; want at most %v", i, got, most)
					}
				}
				if n := len(f.queue.pods) + len(f.queue.gone); n > 2*maxQueued {
					t.Errorf("%d pods in the queue; want at most %d", n, 2*maxQueued)
				}
				l.stop()
			})
		})
	}
}

// evictd never waits before it reads: else a line that it needs would wait in the socket. The
// bucket of evictd-kube is below that of evictd.
func TestFeedKeepsThePace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f := quietServer(), quietFeed()
		f.Replace(nil)
		l := connect(t, s, f)
		for i := range 1000 {
			f.Put(large(i, "0"))
			f.Put(waitingPod(i))
			f.Remove(waitingPod(i - 100).UID)
			if i%200 == 0 {
				f.ask(func(q *queue) { q.sendList = true })
			}
			time.Sleep(time.Second / 100)
			synctest.Wait()
			if s.lines.spent > lineBurst || s.decoded.spent > decodeBurst {
				t.Fatalf("after %d pods: evictd has read %v lines and %v bytes; want less than it reads at once", i, s.lines.spent, s.decoded.spent)
			}
		}
		if s.decoded.spent < decodeBurst/2 {
			t.Errorf("evictd has read %v bytes; want more, else this tests nothing", s.decoded.spent)
		}
		l.stop()
	})
}

// The age of the facts is right while a long list is sent, and after it.
func TestAgeDuringAList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f := quietServer(), quietFeed()
		s.decoded.take(decodeBurst, decodeBurst, decodeRate, time.Now()) // by an earlier list
		var first []*Pod
		for i := range 300 {
			p := large(i, "0")
			p.Started = i%2 == 0
			first = append(first, p)
		}
		confirmed := time.Now()
		f.Replace(first)
		f.Confirm(confirmed)
		l := connect(t, s, f)
		for s.Facts.Status(time.Now()).AsOf.IsZero() {
			time.Sleep(10 * time.Millisecond)
			synctest.Wait()
			if seen := s.Facts.seen; !seen.IsZero() && time.Since(seen) > StateInterval+time.Second {
				t.Fatalf("no state for %v during a list; want one every %v", time.Since(seen), StateInterval)
			}
		}
		if took := time.Since(confirmed); took < 10*time.Second {
			t.Fatalf("the list took %v; want longer, else this tests nothing", took)
		}
		for range 10 {
			if got, want := s.Facts.Status(time.Now()).AsOf, confirmed; got.Sub(want).Abs() > time.Second {
				t.Fatalf("facts as of %v; want %v", got, want)
			}
			time.Sleep(StateInterval)
		}
		l.stop()
	})
}

// An evictd that accepts connections and does not answer is logged once.
func TestHungEvictd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log buffer
		f := NewFeed("n1", "test", slog.New(slog.NewTextHandler(&log, nil)))
		ctx, cancel := context.WithCancel(t.Context())
		done, sessions := make(chan bool), 0
		go func() {
			f.run(ctx, "socket", func() (bool, error) {
				sessions++
				evictdEnd, kubeEnd := net.Pipe()
				go func() { _, _ = io.Copy(io.Discard, evictdEnd) }()
				return f.serve(ctx, kubeEnd)
			})
			close(done)
		}()
		time.Sleep(10 * time.Minute)
		cancel()
		<-done
		if n := strings.Count(log.String(), "\n"); n != 1 || sessions < 10 {
			t.Errorf("%d sessions, log:\n%s\nwant one line", sessions, log.String())
		}
	})
}

// Two evictd-kube that end each other's sessions do so slower and slower. After a session that lasted,
// evictd-kube is back at once.
func TestShortSessionsAreDelayed(t *testing.T) {
	type session struct {
		lasts       time.Duration
		err         error
		least, most time.Duration // until the next one
	}
	lasting := session{lastingSession, io.EOF, 0, firstBackoff}
	replaced := session{longestBackoff, io.EOF, longestBackoff / 2, longestBackoff}
	sessions := []session{lasting}
	for backoff := 2 * firstBackoff; backoff < longestBackoff; backoff *= 2 {
		sessions = append(sessions, session{0, io.EOF, backoff / 2, backoff})
	}
	sessions = append(sessions, replaced, replaced, replaced, lasting)
	sessions = append(sessions, session{0, &VersionError{}, versionBackoff / 2, versionBackoff}, replaced, lasting)
	synctest.Test(t, func(t *testing.T) {
		var log buffer
		f := NewFeed("n1", "test", slog.New(slog.NewTextHandler(&log, nil)))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		n := 0
		var ended time.Time
		f.run(ctx, "socket", func() (bool, error) {
			if n > 0 {
				last := sessions[n-1]
				if wait := time.Since(ended); wait < last.least || wait > last.most {
					t.Errorf("session %d of %v, ended by %q: the next one after %v; want %v to %v", n, last.lasts, last.err, wait, last.least, last.most)
				}
			}
			if n == len(sessions) {
				cancel()
				return false, ctx.Err()
			}
			s := sessions[n]
			n++
			time.Sleep(s.lasts)
			ended = time.Now()
			var version *VersionError
			return !errors.As(s.err, &version), s.err
		})
		if logged := strings.Count(log.String(), "no session with evictd"); logged != len(sessions) {
			t.Errorf("the ends of %d of %d sessions are logged:\n%s", logged, len(sessions), log.String())
		}
	})
}
