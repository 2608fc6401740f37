package disks

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestErrand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var e errands[int]
		if got, err := e.to("a").ask(time.Second, func() (int, error) { return 7, nil }); got != 7 || err != nil {
			t.Errorf("ask = %d, %v; want 7", got, err)
		}
		boom := errors.New("boom")
		if _, err := e.to("a").ask(time.Second, func() (int, error) { return 0, boom }); err != boom {
			t.Errorf("ask = %v; want boom", err)
		}

		release := make(chan struct{})
		var calls atomic.Int32
		hang := func() (int, error) { calls.Add(1); <-release; return 8, nil }
		start := time.Now()
		for i := range 10 {
			_, err := e.to("a").ask(time.Second, hang)
			var hung *HungError
			if !errors.As(err, &hung) || hung.Since != start {
				t.Fatalf("ask %d of what hangs = %v; want a HungError since the first", i, err)
			}
			if want := "a has not returned for " + time.Since(start).String(); err.Error() != want {
				t.Errorf("ask %d: %q; want %q", i, err, want)
			}
			time.Sleep(3 * time.Second)
		}
		// Another question is not held up.
		if got, err := e.to("b").ask(time.Second, func() (int, error) { return 9, nil }); got != 9 || err != nil {
			t.Errorf("ask of another = %d, %v; want 9", got, err)
		}
		if n := calls.Load(); n != 1 {
			t.Errorf("%d calls after ten questions; want one", n)
		}
		if len(e.open) != 2 {
			t.Errorf("%d errands are kept; want the open one and the last", len(e.open))
		}
		close(release)
		synctest.Wait()
		if got, err := e.to("a").ask(time.Second, func() (int, error) { return 10, nil }); got != 10 || err != nil {
			t.Errorf("ask after the answer = %d, %v; want 10", got, err)
		}
		if e.to("c"); len(e.open) != 1 {
			t.Errorf("%d errands are kept after all were answered; want 1", len(e.open))
		}
	})
	if s := (&HungError{What: "statfs of /x", Hung: 1234567 * time.Microsecond}).Error(); !strings.HasSuffix(s, "for 1.23s") {
		t.Errorf("HungError = %q", s)
	}
}
