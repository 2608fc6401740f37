package kube

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// idleListener accepts no connection until it is closed.
type idleListener struct {
	net.Listener
	closed chan struct{}
	once   sync.Once
}

func (l *idleListener) Accept() (net.Conn, error) {
	<-l.closed
	return nil, net.ErrClosed
}

func (l *idleListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Without the right to create the socket the facts stay, the status has the reason, which is
// logged once, and a later attempt succeeds.
func TestListenAndServe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		facts := NewFacts()
		saved := `{"format":1,"pods":[{"uid":"u1","namespace":"a","name":"b","priority":1,"containers":[{"name":"c"}]}]}`
		if err := facts.Restore([]byte(saved), time.Now()); err != nil {
			t.Fatal(err)
		}
		const failures = 3
		var attempts atomic.Int32
		l := &idleListener{closed: make(chan struct{})}
		listen := func() (net.Listener, error) {
			if attempts.Add(1) <= failures {
				return nil, fmt.Errorf("lchown: %w", syscall.EPERM)
			}
			return l, nil
		}
		var log buffer
		s := &Server{Facts: facts, Log: slog.New(slog.NewTextHandler(&log, nil))}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			s.ListenAndServe(ctx, listen)
		}()
		for i := 1; i <= failures; i++ {
			synctest.Wait()
			if got := facts.Status(time.Now()); attempts.Load() != int32(i) || got.Pods != 1 || !strings.Contains(got.Error, syscall.EPERM.Error()) {
				t.Errorf("after %d attempts: %+v; want %d attempts, one pod and the error", attempts.Load(), got, i)
			}
			time.Sleep(listenRetry)
		}
		synctest.Wait()
		if got := facts.Status(time.Now()); attempts.Load() != failures+1 || got.Error != "" {
			t.Errorf("after %d attempts: error %q; want none after %d", attempts.Load(), got.Error, failures+1)
		}
		if n := strings.Count(log.String(), syscall.EPERM.Error()); n != 1 {
			t.Errorf("%d log lines: %s; want 1", n, log.String())
		}
		cancel()
		<-done
	})
}
