package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/tests/hog/stamp"
)

// asHog is the environment variable that makes this test binary run as a hog, because most tests need a process.
const asHog = "HOG_TEST_RUN"

func TestMain(m *testing.M) {
	if os.Getenv(asHog) != "" {
		os.Exit(run(os.Args[1:], os.Stderr))
	}
	os.Exit(m.Run())
}

type process struct {
	*exec.Cmd
	exited chan error
}

func start(t *testing.T, args ...string) process {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), asHog+"=1")
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := process{cmd, make(chan error, 1)}
	go func() { p.exited <- cmd.Wait() }()
	t.Cleanup(func() { _ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL) })
	return p
}

// eventually polls until ok returns true.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); {
		if time.Now().After(end) {
			t.Fatalf("after 20s: no %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// rssAnon returns the anonymous resident memory of a process in bytes, -1 if it does not exist.
func rssAnon(pid int) int64 { return rss(pid, "RssAnon:") }

// rss returns the value of a field of /proc/PID/status in bytes.
func rss(pid int, name string) int64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return -1
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == name {
			kib, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				return -1
			}
			return kib << 10
		}
	}
	return -1
}

// children lists the PIDs of a process's children. The kernel lists them per thread that forked.
func children(pid int) []string {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		return nil
	}
	var pids []string
	for _, file := range files {
		if b, err := os.ReadFile(file); err == nil {
			pids = append(pids, strings.Fields(string(b))...)
		}
	}
	return pids
}

func exitCode(err error) int {
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return exit.ExitCode()
	}
	return 0
}

func TestGrowTouchesAndStamps(t *testing.T) {
	file := filepath.Join(t.TempDir(), "stamp")
	before := stamp.Now()
	p := start(t, "grow", "-bytes", "16777217", "-thp=false", "-delay", "1h", "-stamp", file)
	eventually(t, "stamp file", func() bool { m, err := stamp.Read(file); return err == nil && m == nil })
	if rss := rssAnon(p.Process.Pid); rss > 12<<20 {
		t.Errorf("before the signal: %d bytes resident; want none of the 16 MiB", rss)
	}
	eventually(t, "17 MiB after SIGUSR1", func() bool {
		// Repeat the signal: before the hog handles it, it has no effect.
		_ = p.Process.Signal(unix.SIGUSR1)
		m, err := stamp.Read(file)
		return err == nil && len(m) == 18 && m[0] > before
	})
	if rss := rssAnon(p.Process.Pid); rss < 16<<20 {
		t.Errorf("after the growth: %d bytes resident; want at least 16 MiB", rss)
	}
	_ = p.Process.Signal(unix.SIGTERM)
	if code := exitCode(<-p.exited); code != exitTerm {
		t.Errorf("after SIGTERM: exit %d; want %d", code, exitTerm)
	}
}

func TestIgnoreTerm(t *testing.T) {
	p := start(t, "hold", "-bytes", "20971520", "-ignore-term")
	eventually(t, "20 MiB", func() bool { return rssAnon(p.Process.Pid) >= 20<<20 })
	_ = p.Process.Signal(unix.SIGTERM)
	_ = p.Process.Signal(unix.SIGKILL)
	err := <-p.exited
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.Sys().(interface{ Signal() unix.Signal }).Signal() != unix.SIGKILL {
		t.Errorf("after SIGTERM and SIGKILL: %v; want an end by SIGKILL", err)
	}
}

func TestForksReplacesKilled(t *testing.T) {
	p := start(t, "forks", "-n", "3", "-bytes", "1")
	eventually(t, "three children", func() bool { return len(children(p.Process.Pid)) == 3 })
	first := children(p.Process.Pid)[0]
	pid, err := strconv.Atoi(first)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "successor", func() bool {
		now := children(p.Process.Pid)
		return len(now) == 3 && !slices.Contains(now, first)
	})
}

func TestForksRelay(t *testing.T) {
	p := start(t, "forks", "-n", "1", "-bytes", "1", "-relay", "1ms")
	seen := map[string]bool{}
	eventually(t, "fifth runner", func() bool {
		for _, pid := range children(p.Process.Pid) {
			seen[pid] = true
		}
		return len(seen) >= 5
	})
}

func TestGrowByThreads(t *testing.T) {
	p := start(t, "grow", "-bytes", "16777217", "-threads", "3")
	eventually(t, "16 MiB", func() bool { return rssAnon(p.Process.Pid) >= 16<<20 })
}

func TestDatabaseSharedBuffer(t *testing.T) {
	p := start(t, "database", "-path", filepath.Join(t.TempDir(), "data"), "-bytes", "1", "-buffer", "16777217")
	eventually(t, "16 MiB of shared memory", func() bool { return rss(p.Process.Pid, "RssShmem:") >= 16<<20 })
}

func TestFiles(t *testing.T) {
	dir := t.TempDir()
	for _, args := range [][]string{
		{"tmpfs", "-dir", dir, "-bytes", "1048577"},
		{"file", "-path", filepath.Join(dir, "hog"), "-bytes", "1048577", "-passes", "1"},
		{"database", "-path", filepath.Join(dir, "hog"), "-bytes", "1048577", "-buffer", "1"},
		{"mapped", "-path", filepath.Join(dir, "hog"), "-bytes", "1048577"},
	} {
		p := start(t, args...)
		eventually(t, "file of 1 MiB and one byte", func() bool {
			st, err := os.Stat(filepath.Join(dir, "hog"))
			return err == nil && st.Size() == 1048577
		})
		_ = p.Process.Signal(unix.SIGTERM)
		<-p.exited
		if err := os.Remove(filepath.Join(dir, "hog")); err != nil {
			t.Fatal(err)
		}
	}
}

func TestManyFiles(t *testing.T) {
	dir := t.TempDir()
	start(t, "files", "-dir", dir, "-n", "100")
	eventually(t, "100 files", func() bool {
		entries, err := os.ReadDir(dir)
		return err == nil && len(entries) == 100
	})
}

func TestBurn(t *testing.T) {
	p := start(t, "burn", "-threads", "2")
	used := map[string]bool{} // threads that have run for 100 ms
	eventually(t, "two threads that compute", func() bool {
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", p.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		for _, task := range tasks {
			content, _ := os.ReadFile(task) // the thread may have ended
			if ran, err := strconv.ParseInt(strings.Fields(string(content) + "0")[0], 10, 64); err == nil && ran >= 100e6 {
				used[task] = true
			}
		}
		return len(used) >= 2
	})
}

func TestJournal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	start(t, "journal", "-path", path, "-bytes", "12288", "-rate", "1048576")
	eventually(t, "second turn", func() bool {
		content, err := os.ReadFile(path)
		return err == nil && len(content) == 3*recordSize && content[0] >= 3
	})
}

// calls notes the calls of record.
type calls []string

func (c *calls) WriteAt(b []byte, at int64) (int, error) {
	*c = append(*c, fmt.Sprintf("write %d at %d", b[0], at))
	return len(b), nil
}

func (c *calls) Sync() error {
	*c = append(*c, "sync")
	if len(*c) == 8 {
		return errors.New("full")
	}
	return nil
}

func TestJournalSyncsEachRecord(t *testing.T) {
	var c calls
	written := 0
	err := record(&c, 3, func() { written++ })
	want := []string{"write 0 at 0", "sync", "write 1 at 4096", "sync", "write 2 at 8192", "sync", "write 3 at 0", "sync"}
	if !slices.Equal(c, want) || written != 3 || err == nil || err.Error() != "sync record 3: full" {
		t.Errorf("record() = %v after %q and %d records; want %q", err, c, written, want)
	}
}

func TestUsage(t *testing.T) {
	for _, tt := range []struct {
		args string
		code int
		says string
	}{
		{"", 2, "usage: hog"},
		{"eat", 2, "usage: hog"},
		{"hold", 2, "-bytes must be positive"},
		{"grow -bytes 1 -rate -1", 2, "-rate"},
		{"grow -bytes x", 2, "invalid value"},
		{"grow -bytes 1 -stamp /nowhere/stamp", 1, "create stamp file"},
		{"forks -n 0", 2, "-n and -bytes"},
		{"bomb -bytes 0", 2, "-bytes must be positive"},
		{"bomb", 1, "process 1 is not a hog"},
		{"tmpfs -bytes 0", 2, "-bytes must be positive"},
		{"tmpfs -bytes 1 -dir /nowhere", 1, "create"},
		{"file -bytes 1", 2, "-path is needed"},
		{"grow -bytes 1 -threads 0", 2, "-threads"},
		{"grow -bytes 1 -threads 2 -rate 1", 2, "-threads"},
		{"database -path /nowhere/data -bytes 1", 2, "-buffer"},
		{"database -path /nowhere/data -bytes 1 -buffer 1", 1, "create"},
		{"mapped -bytes 1", 2, "-path is needed"},
		{"logs -bytes 0", 2, "-bytes must be positive"},
		{"files -n 1", 2, "-dir is needed"},
		{"files -dir /nowhere -n 1", 1, "create file 0"},
		{"burn -threads 0", 2, "-threads must be positive"},
		{"journal -bytes 4096", 2, "-path is needed"},
		{"journal -path /nowhere/journal -bytes 4095", 2, "-bytes must be at least 4096"},
		{"journal -path /nowhere/journal -bytes 4096", 1, "create"},
		{"pause now", 2, `unexpected argument "now"`},
		{"grow -h", 0, "-stamp"},
	} {
		var stderr bytes.Buffer
		if code := run(strings.Fields(tt.args), &stderr); code != tt.code || !strings.Contains(stderr.String(), tt.says) {
			t.Errorf("hog %s = %d, %q; want %d and %q", tt.args, code, stderr.String(), tt.code, tt.says)
		}
	}
}

func TestRateLimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		limiter := newRateLimiter(4 * mebibyte)
		limiter.after(mebibyte)
		if took := time.Since(begin); took != 250*time.Millisecond {
			t.Errorf("1 MiB at 4 MiB/s took %v; want 250ms", took)
		}
		time.Sleep(time.Second) // a sleep that takes too long
		limiter.after(4 * mebibyte)
		if took := time.Since(begin); took != 1250*time.Millisecond {
			t.Errorf("5 MiB at 4 MiB/s with an oversleep took %v; want 1.25s", took)
		}
		newRateLimiter(0).after(1 << 40)
		if took := time.Since(begin); took != 1250*time.Millisecond {
			t.Errorf("without a rate: %v; want no sleep", took)
		}
	})
}
