package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

var errFull, errRejected = errors.New("no space left on device"), errors.New("moved aside")

// fakeStore counts how often facts are saved, and keeps nothing.
type fakeStore struct {
	content []byte // of an earlier run
	saves   atomic.Int32
	tries   atomic.Int32
	full    atomic.Bool
}

func (s *fakeStore) SaveFacts(write func(io.Writer) error) error {
	s.tries.Add(1)
	if s.full.Load() {
		return errFull
	}
	s.saves.Add(1)
	return write(io.Discard)
}

func (s *fakeStore) LoadFacts() ([]byte, error) { return s.content, nil }

func (s *fakeStore) RejectFacts(cause error) error { return errors.Join(errRejected, cause) }

func TestLoad(t *testing.T) {
	for _, tt := range []struct {
		name, content string
		pods          int
		rejected      string
	}{
		{name: "none"},
		{name: "one pod", content: `{"format":1,"pods":[{"uid":"u1","namespace":"a","name":"b","priority":1,"containers":[{"name":"c"}]}]}`, pods: 1},
		{name: "another format", content: `{"format":0}`, rejected: "saved facts have format 0, not 1"},
	} {
		f, store := NewFacts(), &fakeStore{}
		if tt.content != "" {
			store.content = []byte(tt.content)
		}
		err := f.Load(store)
		if got := fmt.Sprint(err); errors.Is(err, errRejected) != (tt.rejected != "") || !strings.Contains(got, tt.rejected) {
			t.Errorf("%s: Load() = %v; want %q, and a rejection only of it", tt.name, err, tt.rejected)
		}
		if got := f.Status(testTime).Pods; got != tt.pods {
			t.Errorf("%s: %d pods with facts; want %d", tt.name, got, tt.pods)
		}
	}
}

// Facts are saved after a change, for their age, again after a failure, and at the end. While
// a threshold is met they are saved for their age only, no more often if that fails.
// Repeated failures are logged once.
func TestSaveChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, store := NewFacts(), &fakeStore{}
		var busy atomic.Bool
		f.Busy = busy.Load
		var log buffer
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			f.SaveChanges(ctx, store, slog.New(slog.NewTextHandler(&log, nil)))
		}()
		after := func(d time.Duration, want int32, what string) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			if got := store.saves.Load(); got != want {
				t.Errorf("%s: saved %d times; want %d", what, got, want)
			}
		}
		after(saveInterval, 0, "no facts")
		f.put(web(), testTime)
		after(saveInterval, 1, "after a change")
		after(saveInterval, 1, "without a change")
		after(ageSaveInterval, 2, "for the age")
		store.full.Store(true)
		other := web()
		other.UID = "u2"
		f.put(other, testTime)
		after(2*saveInterval, 2, "while the disk is full")
		if n := strings.Count(log.String(), errFull.Error()); n != 1 {
			t.Errorf("%d log lines about failures: %s; want 1", n, log.String())
		}
		store.full.Store(false)
		after(saveInterval, 3, "after the failures")
		busy.Store(true)
		f.gone("u2", testTime)
		after(3*saveInterval, 3, "while a threshold is met")
		after(ageSaveInterval, 4, "for the age while a threshold is met")
		store.full.Store(true)
		before := store.tries.Load()
		after(2*ageSaveInterval+saveInterval, 4, "while a threshold is met and the disk is full")
		if got := store.tries.Load() - before; got != 2 {
			t.Errorf("while a threshold is met and the disk is full: tried %d times; want 2", got)
		}
		store.full.Store(false)
		f.gone("u1", testTime)
		cancel()
		<-done
		after(0, 5, "at the end")
	})
}
