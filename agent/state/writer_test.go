package state

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A failure to write the state is logged once for each cause. The state is written again
// without a request.
func TestWriterRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		w := NewWriter()
		var fault atomic.Pointer[error]
		full := errors.New("no space left on device")
		fault.Store(&full)
		var saves atomic.Int32
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			w.Run(ctx, func() error { saves.Add(1); return *fault.Load() }, func() error { return nil }, slog.New(slog.NewTextHandler(&out, nil)))
		}()
		w.Request()
		time.Sleep(3*saveRetryInterval + time.Second)
		synctest.Wait()
		if n := saves.Load(); n != 4 {
			t.Errorf("%d attempts in 3 minutes; want 4", n)
		}
		fault.Store(new(error))
		time.Sleep(2 * saveRetryInterval)
		synctest.Wait()
		if n := saves.Load(); n != 5 {
			t.Errorf("%d attempts; want none after the one that succeeded", n)
		}
		cancel()
		<-done
		if text := out.String(); strings.Count(text, NotSavedMessage) != 1 || strings.Count(text, "state is saved again") != 1 {
			t.Errorf("log:\n%swant one line for the failure and one for its end", text)
		}
	})
}

// The copy is written while the disk is waited for, and its failure is logged once.
func TestWriterCopies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		w := NewWriter()
		disk := make(chan struct{})
		var copies atomic.Int32
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			w.Run(ctx, func() error { <-disk; return nil }, func() error { copies.Add(1); return errors.New("no space left on device") }, slog.New(slog.NewTextHandler(&out, nil)))
		}()
		for range 3 {
			w.Request()
			synctest.Wait()
		}
		if n := copies.Load(); n != 3 {
			t.Errorf("%d copies after 3 requests; want 3", n)
		}
		close(disk)
		cancel()
		<-done
		if text := out.String(); strings.Count(text, "copy of the state is not saved") != 1 {
			t.Errorf("log:\n%swant one line for the failures", text)
		}
	})
}
