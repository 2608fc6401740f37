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

// bed is a Guard on a bus of its own.
type bed struct {
	*testing.T
	bus   *logindtest.Bus
	root  string
	guard *Guard
	stop  func()
	again time.Duration // how often the Guard looks at everything, and lists after a failure
}

// start runs a Guard that wants a shutdown to be held up so long.
func start(t *testing.T, needs time.Duration, prepare ...func(*bed)) *bed {
	t.Helper()
	b := &bed{T: t, root: t.TempDir()}
	b.bus = logindtest.New(t, b.root)
	for _, f := range prepare {
		f(b)
	}
	b.guard = NewGuard(Options{
		Address: b.bus.Address(), Root: b.root, Log: slog.New(slog.DiscardHandler),
		IsKubelet: func(pid int) bool { return pid == 1 }, // for which Bus.Take takes its locks
	})
	b.guard.retry, b.guard.timeout, b.guard.patience = 10*time.Millisecond, 300*time.Millisecond, 40*time.Millisecond
	if b.again > 0 {
		b.guard.again, b.guard.listBackoff = b.again, b.again
	}
	b.guard.Want(needs)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- b.guard.Run(ctx) }()
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

// until waits for something to be so.
func (b *bed) until(what string, so func() bool) {
	b.Helper()
	for end := time.Now().Add(10 * time.Second); !so(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			b.Fatalf("not so after 10s: %s; status %+v, locks %+v", what, b.guard.Status(), b.bus.Locks())
		}
	}
}

// locks returns how many locks evictd holds.
func (b *bed) locks() int {
	n := 0
	for _, l := range b.bus.Locks() {
		if l.Who == Who && l.What == "shutdown" && l.Mode == "delay" {
			n++
		}
	}
	return n
}

func (b *bed) locked() bool { return b.locks() == 1 && b.guard.Status().Locked }

// allows checks for how long, from now on, a shutdown can be held up.
func (b *bed) allows(e Event, want time.Duration) {
	b.Helper()
	if got := time.Until(e.Until); !e.Locked || got > want || got < want-time.Second {
		b.Errorf("locked = %t, allowed = %v; want a lock and %v, less at most a second", e.Locked, got, want)
	}
}

// event waits for the next event that says so.
func (b *bed) event(preparing bool) Event {
	b.Helper()
	deadline := time.After(10 * time.Second)
	for {
		select {
		case e := <-b.guard.Events():
			if e.Preparing == preparing {
				return e
			}
		case <-deadline:
			b.Fatalf("no event with Preparing = %t within 10s; status %+v", preparing, b.guard.Status())
		}
	}
}

func (b *bed) write(name, text string) {
	b.Helper()
	path := filepath.Join(b.root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		b.Fatal(err)
	}
}

// dropIn returns what is written; empty for nothing.
func (b *bed) dropIn() string {
	content, err := os.ReadFile(filepath.Join(b.root, DropInDir, DropInName))
	if err != nil {
		return ""
	}
	_, value, _ := strings.Cut(string(content), "InhibitDelayMaxSec=")
	return strings.TrimSpace(value)
}

func TestLockAndShutdown(t *testing.T) {
	b := start(t, 5*time.Second)
	b.until("a lock is held", b.locked)
	if e := b.event(false); !e.Locked {
		t.Errorf("event = %+v; want locked", e)
	}
	if b.dropIn() != "" {
		t.Errorf("a drop-in of %s s where logind's own limit suffices", b.dropIn())
	}

	b.bus.Prepare(true)
	b.allows(b.event(true), 5*time.Second)
	if !b.locked() {
		t.Error("the lock was given up when the shutdown began")
	}
	b.guard.Done()
	b.until("the lock is given up", func() bool { return b.locks() == 0 })

	b.bus.Prepare(false)
	b.event(false)
	b.until("another lock is held", b.locked)

	b.guard.Want(0)
	b.until("no lock is held", func() bool { return b.locks() == 0 && !b.guard.Status().Locked })
	b.guard.Want(3 * time.Second)
	b.until("a lock is held", b.locked)
	b.stop()
	if n := b.locks(); n != 0 {
		t.Errorf("%d locks after the end; want none", n)
	}
}

// kept is a keeper, and what it keeps.
type kept struct {
	testing.TB
	fd int
}

func (k *kept) Keep(fd int) error {
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	k.fd = own
	return nil
}

func (k *kept) Forget() error {
	if k.fd >= 0 {
		unix.Close(k.fd)
		k.fd = -1
	}
	return nil
}

// A lock outlives the run that took it, in the middle of a shutdown, and the next
// run gives it up.
func TestKeptLock(t *testing.T) {
	root := t.TempDir()
	bus := logindtest.New(t, root)
	keeper := &kept{TB: t, fd: -1}
	run := func(fd *int, needs ...time.Duration) (*bed, context.CancelFunc) {
		b := &bed{T: t, bus: bus, root: root}
		b.guard = NewGuard(Options{Address: bus.Address(), Root: root, Log: slog.New(slog.DiscardHandler), Keeper: keeper, Kept: fd})
		b.guard.retry = 10 * time.Millisecond
		for _, n := range needs {
			b.guard.Want(n)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); b.guard.Run(ctx) }()
		return b, func() { cancel(); <-done }
	}
	first, end := run(nil, 5*time.Second)
	first.until("a lock is held", first.locked)
	bus.Prepare(true)
	first.event(true)
	// What is left of a crash.
	crashed, err := unix.FcntlInt(uintptr(keeper.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	end()
	second, end := run(&crashed)
	defer end()
	second.allows(second.event(true), 5*time.Second-awayBetweenRuns)
	if n := second.locks(); n != 1 {
		t.Errorf("%d locks in the second run; want the one of the first", n)
	}
	// Nobody has said yet what is wanted.
	second.guard.wake()
	second.event(true)
	if n := second.locks(); n != 1 {
		t.Errorf("%d locks before anything was wanted; want the one there was", n)
	}
	second.guard.Done()
	second.until("the lock is given up", func() bool { return second.locks() == 0 })
	second.guard.Want(5 * time.Second)
	bus.Prepare(false)
	second.event(false)
	second.until("another lock is held", second.locked)
	if keeper.fd < 0 {
		t.Error("the new lock is not kept")
	}
}

func TestLimit(t *testing.T) {
	b := start(t, 372*time.Second)
	b.until("a lock is held", b.locked)
	if got := b.dropIn(); got != "372" {
		t.Errorf("drop-in = %q; want 372", got)
	}
	if s := b.guard.Status(); s.Limit != 372*time.Second || s.Error != "" {
		t.Errorf("status = %+v; want a limit of 372s and no complaint", s)
	}
	b.guard.Want(31 * time.Second)
	b.until("less is needed", func() bool { return b.guard.Status().Needs == 31*time.Second })
	if got, s := b.dropIn(), b.guard.Status(); got != "372" || s.Limit != 372*time.Second {
		t.Errorf("drop-in = %q, limit %v where less is needed; want both as they were", got, s.Limit)
	}
	b.guard.Want(400*time.Second + 1)
	b.until("the limit is raised", func() bool { return b.dropIn() == "401" && b.guard.Status().Limit == 401*time.Second })
	b.guard.Want(0)
	b.until("the drop-in is gone", func() bool { return b.dropIn() == "" && b.guard.Status().Limit == 5*time.Second })
	b.guard.Want(10 * time.Second)
	b.until("and written again", func() bool { return b.dropIn() == "10" && b.guard.Status().Limit == 10*time.Second })
	b.stop()
	if got := b.dropIn(); got != "" {
		t.Errorf("drop-in after the end = %q; want none", got)
	}
}

// A drop-in of an earlier run that is right needs no reload; while the node
// goes down nothing is changed.
func TestLimitLeft(t *testing.T) {
	b := start(t, 30*time.Second, func(b *bed) {
		b.write(DropInDir+"/"+DropInName, string(content(999999999, 7, "30")))
		b.bus.Answer("InhibitDelayMaxUSec", []any{dbus.MakeVariant(uint64(30_000_000))})
	})
	b.until("a lock is held", b.locked)
	if n := b.bus.Calls("KillUnit"); n != 0 {
		t.Errorf("logind was reloaded %d times; want 0", n)
	}
	b.bus.Prepare(true)
	b.event(true)
	b.guard.Want(60 * time.Second)
	b.guard.Done()
	b.until("the lock is given up", func() bool { return b.locks() == 0 })
	b.stop()
	if got := b.dropIn(); got != "30" {
		t.Errorf("drop-in = %q while the node goes down; want the 30 that were there", got)
	}
}

// Another evictd's drop-in is left alone, as where one is started by hand in dry
// run beside the service.
func TestLimitOfAnother(t *testing.T) {
	text := string(content(1, startOf(1), "30"))
	for _, needs := range []time.Duration{0, 10 * time.Second} {
		b := start(t, needs, func(b *bed) { b.write(DropInDir+"/"+DropInName, text) })
		b.until("connected", func() bool { return b.guard.Status().Connected })
		b.stop()
		if got := b.dropIn(); got != "30" {
			t.Errorf("drop-in of process 1 = %q where %v are needed; want it left", got, needs)
		}
		if n := b.bus.Calls("KillUnit"); n != 0 {
			t.Errorf("logind was reloaded %d times; want 0", n)
		}
	}
}

func TestRival(t *testing.T) {
	for _, tt := range []struct {
		name, file, text string
		stubborn         bool
		limit            time.Duration
		want             string
	}{
		{"a later drop-in", "/etc/systemd/logind.conf.d/zzzz-late.conf", "[Login]\nInhibitDelayMaxSec=7\n", false, 7 * time.Second,
			"/etc/systemd/logind.conf.d/zzzz-late.conf says InhibitDelayMaxSec=7"},
		{"one of our name that hides ours", "/etc/systemd/logind.conf.d/zzz-evictd.conf", "[Login]\nInhibitDelayMaxSec=9\n", false, 9 * time.Second,
			"/etc/systemd/logind.conf.d/zzz-evictd.conf says InhibitDelayMaxSec=9"},
		{"logind does not listen", "/etc/systemd/logind.conf.d/99-kubelet.conf", "[Login]\nInhibitDelayMaxSec=7\n", true, 5 * time.Second,
			"logind does not take the limit of "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := start(t, 30*time.Second, func(b *bed) {
				b.write(tt.file, tt.text)
				b.bus.Stubborn(tt.stubborn)
			})
			b.until("a lock is held", b.locked)
			s := b.guard.Status()
			if !strings.HasPrefix(s.Error, tt.want) || s.Limit != tt.limit {
				t.Errorf("error = %q, limit %v; want %q, %v", s.Error, s.Limit, tt.want, tt.limit)
			}
			b.bus.Prepare(true)
			b.allows(b.event(true), tt.limit)
		})
	}
}

// One that sorts before ours is no rival, and one without our setting neither.
func TestNoRival(t *testing.T) {
	b := start(t, 30*time.Second, func(b *bed) {
		b.write("/etc/systemd/logind.conf.d/99-kubelet.conf", "[Login]\nInhibitDelayMaxSec=7\n")
		b.write("/usr/lib/systemd/logind.conf.d/zzzzz.conf", "[Login]\nHandlePowerKey=ignore\n[Other]\n")
	})
	b.until("a lock is held", b.locked)
	if s := b.guard.Status(); s.Error != "" || s.Limit != 30*time.Second {
		t.Errorf("status = %+v; want 30s and no rival", s)
	}
}

func TestKubeletsLock(t *testing.T) {
	b := start(t, 0, func(b *bed) { b.bus.Take(KubeletWho) })
	b.until("the kubelet's lock is seen", func() bool { return b.guard.Status().Kubelet })
	if n := b.locks(); n != 0 {
		t.Errorf("%d locks although none is wanted", n)
	}
	for _, tt := range []struct {
		name, who string
		uid, pid  uint32
	}{
		{"another name", "somebody", 0, 1},
		{"another user", KubeletWho, 1000, 1},
		{"another process of root", KubeletWho, 0, 2},
	} {
		other := start(t, 0, func(b *bed) { b.bus.TakeAs(tt.who, tt.uid, tt.pid) })
		other.until("the locks are listed", func() bool { return other.guard.Status().KubeletKnown })
		if other.guard.Status().Kubelet {
			t.Errorf("%s: a lock of %q, user %d, process %d was taken for a kubelet's", tt.name, tt.who, tt.uid, tt.pid)
		}
	}
}

func TestBusComesLate(t *testing.T) {
	b := start(t, 5*time.Second, func(b *bed) { b.bus.Stop() })
	b.until("the attempt has failed", func() bool { return strings.Contains(b.guard.Status().Error, "connect to the system bus") })
	b.bus.Start()
	b.until("a lock is held", b.locked)
	if s := b.guard.Status(); !s.Connected || s.Error != "" {
		t.Errorf("status = %+v; want connected and no error", s)
	}
}

// The lock is a descriptor: it outlives the bus, and what was told meanwhile is
// found by asking.
func TestBusRestarts(t *testing.T) {
	b := start(t, 5*time.Second)
	b.until("a lock is held", b.locked)
	b.event(false)
	for range 5 {
		b.bus.Stop()
		b.until("it is noticed", func() bool { return !b.guard.Status().Connected })
		if n := b.locks(); n != 1 {
			t.Errorf("%d locks while the bus is away; want the 1 that there was", n)
		}
		b.bus.Start()
		b.until("it is connected again", func() bool { return b.guard.Status().Connected })
		b.until("one lock is held", b.locked)
	}
	b.bus.Stop()
	b.until("it is noticed", func() bool { return !b.guard.Status().Connected })
	away := time.Now()
	b.bus.Prepare(true) // told to nobody
	time.Sleep(100 * time.Millisecond)
	b.bus.Start()
	if e := b.event(true); e.Until.After(away.Add(5*time.Second)) || !e.Locked {
		t.Errorf("event = %+v; want it to end 5s after the bus went away at %v, at the latest", e, away)
	}
	b.bus.Stop()
	b.guard.Done()
	if n := b.locks(); n != 0 {
		t.Errorf("%d locks after Done without a bus; want none", n)
	}
}

func TestLogindRestarts(t *testing.T) {
	b := start(t, 5*time.Second)
	b.until("a lock is held", b.locked)
	for range 5 {
		b.bus.RestartLogind()
		b.until("another lock is held", func() bool { return b.locked() })
	}
	b.bus.Prepare(true)
	b.event(true)
	b.bus.RestartLogind() // which forgets that it held a shutdown up
	b.event(false)
	b.until("another lock is held", b.locked)
}

func TestFaults(t *testing.T) {
	for _, method := range []string{"auth", "Hello", "AddMatch", "PreparingForShutdown", "InhibitDelayMaxUSec", "Inhibit"} {
		t.Run(method+" hangs", func(t *testing.T) {
			b := start(t, 5*time.Second, func(b *bed) { b.bus.Hang(method, true) })
			b.until("it is noticed", func() bool { return strings.Contains(b.guard.Status().Error, ErrHangs.Error()) })
			b.bus.Hang(method, false)
			b.until("a lock is held", b.locked)
		})
	}
	for method, body := range map[string][]any{
		"PreparingForShutdown": {dbus.MakeVariant("yes")},
		"InhibitDelayMaxUSec":  {dbus.MakeVariant(int32(-1))},
		"Inhibit":              {uint32(7)},
		"Hello":                {":1.1", ":1.2"},
	} {
		t.Run(method+" answers something else", func(t *testing.T) {
			b := start(t, 5*time.Second, func(b *bed) { b.bus.Answer(method, body) })
			if method != "Hello" { // whose answer nobody needs
				b.until("it is noticed", func() bool { return b.guard.Status().Error != "" && b.bus.Calls(method) > 1 })
			}
			b.bus.Answer(method, nil)
			b.until("a lock is held", b.locked)
		})
	}
	t.Run("the reload hangs", func(t *testing.T) {
		b := start(t, 30*time.Second, func(b *bed) { b.bus.Hang("KillUnit", true) })
		b.until("it is noticed", func() bool { return strings.Contains(b.guard.Status().Error, "KillUnit") })
		b.bus.Hang("KillUnit", false)
		b.until("the limit is raised", func() bool { return b.locked() && b.guard.Status().Limit == 30*time.Second })
		b.bus.Hang("KillUnit", true)
		b.guard.Want(0)
		b.until("it is noticed", func() bool { return strings.Contains(b.guard.Status().Error, "KillUnit") })
		b.bus.Hang("KillUnit", false)
		b.until("the limit is given back", func() bool { return b.guard.Status().Limit == 5*time.Second })
	})
	t.Run("a signal of another form", func(t *testing.T) {
		b := start(t, 5*time.Second)
		b.until("a lock is held", b.locked)
		b.bus.Emit("true")
		b.bus.Emit()
		b.bus.Emit(true, true)
		b.bus.Prepare(true)
		b.event(true)
	})
}

// A lock whose call was given up is not held by a descriptor that comes late.
func TestLateLock(t *testing.T) {
	b := start(t, 5*time.Second, func(b *bed) { b.bus.Hang("Inhibit", true) })
	for range 3 {
		calls := b.bus.Calls("Inhibit")
		b.until("it is tried again", func() bool { return b.bus.Calls("Inhibit") > calls })
	}
	b.bus.Hang("Inhibit", false)
	b.until("one lock is held", b.locked)
	b.guard.Want(0)
	b.until("none is", func() bool { return b.locks() == 0 })
}
