package controller

import (
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"
)

// A read that is due, and is not repeated because one before it fails, is not waited for without a pause.
func TestUnreadableNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &unreadable{log: slog.New(slog.DiscardHandler)}
		if next := u.next(); !next.IsZero() {
			t.Errorf("next without failures = %v; want none", next)
		}
		fail := func() error { return errors.New("down") }
		u.read("Pods", fail)
		time.Sleep(time.Minute)
		u.read("Nodes", fail)
		if wait := time.Until(u.next()); wait < firstReadBackoff {
			t.Errorf("next is in %v; want at least %v", wait, firstReadBackoff)
		}
	})
}
