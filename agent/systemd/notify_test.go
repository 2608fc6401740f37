package systemd

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"
)

// manager listens on a socket and sets NOTIFY_SOCKET to it, as a service manager does.
func manager(t *testing.T) *net.UnixConn {
	t.Helper()
	dir, err := os.MkdirTemp("", "evictd-notify-") // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	t.Setenv("NOTIFY_SOCKET", path)
	return conn
}

// run runs the notifier and returns a function that ends it.
func run(t *testing.T, n *Notifier) (end func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	return func() error {
		cancel()
		return <-done
	}
}

// receive returns the next message, "" if none arrives within the time.
func receive(t *testing.T, conn *net.UnixConn, within time.Duration) string {
	t.Helper()
	b := make([]byte, 4096)
	if err := conn.SetReadDeadline(time.Now().Add(within)); err != nil {
		t.Fatal(err)
	}
	n, err := conn.Read(b)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	return string(b[:n])
}

func TestNotifier(t *testing.T) {
	conn := manager(t)
	n, err := NewNotifier()
	if err != nil {
		t.Fatal(err)
	}
	end := run(t, n)
	steps := []struct {
		name   string
		notify func()
		want   string
	}{
		{"Status", func() { n.Status("waiting for the runtime") }, `^STATUS=waiting for the runtime$`},
		{"Ready", func() { n.Ready("dry run") }, `^READY=1\nSTATUS=dry run$`},
		{"Reloading", n.Reloading, `^RELOADING=1\nMONOTONIC_USEC=[1-9][0-9]+$`},
		{"Reloaded", func() { n.Reloaded("") }, `^READY=1$`},
		{"Status with lines", func() { n.Status("a\nMAINPID=1\n\tb ") }, `^STATUS=a MAINPID=1 b$`},
	}
	for _, s := range steps {
		s.notify()
		if got := receive(t, conn, 10*time.Second); !regexp.MustCompile(s.want).MatchString(got) {
			t.Errorf("%s sends %q; want %s", s.name, got, s.want)
		}
	}
	n.Beat() // without a watchdog
	n.Stopping()
	if err := end(); err != nil {
		t.Errorf("Run() = %v; want nil", err)
	}
	if got := receive(t, conn, 10*time.Second); got != "STOPPING=1" {
		t.Errorf("Stopping sends %q; want STOPPING=1", got)
	}
}

// TestNotifierKeepsOrder checks that Run sends notifications from before its start:
// states in order, and the last status once.
func TestNotifierKeepsOrder(t *testing.T) {
	conn := manager(t)
	n, err := NewNotifier()
	if err != nil {
		t.Fatal(err)
	}
	n.Status("one")
	n.Ready("two")
	n.Stopping()
	if err := run(t, n)(); err != nil {
		t.Errorf("Run() = %v; want nil", err)
	}
	for _, want := range []string{"READY=1", "STOPPING=1\nSTATUS=two", ""} {
		if got := receive(t, conn, 100*time.Millisecond); got != want {
			t.Errorf("received %q; want %q", got, want)
		}
	}
}

func TestWatchdog(t *testing.T) {
	conn := manager(t)
	t.Setenv("WATCHDOG_USEC", "400000")
	t.Setenv("WATCHDOG_PID", strconv.Itoa(os.Getpid()))
	n, err := NewNotifier()
	if err != nil {
		t.Fatal(err)
	}
	if got, want := n.WatchdogInterval(), 100*time.Millisecond; got != want {
		t.Errorf("WatchdogInterval() = %v; want %v", got, want)
	}
	end := run(t, n)
	n.Ready("")
	if got := receive(t, conn, 10*time.Second); got != "READY=1" {
		t.Errorf("received %q; want READY=1", got)
	}
	if got := receive(t, conn, 150*time.Millisecond); got != "" {
		t.Errorf("without a beat received %q; want nothing", got)
	}
	n.Beat()
	n.Beat()
	if got := receive(t, conn, 10*time.Second); got != "WATCHDOG=1" {
		t.Errorf("after a beat received %q; want WATCHDOG=1", got)
	}
	n.Beat() // before the next ping is due
	if got := receive(t, conn, 50*time.Millisecond); got != "" {
		t.Errorf("after an early beat received %q; want nothing", got)
	}
	for deadline := time.Now().Add(10 * time.Second); ; {
		n.Beat()
		if got := receive(t, conn, 10*time.Millisecond); got == "WATCHDOG=1" {
			break
		} else if got != "" || time.Now().After(deadline) {
			t.Fatalf("after further beats received %q; want WATCHDOG=1", got)
		}
	}
	if err := end(); err != nil {
		t.Errorf("Run() = %v; want nil", err)
	}
}

// TestStartIsExtended checks that iterations of the loop extend the start, however
// long it takes, and that a reload does not end it.
func TestStartIsExtended(t *testing.T) {
	conn := manager(t)
	n, err := NewNotifier()
	if err != nil {
		t.Fatal(err)
	}
	end := run(t, n)
	for range 3 {
		n.Beat()
		if got, want := receive(t, conn, 10*time.Second), "EXTEND_TIMEOUT_USEC=60000000"; got != want {
			t.Errorf("a beat before the service is ready sends %q; want %q", got, want)
		}
		n.Beat() // before the next extension is due
		if got := receive(t, conn, 50*time.Millisecond); got != "" {
			t.Errorf("a beat right after sends %q; want nothing", got)
		}
		n.mu.Lock()
		n.extended = n.extended.Add(-time.Hour)
		n.mu.Unlock()
	}
	n.Reloading()
	n.Reloaded("not ready: runtime")
	if got, want := receive(t, conn, 10*time.Second), "STATUS=not ready: runtime"; got != want {
		t.Errorf("a reload before the service is ready sends %q; want %q", got, want)
	}
	n.Ready("with the runtime")
	if got, want := receive(t, conn, 10*time.Second), "READY=1\nSTATUS=with the runtime"; got != want {
		t.Errorf("Ready() then sends %q; want %q", got, want)
	}
	n.Beat()
	if got := receive(t, conn, 50*time.Millisecond); got != "" {
		t.Errorf("a beat after that sends %q; want nothing", got)
	}
	if err := end(); err != nil {
		t.Errorf("Run() = %v; want nil", err)
	}
}

// TestStartWithoutBeat checks that the start is not extended if the loop does not
// iterate: the service manager then ends it.
func TestStartWithoutBeat(t *testing.T) {
	conn := manager(t)
	n, err := NewNotifier()
	if err != nil {
		t.Fatal(err)
	}
	n.Status("starting")
	end := run(t, n)
	if got := receive(t, conn, 10*time.Second); got != "STATUS=starting" {
		t.Errorf("received %q; want STATUS=starting", got)
	}
	if got := receive(t, conn, 100*time.Millisecond); got != "" {
		t.Errorf("without a beat received %q; want nothing", got)
	}
	if err := end(); err != nil {
		t.Errorf("Run() = %v; want nil", err)
	}
}

// TestBeatNeverBlocks checks that a service manager that does not read does not block
// the loop.
func TestBeatNeverBlocks(t *testing.T) {
	conn := manager(t)
	t.Setenv("WATCHDOG_USEC", "4")
	n, err := NewNotifier()
	if err != nil {
		t.Fatal(err)
	}
	end := run(t, n)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 20000 { // more than any queue of datagrams
			n.Beat()
			n.Status("x")
		}
		n.Stopping()
	}()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatal("Beat and Status block while the service manager does not read")
	}
	go func() {
		b := make([]byte, 4096)
		for {
			if _, err := conn.Read(b); err != nil {
				return
			}
		}
	}()
	if err := end(); err != nil {
		t.Errorf("Run() = %v; want nil", err)
	}
}

func TestNoServiceManager(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	n, err := NewNotifier()
	if err != nil {
		t.Fatal(err)
	}
	n.Ready("x")
	n.Beat()
	n.Stopping()
	if err := run(t, n)(); err != nil {
		t.Errorf("Run() without a service manager = %v; want nil", err)
	}
}

// TestServiceManagerGone checks that Run returns an error only at its end.
func TestServiceManagerGone(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", filepath.Join(t.TempDir(), "none"))
	n, err := NewNotifier()
	if err != nil {
		t.Fatal(err)
	}
	n.Ready("")
	if err := run(t, n)(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Run() without a socket = %v; want %v", err, os.ErrNotExist)
	}
}

func TestWatchdogSettings(t *testing.T) {
	own, other := strconv.Itoa(os.Getpid()), strconv.Itoa(os.Getppid())
	tests := []struct {
		usec, pid string
		want      time.Duration
		ok        bool
	}{
		{"", "", 0, true},
		{"30000000", own, 7500 * time.Millisecond, true},
		{"30000000", "", 7500 * time.Millisecond, true},
		{"30000000", other, 0, true},
		{"0", own, 0, false},
		{"-1", own, 0, false},
		{"soon", own, 0, false},
		{"30000000", "me", 0, false},
	}
	for _, tt := range tests {
		t.Setenv("WATCHDOG_USEC", tt.usec)
		t.Setenv("WATCHDOG_PID", tt.pid)
		n, err := NewNotifier()
		if (err == nil) != tt.ok || err == nil && n.WatchdogInterval() != tt.want {
			t.Errorf("NewNotifier(WATCHDOG_USEC=%s, WATCHDOG_PID=%s) = %+v, %v; want %v, ok %v", tt.usec, tt.pid, n, err, tt.want, tt.ok)
		}
	}
}
