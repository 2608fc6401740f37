package disks

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestSingleCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var e singleCalls[int]
		if got, err := e.get("a").call(time.Second, func() (int, error) { return 7, nil }); got != 7 || err != nil {
			t.Errorf("call = %d, %v; want 7", got, err)
		}
		boom := errors.New("boom")
		if _, err := e.get("a").call(time.Second, func() (int, error) { return 0, boom }); err != boom {
			t.Errorf("call = %v; want boom", err)
		}

		release := make(chan struct{})
		var calls atomic.Int32
		hang := func() (int, error) { calls.Add(1); <-release; return 8, nil }
		start := time.Now()
		for i := range 10 {
			_, err := e.get("a").call(time.Second, hang)
			var hung *HungError
			if !errors.As(err, &hung) || hung.Since != start {
				t.Fatalf("call %d of a function that hangs = %v; want a HungError since the first call", i, err)
			}
			if want := "a has not returned for " + time.Since(start).String(); err.Error() != want {
				t.Errorf("call %d: %q; want %q", i, err, want)
			}
			time.Sleep(3 * time.Second)
		}
		// A call of another name is not delayed.
		if got, err := e.get("b").call(time.Second, func() (int, error) { return 9, nil }); got != 9 || err != nil {
			t.Errorf("call of another name = %d, %v; want 9", got, err)
		}
		if n := calls.Load(); n != 1 {
			t.Errorf("%d functions started by ten calls; want 1", n)
		}
		if len(e.calls) != 2 {
			t.Errorf("%d names; want the one in flight and the last", len(e.calls))
		}
		close(release)
		synctest.Wait()
		if got, err := e.get("a").call(time.Second, func() (int, error) { return 10, nil }); got != 10 || err != nil {
			t.Errorf("call after the first has returned = %d, %v; want 10", got, err)
		}
		if e.get("c"); len(e.calls) != 1 {
			t.Errorf("%d names after all have returned; want 1", len(e.calls))
		}
	})
	if s := (&HungError{Call: "statfs of /x", Hung: 1234567 * time.Microsecond}).Error(); !strings.HasSuffix(s, "for 1.23s") {
		t.Errorf("HungError = %q", s)
	}
}
