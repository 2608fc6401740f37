package machine

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/tests/vm/protocol"
)

// fakeQEMU puts a shell script named qemu-system-x86_64 into PATH. It has the console on descriptor 3 and the events
// on 4.
func fakeQEMU(t *testing.T, script string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "qemu-system-x86_64"), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

const (
	sayHello = `echo '{"kind":"hello","text":"6.1.0"}' >&4` + "\n"
	sayBegin = `echo '{"kind":"begin","command":"x"}' >&4` + "\n"
	sayEnd   = `echo '{"kind":"end","command":"x","duration":1000000000}' >&4` + "\n"
	sayDone  = `echo '{"kind":"done"}' >&4` + "\n"
)

func TestRun(t *testing.T) {
	for _, tt := range []struct {
		name, script string
		want         error
		text         string // in what the error shows
		commands     int
	}{
		{"done", "echo 'Linux version 6.1' >&3\n" + sayHello + sayBegin + sayEnd + sayDone + "exec sleep 1000", nil, "", 1},
		{"QEMU fails", "echo 'Could not open root.img' >&2; exit 1", ErrDied, "output of QEMU: Could not open root.img", 0},
		{"powered off before it is done", sayHello + sayBegin + "echo 'guest: find the port' >&3", ErrDied, "guest: find the port", 1},
		{"no output", "exec sleep 1000", ErrHung, "the console is empty", 0},
		{"silence", "echo 'last words' >&3\n" + sayHello + sayBegin + "exec sleep 1000", ErrHung, "last words", 1},
		{"panic", sayHello + "echo '[   20.1] Kernel panic - not syncing: sysrq triggered crash' >&3", ErrPanicked, "sysrq triggered crash", 0},
		{"invalid event", "echo 'Segmentation fault' >&4\nexec sleep 1000", ErrDied, "parse event", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			fakeQEMU(t, tt.script)
			dir := t.TempDir()
			received := 0
			report, err := Run(t.Context(), Config{QEMU: "qemu-system-x86_64", Dir: dir, Limits: Limits{Boot: time.Second, Silence: time.Second}}, func(protocol.Event) { received++ })
			if !errors.Is(err, tt.want) {
				t.Fatalf("Run = %v; want %v", err, tt.want)
			}
			var lost *Error
			if errors.As(err, &lost) && !strings.Contains(lost.Detail(), tt.text) {
				t.Errorf("Run's error shows %q; want %q in it", lost.Detail(), tt.text)
			}
			if len(report.Results) != tt.commands {
				t.Errorf("results = %+v; want %d", report.Results, tt.commands)
			}
			for _, log := range []string{"console.log", "events.log", "qemu.log"} {
				if _, err := os.Stat(filepath.Join(dir, log)); err != nil {
					t.Errorf("after Run: %v; want the log", err)
				}
			}
			if events, err := os.ReadFile(filepath.Join(dir, "events.log")); err != nil || tt.want == nil && strings.Count(string(events), "\n") != received {
				t.Errorf("%d events received of %q, %v; want all", received, events, err)
			}
		})
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	fakeQEMU(t, "echo $$ >"+file+".new; mv "+file+".new "+file+"\n"+sayHello+"exec sleep 1000")
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	_, err := Run(ctx, Config{QEMU: "qemu-system-x86_64", Dir: t.TempDir()}, func(e protocol.Event) {
		if e.Kind == protocol.Hello {
			cancel(why)
		}
	})
	if !errors.Is(err, why) {
		t.Errorf("Run = %v; want the context's cause", err)
	}
	awaitEnd(t, awaitPID(t, file))
}

// TestMachineDiesWithItsParent: the machine does not outlive the process that runs it, here a child process that is
// killed.
func TestMachineDiesWithItsParent(t *testing.T) {
	if file := os.Getenv("MACHINE_TEST_PARENT"); file != "" {
		_, err := Run(t.Context(), Config{QEMU: "qemu-system-x86_64", Dir: filepath.Dir(file)}, nil)
		t.Fatalf("Run = %v; want this process to be killed before", err)
	}
	file := filepath.Join(t.TempDir(), "pid")
	fakeQEMU(t, "echo $$ >"+file+".new; mv "+file+".new "+file+"\nexec sleep 1000")
	parent := exec.Command(os.Args[0], "-test.run=^TestMachineDiesWithItsParent$")
	parent.Env = append(os.Environ(), "MACHINE_TEST_PARENT="+file)
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	pid := awaitPID(t, file)
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait() // it was killed
	awaitEnd(t, pid)
}

// waitTimeout bounds the waits for a process to start or to exit.
const waitTimeout = 20 * time.Second

func awaitPID(t *testing.T, file string) int {
	t.Helper()
	for end := time.Now().Add(waitTimeout); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		b, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
		if err != nil {
			t.Fatal(err)
		}
		return pid
	}
	t.Fatalf("no machine after %v", waitTimeout)
	return 0
}

// awaitEnd waits until a process has exited. A zombie that its new parent has not reaped yet counts as exited.
func awaitEnd(t *testing.T, pid int) {
	t.Helper()
	for end := time.Now().Add(waitTimeout); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
	}
	_ = unix.Kill(pid, unix.SIGKILL)
	t.Errorf("the machine (process %d) is alive %v after its parent", pid, waitTimeout)
}
