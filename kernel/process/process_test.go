package process

import (
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel"
)

const tail = " 1 1 0 -1 4194560 7821 3 2 0 17 23 0 0 20 0 3 0 812 172183552 3021 18446744073709551615 1 1 0 0 0 0"

var stats = []struct {
	name, text string
	want       Stat
	ok         bool
}{
	{"plain", "42 (sleep) S 7" + tail, Stat{42, "sleep", 'S', 7, 3, 812}, true},
	{"brackets in the name", "42 (a) Z 1 () S 7" + tail, Stat{42, "a) Z 1 (", 'S', 7, 3, 812}, true},
	{"line feed in the name", "42 (a\nb) D 7" + tail, Stat{42, "a\nb", 'D', 7, 3, 812}, true},
	{"empty name", "42 () R 0" + tail, Stat{42, "", 'R', 0, 3, 812}, true},
	{"empty", "", Stat{}, false},
	{"cut short", "42 (sleep) S 7 1 1 0", Stat{}, false},
	{"no brackets", "42 sleep S 7" + tail, Stat{}, false},
	{"negative parent", "42 (sleep) S -7" + tail, Stat{}, false},
	{"long state", "42 (sleep) SS 7" + tail, Stat{}, false},
}

func TestParseStat(t *testing.T) {
	for _, tc := range stats {
		got, err := parseStat([]byte(tc.text))
		if got != tc.want || (err == nil) != tc.ok {
			t.Errorf("%s: parseStat(%q) = %+v, %v; want %+v, ok %v", tc.name, tc.text, got, err, tc.want, tc.ok)
		}
		if start, ok := startTime([]byte(tc.text)); tc.ok && (!ok || start != tc.want.StartTime) {
			t.Errorf("%s: startTime(%q) = %d, %t; want %d", tc.name, tc.text, start, ok, tc.want.StartTime)
		}
	}
}

func FuzzParseStat(f *testing.F) {
	for _, tc := range stats {
		f.Add([]byte(tc.text))
	}
	f.Add([]byte("2 () S 7 1 1 0 1 0 1 3 2 0 7 3  0 0 3 0 2 2 3")) // two spaces
	f.Fuzz(func(t *testing.T, text []byte) {
		if s, err := parseStat(text); s.PID < 0 || s.PPID < 0 || s.Threads < 0 || err != nil && s != (Stat{}) {
			t.Errorf("parseStat(%q) = %+v, %v", text, s, err)
		} else if start, ok := startTime(text); ok && err == nil && start != s.StartTime {
			t.Errorf("startTime(%q) = %d; parseStat has %d", text, start, s.StartTime)
		}
	})
}

func TestParseStatm(t *testing.T) {
	for text, want := range map[string]uint64{"42037 2966 1874 12 0 4963 0\n": 2966, "0 0 0 0 0 0 0\n": 0} {
		if got, err := parseStatm([]byte(text)); got != want || err != nil {
			t.Errorf("parseStatm(%q) = %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "1", "1 x", "1 -2", "1 99999999999999999999"} {
		if got, err := parseStatm([]byte(text)); err == nil {
			t.Errorf("parseStatm(%q) = %d; want an error", text, got)
		}
	}
}

func TestAbsent(t *testing.T) {
	proc := kernel.FS(t.TempDir())
	if _, err := ReadStat(proc, 7); !errors.Is(err, ErrGone) {
		t.Errorf("ReadStat = %v; want ErrGone", err)
	}
	if _, err := Resident(proc, 7); !errors.Is(err, ErrGone) {
		t.Errorf("Resident = %v; want ErrGone", err)
	}
	if _, err := BootID(proc); err == nil {
		t.Error("BootID without the file = nil; want an error")
	}
}

func TestKill(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	p, err := Open(cmd.Process.Pid)
	if errors.Is(err, kernel.ErrUnavailable) {
		t.Skip("needs pidfd_open: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := p.ReleaseMemory(); err == nil {
		t.Error("ReleaseMemory() of a running process = nil; want an error")
	}
	if gone, err := p.Exited(); gone || err != nil {
		t.Errorf("Exited() before the kill = %v, %v; want false", gone, err)
	}
	if err := p.Signal(unix.SIGKILL); err != nil {
		t.Fatalf("Signal() = %v", err)
	}
	if gone, err := p.Wait(10 * time.Second); !gone || err != nil {
		t.Errorf("Wait() after the kill = %v, %v; want true", gone, err)
	}
	cmd.Wait()
	if err := p.Signal(unix.SIGKILL); !errors.Is(err, ErrGone) {
		t.Errorf("Signal() after the process was reaped = %v; want ErrGone", err)
	}
	if err := p.ReleaseMemory(); !errors.Is(err, ErrGone) && !errors.Is(err, kernel.ErrUnavailable) {
		t.Errorf("ReleaseMemory() after the process was reaped = %v; want ErrGone", err)
	}
	p.Close()
	if err := p.Close(); err != nil {
		t.Errorf("second Close() = %v", err)
	}
	if err := p.Signal(unix.SIGKILL); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Signal() after Close() = %v; want os.ErrClosed", err)
	}
}

func TestOpenGone(t *testing.T) {
	// A pid may be reused at once, but not three times in a row.
	for range 3 {
		cmd := exec.Command("true")
		if err := cmd.Run(); err != nil {
			t.Fatal(err)
		}
		p, err := Open(cmd.Process.Pid)
		if errors.Is(err, ErrGone) {
			return
		}
		if err != nil {
			t.Fatalf("Open() of a process that was reaped = %v; want ErrGone", err)
		}
		p.Close()
	}
	t.Error("Open() of three processes that were reaped = nil; want ErrGone")
}

func TestSelf(t *testing.T) {
	s, err := ReadStat("/proc", os.Getpid())
	if err != nil || s.PID != os.Getpid() || s.PPID != os.Getppid() || s.State != 'R' && s.State != 'S' {
		t.Errorf("ReadStat of this process = %+v, %v", s, err)
	}
	if n, err := Resident("/proc", os.Getpid()); err != nil || n < 1<<20 || n > 1<<32 {
		t.Errorf("Resident of this process = %d, %v", n, err)
	}
	if id, err := BootID("/proc"); err != nil || len(id) != 36 {
		t.Errorf("BootID = %q, %v", id, err)
	}
	if up, err := Uptime(); err != nil || up <= 0 {
		t.Errorf("Uptime = %v, %v", up, err)
	}
}
