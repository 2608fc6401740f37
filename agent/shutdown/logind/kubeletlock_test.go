package logind

import (
	"strings"
	"testing"
	"time"
)

// Every local user can make logind's list of inhibitors long, slow or unreadable.
// Then only the presence of a kubelet's lock is unknown; the lock and the events
// work.
func TestListFails(t *testing.T) {
	long := make([]Inhibitor, 3000)
	for n := range long {
		long[n] = Inhibitor{What: "shutdown", Who: KubeletWho, Why: strings.Repeat("x", 100), Mode: "delay", UID: 1000, PID: 1}
	}
	for _, tt := range []struct {
		name    string
		hang    bool
		answer  []any
		message string
	}{
		{"hangs", true, nil, ErrTimeout.Error()},
		{"wrong type", false, []any{"none"}, "list inhibitors"},
		{"too long", false, []any{long}, "bytes is longer than"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			const method = "ListInhibitors"
			b := start(t, 30*time.Second, func(b *fixture) {
				b.pollInterval = 50 * time.Millisecond
				b.bus.Hang(method, tt.hang)
				if tt.answer != nil {
					b.bus.SetReply(method, tt.answer)
				}
			})
			b.waitFor("a lock, and the raised limit", func() bool { return b.locked() && b.delayLock.Status().Limit == 30*time.Second })
			b.waitFor("the error in the status", func() bool { return strings.Contains(b.delayLock.Status().Error, tt.message) })
			if s := b.delayLock.Status(); !s.Connected || !s.Inhibited || s.Kubelet || s.KubeletKnown {
				t.Errorf("status = %+v; want connected, locked and KubeletKnown = false", s)
			}
			b.bus.SetPreparing(true)
			b.expectDelay(b.event(true), 30*time.Second)
			b.bus.SetPreparing(false)
			b.event(false)
			if n := b.bus.Calls("Inhibit"); n != 1 {
				t.Errorf("Inhibit was called %d times; want 1", n)
			}

			b.bus.Hang(method, false)
			b.bus.SetReply(method, nil)
			b.bus.Inhibit(KubeletWho)
			b.waitFor("the kubelet's lock in the status", func() bool { s := b.delayLock.Status(); return s.Kubelet && s.KubeletKnown && s.Error == "" })
			b.bus.Hang(method, tt.hang)
			b.bus.SetReply(method, tt.answer)
			b.waitFor("the error in the status", func() bool { return strings.Contains(b.delayLock.Status().Error, tt.message) })
			if !b.delayLock.Status().Kubelet {
				t.Error("Kubelet = false after a failed list; want the previous value")
			}
		})
	}
}

// If it could never be determined whether a kubelet has a lock, the limit stays
// raised: a kubelet may rely on it.
func TestLimitStaysWithoutList(t *testing.T) {
	b := start(t, 30*time.Second, func(b *fixture) { b.bus.SetReply("ListInhibitors", []any{"none"}) })
	b.waitFor("the raised limit", func() bool { return b.delayLock.Status().Limit == 30*time.Second })
	b.waitFor("the error in the status", func() bool { return strings.Contains(b.delayLock.Status().Error, "list inhibitors") })
	b.stop()
	if got := b.dropIn(); got != "30" {
		t.Errorf("drop-in after Run = %q; want 30", got)
	}
}

// After a failed list, a restart of logind does not cause another one: the list may
// have ended logind.
func TestListAfterRestarts(t *testing.T) {
	b := start(t, 5*time.Second, func(b *fixture) { b.bus.SetReply("ListInhibitors", []any{"none"}) })
	b.waitFor("the error in the status", func() bool { return strings.Contains(b.delayLock.Status().Error, "list inhibitors") })
	for range 3 {
		b.bus.RestartLogind()
		b.waitFor("another lock", b.locked)
	}
	if n := b.bus.Calls("ListInhibitors"); n != 1 {
		t.Errorf("ListInhibitors was called %d times; want 1", n)
	}
}
