package logind

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/agent/shutdown/logind/logindtest"
)

// fixture is a DelayLock on a fake bus.
type fixture struct {
	*testing.T
	bus          *logindtest.Bus
	root         string
	delayLock    *DelayLock
	stop         func()
	pollInterval time.Duration // pollInterval and listBackoff of the DelayLock
}

// start runs a DelayLock with a wanted delay.
func start(t *testing.T, needs time.Duration, prepare ...func(*fixture)) *fixture {
	t.Helper()
	b := &fixture{T: t, root: t.TempDir()}
	b.bus = logindtest.New(t, b.root)
	for _, f := range prepare {
		f(b)
	}
	b.delayLock = NewDelayLock(Options{
		Address: b.bus.Address(), Root: b.root, Log: slog.New(slog.DiscardHandler),
		IsKubelet: func(pid int) bool { return pid == 1 }, // the process of Bus.Inhibit
	})
	b.delayLock.backoff, b.delayLock.timeout, b.delayLock.reloadTimeout = 10*time.Millisecond, 300*time.Millisecond, 40*time.Millisecond
	if b.pollInterval > 0 {
		b.delayLock.pollInterval, b.delayLock.listBackoff = b.pollInterval, b.pollInterval
	}
	b.delayLock.SetDelay(needs)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- b.delayLock.Run(ctx) }()
	stopped := false
	b.stop = func() {
		if cancel(); !stopped {
			stopped = true
			if err := <-done; err != nil {
				t.Errorf("Run() = %v; want nil", err)
			}
		}
	}
	t.Cleanup(b.stop)
	return b
}

// waitFor waits for a condition.
func (b *fixture) waitFor(what string, condition func() bool) {
	b.Helper()
	for end := time.Now().Add(10 * time.Second); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			b.Fatalf("after 10s: no %s; status %+v, locks %+v", what, b.delayLock.Status(), b.bus.Locks())
		}
	}
}

// locks returns the number of evictd's locks.
func (b *fixture) locks() int {
	n := 0
	for _, l := range b.bus.Locks() {
		if l.Who == Who && l.What == "shutdown" && l.Mode == "delay" {
			n++
		}
	}
	return n
}

func (b *fixture) locked() bool { return b.locks() == 1 && b.delayLock.Status().Inhibited }

// expectDelay checks how long, from now on, a shutdown can be delayed.
func (b *fixture) expectDelay(e Event, want time.Duration) {
	b.Helper()
	if got := time.Until(e.Until); !e.Inhibited || got > want || got < want-time.Second {
		b.Errorf("locked = %t, allowed = %v; want a lock and %v, less at most a second", e.Inhibited, got, want)
	}
}

// event waits for the next event with that value of Preparing.
func (b *fixture) event(preparing bool) Event {
	b.Helper()
	deadline := time.After(10 * time.Second)
	for {
		select {
		case e := <-b.delayLock.Events():
			if e.Preparing == preparing {
				return e
			}
		case <-deadline:
			b.Fatalf("no event with Preparing = %t within 10s; status %+v", preparing, b.delayLock.Status())
		}
	}
}

func (b *fixture) write(name, text string) {
	b.Helper()
	path := filepath.Join(b.root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		b.Fatal(err)
	}
}

// dropIn returns the limit in the drop-in; empty for none.
func (b *fixture) dropIn() string {
	content, err := os.ReadFile(filepath.Join(b.root, DropInDir, DropInName))
	if err != nil {
		return ""
	}
	_, value, _ := strings.Cut(string(content), "InhibitDelayMaxSec=")
	return strings.TrimSpace(value)
}

func TestLockAndShutdown(t *testing.T) {
	b := start(t, 5*time.Second)
	b.waitFor("a lock", b.locked)
	if e := b.event(false); !e.Inhibited {
		t.Errorf("event = %+v; want Inhibited", e)
	}
	if b.dropIn() != "" {
		t.Errorf("drop-in of %s s; want none, because logind's limit suffices", b.dropIn())
	}

	b.bus.SetPreparing(true)
	b.expectDelay(b.event(true), 5*time.Second)
	if !b.locked() {
		t.Error("the lock was released when the shutdown began")
	}
	b.delayLock.Release()
	b.waitFor("the release of the lock", func() bool { return b.locks() == 0 })

	b.bus.SetPreparing(false)
	b.event(false)
	b.waitFor("another lock", b.locked)

	b.delayLock.SetDelay(0)
	b.waitFor("the release of the lock", func() bool { return b.locks() == 0 && !b.delayLock.Status().Inhibited })
	b.delayLock.SetDelay(3 * time.Second)
	b.waitFor("a lock", b.locked)
	b.stop()
	if n := b.locks(); n != 0 {
		t.Errorf("%d locks after Run; want none", n)
	}
}

// fakeFDStore is an FDStore and its stored descriptor.
type fakeFDStore struct {
	testing.TB
	fd int
}

func (s *fakeFDStore) Store(fd int) error {
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	s.fd = own
	return nil
}

func (s *fakeFDStore) Remove() error {
	if s.fd >= 0 {
		unix.Close(s.fd)
		s.fd = -1
	}
	return nil
}

// A lock survives the run that took it, also during a shutdown, and the next run
// releases it.
func TestStoredLock(t *testing.T) {
	root := t.TempDir()
	bus := logindtest.New(t, root)
	store := &fakeFDStore{TB: t, fd: -1}
	run := func(fd *int, needs ...time.Duration) (*fixture, context.CancelFunc) {
		b := &fixture{T: t, bus: bus, root: root}
		b.delayLock = NewDelayLock(Options{Address: bus.Address(), Root: root, Log: slog.New(slog.DiscardHandler), FDStore: store, StoredLock: fd})
		b.delayLock.backoff = 10 * time.Millisecond
		for _, n := range needs {
			b.delayLock.SetDelay(n)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); b.delayLock.Run(ctx) }()
		return b, func() { cancel(); <-done }
	}
	first, end := run(nil, 5*time.Second)
	first.waitFor("a lock", first.locked)
	bus.SetPreparing(true)
	first.event(true)
	// The descriptor that remains after a crash.
	crashed, err := unix.FcntlInt(uintptr(store.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	end()
	second, end := run(&crashed)
	defer end()
	second.expectDelay(second.event(true), 5*time.Second-restartGap)
	if n := second.locks(); n != 1 {
		t.Errorf("%d locks in the second run; want the one of the first", n)
	}
	// SetDelay was not called yet.
	second.delayLock.notify()
	second.event(true)
	if n := second.locks(); n != 1 {
		t.Errorf("%d locks before SetDelay; want the existing one", n)
	}
	second.delayLock.Release()
	second.waitFor("the release of the lock", func() bool { return second.locks() == 0 })
	second.delayLock.SetDelay(5 * time.Second)
	bus.SetPreparing(false)
	second.event(false)
	second.waitFor("another lock", second.locked)
	if store.fd < 0 {
		t.Error("the new lock is not stored")
	}
}

func TestLimit(t *testing.T) {
	b := start(t, 372*time.Second)
	b.waitFor("a lock", b.locked)
	if got := b.dropIn(); got != "372" {
		t.Errorf("drop-in = %q; want 372", got)
	}
	if s := b.delayLock.Status(); s.Limit != 372*time.Second || s.Error != "" {
		t.Errorf("status = %+v; want a limit of 372s and no error", s)
	}
	b.delayLock.SetDelay(31 * time.Second)
	b.waitFor("the lower delay in the status", func() bool { return b.delayLock.Status().Needs == 31*time.Second })
	if got, s := b.dropIn(), b.delayLock.Status(); got != "372" || s.Limit != 372*time.Second {
		t.Errorf("drop-in = %q, limit %v with a lower delay; want both unchanged", got, s.Limit)
	}
	b.delayLock.SetDelay(400*time.Second + 1)
	b.waitFor("the raised limit", func() bool { return b.dropIn() == "401" && b.delayLock.Status().Limit == 401*time.Second })
	b.delayLock.SetDelay(0)
	b.waitFor("the removal of the drop-in", func() bool { return b.dropIn() == "" && b.delayLock.Status().Limit == 5*time.Second })
	b.delayLock.SetDelay(10 * time.Second)
	b.waitFor("the new drop-in", func() bool { return b.dropIn() == "10" && b.delayLock.Status().Limit == 10*time.Second })
	b.stop()
	if got := b.dropIn(); got != "" {
		t.Errorf("drop-in after Run = %q; want none", got)
	}
}

// A sufficient drop-in of an earlier run needs no reload. During a shutdown it is
// not changed.
func TestLimitOfEarlierRun(t *testing.T) {
	b := start(t, 30*time.Second, func(b *fixture) {
		b.write(DropInDir+"/"+DropInName, string(content(999999999, 7, "30")))
		b.bus.SetReply("InhibitDelayMaxUSec", []any{dbus.MakeVariant(uint64(30_000_000))})
	})
	b.waitFor("a lock", b.locked)
	if n := b.bus.Calls("KillUnit"); n != 0 {
		t.Errorf("logind was reloaded %d times; want 0", n)
	}
	b.bus.SetPreparing(true)
	b.event(true)
	b.delayLock.SetDelay(60 * time.Second)
	b.delayLock.Release()
	b.waitFor("the release of the lock", func() bool { return b.locks() == 0 })
	b.stop()
	if got := b.dropIn(); got != "30" {
		t.Errorf("drop-in = %q during a shutdown; want the previous 30", got)
	}
}

// Another evictd's drop-in is not changed, for example if one is started by hand in
// dry run while the service runs.
func TestLimitOfOtherEvictd(t *testing.T) {
	text := string(content(1, startTime(1), "30"))
	for _, needs := range []time.Duration{0, 10 * time.Second} {
		b := start(t, needs, func(b *fixture) { b.write(DropInDir+"/"+DropInName, text) })
		b.waitFor("a connection", func() bool { return b.delayLock.Status().Connected })
		b.stop()
		if got := b.dropIn(); got != "30" {
			t.Errorf("drop-in of process 1 = %q with a wanted delay of %v; want it unchanged", got, needs)
		}
		if n := b.bus.Calls("KillUnit"); n != 0 {
			t.Errorf("logind was reloaded %d times; want 0", n)
		}
	}
}

func TestOverriddenDropIn(t *testing.T) {
	for _, tt := range []struct {
		name, file, text string
		ignoresConfig    bool
		limit            time.Duration
		want             string
	}{
		{"a later drop-in", "/etc/systemd/logind.conf.d/zzzz-late.conf", "[Login]\nInhibitDelayMaxSec=7\n", false, 7 * time.Second,
			"/etc/systemd/logind.conf.d/zzzz-late.conf sets InhibitDelayMaxSec=7"},
		{"one with our name in an earlier directory", "/etc/systemd/logind.conf.d/zzz-evictd.conf", "[Login]\nInhibitDelayMaxSec=9\n", false, 9 * time.Second,
			"/etc/systemd/logind.conf.d/zzz-evictd.conf sets InhibitDelayMaxSec=9"},
		{"logind ignores its configuration", "/etc/systemd/logind.conf.d/99-kubelet.conf", "[Login]\nInhibitDelayMaxSec=7\n", true, 5 * time.Second,
			"logind does not apply the limit of "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := start(t, 30*time.Second, func(b *fixture) {
				b.write(tt.file, tt.text)
				b.bus.IgnoreConfig(tt.ignoresConfig)
			})
			b.waitFor("a lock", b.locked)
			s := b.delayLock.Status()
			if !strings.HasPrefix(s.Error, tt.want) || s.Limit != tt.limit {
				t.Errorf("error = %q, limit %v; want %q, %v", s.Error, s.Limit, tt.want, tt.limit)
			}
			b.bus.SetPreparing(true)
			b.expectDelay(b.event(true), tt.limit)
		})
	}
}

// A drop-in that sorts before ours does not override it, and neither does one
// without the setting.
func TestNoOverride(t *testing.T) {
	b := start(t, 30*time.Second, func(b *fixture) {
		b.write("/etc/systemd/logind.conf.d/99-kubelet.conf", "[Login]\nInhibitDelayMaxSec=7\n")
		b.write("/usr/lib/systemd/logind.conf.d/zzzzz.conf", "[Login]\nHandlePowerKey=ignore\n[Other]\n")
	})
	b.waitFor("a lock", b.locked)
	if s := b.delayLock.Status(); s.Error != "" || s.Limit != 30*time.Second {
		t.Errorf("status = %+v; want 30s and no override", s)
	}
}

func TestKubeletLock(t *testing.T) {
	b := start(t, 0, func(b *fixture) { b.bus.Inhibit(KubeletWho) })
	b.waitFor("the kubelet's lock in the status", func() bool { return b.delayLock.Status().Kubelet })
	if n := b.locks(); n != 0 {
		t.Errorf("%d locks; want none", n)
	}
	for _, tt := range []struct {
		name, who string
		uid, pid  uint32
	}{
		{"another name", "somebody", 0, 1},
		{"another user", KubeletWho, 1000, 1},
		{"another process of root", KubeletWho, 0, 2},
	} {
		other := start(t, 0, func(b *fixture) { b.bus.InhibitAs(tt.who, tt.uid, tt.pid) })
		other.waitFor("a list of the locks", func() bool { return other.delayLock.Status().KubeletKnown })
		if other.delayLock.Status().Kubelet {
			t.Errorf("%s: a lock of %q, user %d, process %d counts as a kubelet's", tt.name, tt.who, tt.uid, tt.pid)
		}
	}
}

func TestBusStartsLate(t *testing.T) {
	b := start(t, 5*time.Second, func(b *fixture) { b.bus.Stop() })
	b.waitFor("a failed attempt", func() bool { return strings.Contains(b.delayLock.Status().Error, "connect to the system bus") })
	b.bus.Start()
	b.waitFor("a lock", b.locked)
	if s := b.delayLock.Status(); !s.Connected || s.Error != "" {
		t.Errorf("status = %+v; want connected and no error", s)
	}
}

// The lock is a descriptor, so it outlives the bus. Signals that were missed in
// between are made up for by a query.
func TestBusRestarts(t *testing.T) {
	b := start(t, 5*time.Second)
	b.waitFor("a lock", b.locked)
	b.event(false)
	for range 5 {
		b.bus.Stop()
		b.waitFor("the error in the status", func() bool { return !b.delayLock.Status().Connected })
		if n := b.locks(); n != 1 {
			t.Errorf("%d locks without a bus; want the existing one", n)
		}
		b.bus.Start()
		b.waitFor("a new connection", func() bool { return b.delayLock.Status().Connected })
		b.waitFor("one lock", b.locked)
	}
	b.bus.Stop()
	b.waitFor("the error in the status", func() bool { return !b.delayLock.Status().Connected })
	away := time.Now()
	b.bus.SetPreparing(true) // received by no client
	time.Sleep(100 * time.Millisecond)
	b.bus.Start()
	if e := b.event(true); e.Until.After(away.Add(5*time.Second)) || !e.Inhibited {
		t.Errorf("event = %+v; want Until at most 5s after the bus stopped at %v", e, away)
	}
	b.bus.Stop()
	b.delayLock.Release()
	if n := b.locks(); n != 0 {
		t.Errorf("%d locks after Release without a bus; want none", n)
	}
}

func TestLogindRestarts(t *testing.T) {
	b := start(t, 5*time.Second)
	b.waitFor("a lock", b.locked)
	for range 5 {
		b.bus.RestartLogind()
		b.waitFor("another lock", func() bool { return b.locked() })
	}
	b.bus.SetPreparing(true)
	b.event(true)
	b.bus.RestartLogind() // which loses the delayed shutdown
	b.event(false)
	b.waitFor("another lock", b.locked)
}

func TestFaults(t *testing.T) {
	for _, method := range []string{"auth", "Hello", "AddMatch", "PreparingForShutdown", "InhibitDelayMaxUSec", "Inhibit"} {
		t.Run(method+" hangs", func(t *testing.T) {
			b := start(t, 5*time.Second, func(b *fixture) { b.bus.Hang(method, true) })
			b.waitFor("the error in the status", func() bool { return strings.Contains(b.delayLock.Status().Error, ErrTimeout.Error()) })
			b.bus.Hang(method, false)
			b.waitFor("a lock", b.locked)
		})
	}
	for method, body := range map[string][]any{
		"PreparingForShutdown": {dbus.MakeVariant("yes")},
		"InhibitDelayMaxUSec":  {dbus.MakeVariant(int32(-1))},
		"Inhibit":              {uint32(7)},
		"Hello":                {":1.1", ":1.2"},
	} {
		t.Run(method+" replies with another type", func(t *testing.T) {
			b := start(t, 5*time.Second, func(b *fixture) { b.bus.SetReply(method, body) })
			if method != "Hello" { // whose reply is not used
				b.waitFor("the error in the status", func() bool { return b.delayLock.Status().Error != "" && b.bus.Calls(method) > 1 })
			}
			b.bus.SetReply(method, nil)
			b.waitFor("a lock", b.locked)
		})
	}
	t.Run("the reload hangs", func(t *testing.T) {
		b := start(t, 30*time.Second, func(b *fixture) { b.bus.Hang("KillUnit", true) })
		b.waitFor("the error in the status", func() bool { return strings.Contains(b.delayLock.Status().Error, "KillUnit") })
		b.bus.Hang("KillUnit", false)
		b.waitFor("the raised limit", func() bool { return b.locked() && b.delayLock.Status().Limit == 30*time.Second })
		b.bus.Hang("KillUnit", true)
		b.delayLock.SetDelay(0)
		b.waitFor("the error in the status", func() bool { return strings.Contains(b.delayLock.Status().Error, "KillUnit") })
		b.bus.Hang("KillUnit", false)
		b.waitFor("the original limit", func() bool { return b.delayLock.Status().Limit == 5*time.Second })
	})
	t.Run("a malformed signal", func(t *testing.T) {
		b := start(t, 5*time.Second)
		b.waitFor("a lock", b.locked)
		b.bus.Emit("true")
		b.bus.Emit()
		b.bus.Emit(true, true)
		b.bus.SetPreparing(true)
		b.event(true)
	})
}

// The descriptor of a lock whose call has timed out is closed when it arrives.
func TestLateLock(t *testing.T) {
	b := start(t, 5*time.Second, func(b *fixture) { b.bus.Hang("Inhibit", true) })
	for range 3 {
		calls := b.bus.Calls("Inhibit")
		b.waitFor("another attempt", func() bool { return b.bus.Calls("Inhibit") > calls })
	}
	b.bus.Hang("Inhibit", false)
	b.waitFor("one lock", b.locked)
	b.delayLock.SetDelay(0)
	b.waitFor("the release of the lock", func() bool { return b.locks() == 0 })
}
