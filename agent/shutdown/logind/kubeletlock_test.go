package logind

import (
	"strings"
	"testing"
	"time"
)

// Every local user can make logind's list of inhibitors long, slow or unreadable.
// That costs the answer to whether a kubelet has one, and nothing else.
func TestListThatFails(t *testing.T) {
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
		{"hangs", true, nil, ErrHangs.Error()},
		{"of another form", false, []any{"none"}, "list inhibitors"},
		{"too long", false, []any{long}, "bytes is longer than"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			const method = "ListInhibitors"
			b := start(t, 30*time.Second, func(b *bed) {
				b.again = 50 * time.Millisecond
				b.bus.Hang(method, tt.hang)
				if tt.answer != nil {
					b.bus.Answer(method, tt.answer)
				}
			})
			b.until("a lock is held and the limit is raised", func() bool { return b.locked() && b.guard.Status().Limit == 30*time.Second })
			b.until("it is noticed", func() bool { return strings.Contains(b.guard.Status().Error, tt.message) })
			if s := b.guard.Status(); !s.Connected || !s.Locked || s.Kubelet || s.KubeletKnown {
				t.Errorf("status = %+v; want connected, locked and nothing known of a kubelet", s)
			}
			b.bus.Prepare(true)
			b.allows(b.event(true), 30*time.Second)
			b.bus.Prepare(false)
			b.event(false)
			if n := b.bus.Calls("Inhibit"); n != 1 {
				t.Errorf("the lock was taken %d times; want 1", n)
			}

			b.bus.Hang(method, false)
			b.bus.Answer(method, nil)
			b.bus.Take(KubeletWho)
			b.until("the kubelet's lock is seen", func() bool { s := b.guard.Status(); return s.Kubelet && s.KubeletKnown && s.Error == "" })
			b.bus.Hang(method, tt.hang)
			b.bus.Answer(method, tt.answer)
			b.until("it is noticed", func() bool { return strings.Contains(b.guard.Status().Error, tt.message) })
			if !b.guard.Status().Kubelet {
				t.Error("the kubelet's lock is forgotten where the list can't be read")
			}
		})
	}
}

// Where it could never be found out whether a kubelet has a lock, the limit stays raised:
// a kubelet may count on it.
func TestLimitStaysWithoutList(t *testing.T) {
	b := start(t, 30*time.Second, func(b *bed) { b.bus.Answer("ListInhibitors", []any{"none"}) })
	b.until("the limit is raised", func() bool { return b.guard.Status().Limit == 30*time.Second })
	b.until("it is noticed", func() bool { return strings.Contains(b.guard.Status().Error, "list inhibitors") })
	b.stop()
	if got := b.dropIn(); got != "30" {
		t.Errorf("the drop-in after the end has %q; want 30", got)
	}
}

// Where the list can't be read, it is not asked for again because logind came back:
// the list may be what ended logind.
func TestListAfterRestarts(t *testing.T) {
	b := start(t, 5*time.Second, func(b *bed) { b.bus.Answer("ListInhibitors", []any{"none"}) })
	b.until("it is noticed", func() bool { return strings.Contains(b.guard.Status().Error, "list inhibitors") })
	for range 3 {
		b.bus.RestartLogind()
		b.until("another lock is held", b.locked)
	}
	if n := b.bus.Calls("ListInhibitors"); n != 1 {
		t.Errorf("the list was asked for %d times; want 1", n)
	}
}
