package driver

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/agent/kube"
	"github.com/evictd/evictd/kernel/kerneltest"
	"github.com/evictd/evictd/kernel/process"
	"github.com/evictd/evictd/kernel/watchdog"
)

const (
	softdogTimeout, softdogGap = 10 * time.Second, 12 * time.Second
	// childDir is the environment variable with the directory of a child process.
	childDir = "EVICTD_TEST_SELFFENCE"
)

// acceptAll accepts all marks while a file exists.
type acceptAll struct {
	driver *Driver
	file   string
}

func (a *acceptAll) Set(m kube.NodeMarks) {
	if _, err := os.Stat(a.file); err == nil {
		go a.driver.Accepted(m.Number)
	}
}

// TestSoftdogChild is the process that feeds softdog for TestSoftdog.
func TestSoftdogChild(t *testing.T) {
	dir := os.Getenv(childDir)
	if dir == "" {
		t.Skip("a part of TestSoftdog")
	}
	marks := &acceptAll{file: filepath.Join(dir, "reachable")}
	marks.driver = New(Options{
		Path: "/dev/watchdog", Timeout: softdogTimeout, FeedGap: softdogGap, BootID: "b", StateFile: filepath.Join(dir, "state"),
		Uptime: process.Uptime, Procfs: "/proc", Sysfs: "/sys", Marks: marks, Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
		Open: func(path string) (Device, error) { return watchdog.Open(path) },
	})
	terminated, stop := signal.NotifyContext(t.Context(), unix.SIGTERM)
	defer stop()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { marks.driver.Run(ctx); close(ended) }()
	<-terminated.Done()
	stopping, end := context.WithTimeout(ctx, 5*time.Second)
	defer end()
	marks.driver.Stop(stopping)
	cancel()
	<-ended
}

// feeder starts the child process. end signals it and waits for its end.
func feeder(t *testing.T, dir string) (child *os.Process, end func(unix.Signal)) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestSoftdogChild$", "-test.v")
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), childDir+"="+dir), os.Stderr, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	end = func(s unix.Signal) {
		_ = cmd.Process.Signal(unix.SIGCONT)
		_ = cmd.Process.Signal(s)
		_ = cmd.Wait()
	}
	t.Cleanup(func() { end(unix.SIGKILL) })
	return cmd.Process, end
}

// On a kernel's watchdog: it does not fire while it is fed, after a crash with a restart, and after a stop; it fires when
// the process is stopped, and when the API server accepts no adverts.
func TestSoftdog(t *testing.T) {
	fired := kerneltest.Softdog(t)
	dir := t.TempDir()
	reachable := filepath.Join(dir, "reachable")
	if err := os.WriteFile(reachable, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	check := func(when string, want bool, within time.Duration) {
		t.Helper()
		if got := fired(within); got != want {
			t.Errorf("%s: the watchdog fires within %s: %t; want %t", when, within, got, want)
		}
	}
	_, end := feeder(t, dir)
	check("fed", false, 3*softdogTimeout)
	end(unix.SIGKILL)
	_, end = feeder(t, dir)
	check("after a crash", false, 3*softdogTimeout)
	end(unix.SIGTERM)
	check("after a stop", false, 2*softdogTimeout)
	child, end := feeder(t, dir)
	check("fed again", false, 2*softdogTimeout)
	if err := child.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	check("process stopped", true, 3*softdogTimeout)
	end(unix.SIGTERM)
	_, end = feeder(t, dir)
	check("fed after that", false, 2*softdogTimeout)
	if err := os.Remove(reachable); err != nil {
		t.Fatal(err)
	}
	check("API server away", true, softdogGap+3*softdogTimeout)
	if err := os.WriteFile(reachable, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	end(unix.SIGTERM)
}
