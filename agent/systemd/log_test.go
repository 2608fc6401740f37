package systemd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/evictd/evictd/kernel/kerneltest"
)

// logged returns what a log writes for the lines that emit logs.
func logged(t *testing.T, f Format, emit func(*slog.Logger)) string {
	t.Helper()
	var b bytes.Buffer
	l := NewLog(&b, f)
	emit(slog.New(l.Handler()))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.Run(ctx); err != nil {
		t.Errorf("Run() = %v; want nil", err)
	}
	return b.String()
}

func TestFormats(t *testing.T) {
	emit := func(l *slog.Logger) {
		l.Debug("trace")
		l.Info("ready", "pods", 3)
		l.With("a", 1).WithGroup("g").Warn("waiting", "time", "now", "line", "x\n<0>y")
		l.Error("stuck")
		l.Log(context.Background(), slog.LevelError+4, "worse")
		l.Log(context.Background(), slog.LevelDebug-4, "finer")
	}
	all := slog.Level(-100)
	tests := []struct {
		format Format
		want   string
	}{
		{Format{Journal: true, Level: all}, `<7>level=DEBUG msg=trace
<6>level=INFO msg=ready pods=3
<4>level=WARN msg=waiting a=1 g.time=now g.line="x\n<0>y"
<3>level=ERROR msg=stuck
<3>level=ERROR+4 msg=worse
<7>level=DEBUG-4 msg=finer
`},
		{Format{Journal: true}, `<6>level=INFO msg=ready pods=3
<4>level=WARN msg=waiting a=1 g.time=now g.line="x\n<0>y"
<3>level=ERROR msg=stuck
<3>level=ERROR+4 msg=worse
`},
		{Format{Journal: true, JSON: true, Level: slog.LevelError}, `<3>{"level":"ERROR","msg":"stuck"}
<3>{"level":"ERROR+4","msg":"worse"}
`},
	}
	for _, tt := range tests {
		if got := logged(t, tt.format, emit); got != tt.want {
			t.Errorf("%+v logs\n%s; want\n%s", tt.format, got, tt.want)
		}
	}

	text := logged(t, Format{Level: slog.LevelError}, emit)
	if !strings.HasPrefix(text, "time=20") || !strings.Contains(text, " level=ERROR msg=stuck\n") {
		t.Errorf("text logs %q; want lines with a time", text)
	}
	var line struct{ Time, Level, Msg string }
	first, _, _ := strings.Cut(logged(t, Format{JSON: true}, emit), "\n")
	if err := json.Unmarshal([]byte(first), &line); err != nil || line.Time == "" || line.Level != "INFO" || line.Msg != "ready" {
		t.Errorf("JSON logs %s (%v); want time, level and msg", first, err)
	}
}

// gate is a sink that blocks until it is opened.
type gate struct {
	open chan struct{}
	kerneltest.Buffer
}

func (g *gate) Write(p []byte) (int, error) {
	<-g.open
	return g.Buffer.Write(p)
}

// TestBlockedReader checks that logging does not block while the reader does, that
// lines that don't fit are dropped and counted, and that the log reports their
// number afterwards.
func TestBlockedReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gate{open: make(chan struct{})}
		l := NewLog(g, Format{Journal: true})
		log := slog.New(l.Handler())
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- l.Run(ctx) }()
		const lines = 20000
		for i := range lines {
			log.Info("line", "n", i)
		}
		synctest.Wait()
		dropped := l.Dropped()
		if dropped == 0 || dropped >= lines {
			t.Fatalf("Dropped() = %d of %d; want some", dropped, lines)
		}
		close(g.open)
		synctest.Wait()
		out := g.String()
		var want strings.Builder
		for i := range lines - int(dropped) {
			fmt.Fprintf(&want, "<6>level=INFO msg=line n=%d\n", i)
		}
		fmt.Fprintf(&want, "<4>level=WARN msg=\"log lines dropped\" lines=%d\n", dropped)
		if out != want.String() {
			t.Errorf("the log ends in %q; want the oldest lines, whole and in order, and %d dropped", out[max(0, len(out)-200):], dropped)
		}
		log.Info("after")
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v; want nil", err)
		}
		log.Info("at the very end")
		if out := g.String(); !strings.HasSuffix(out, "<6>level=INFO msg=after\n<6>level=INFO msg=\"at the very end\"\n") {
			t.Errorf("the log ends in %q; want the last lines", out[max(0, len(out)-100):])
		}
	})
}

// TestReaderThatBlocksForever checks that Run ends all the same.
func TestReaderThatBlocksForever(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gate{open: make(chan struct{})}
		l := NewLog(g, Format{})
		log := slog.New(l.Handler())
		log.Info("lost")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		began := time.Now()
		if err := l.Run(ctx); err == nil || time.Since(began) != flushTimeout {
			t.Errorf("Run() = %v after %v; want an error after %v", err, time.Since(began), flushTimeout)
		}
		log.Info("dropped")
		if got := l.Dropped(); got != 1 {
			t.Errorf("Dropped() = %d; want 1", got)
		}
		close(g.open) // ends the writing goroutine
	})
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, syscall.EPIPE }

func TestBrokenReader(t *testing.T) {
	l := NewLog(brokenPipe{}, Format{})
	log := slog.New(l.Handler())
	log.Info("one")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.Run(ctx); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("Run() = %v; want %v", err, syscall.EPIPE)
	}
	if got := l.Dropped(); got != 1 {
		t.Errorf("Dropped() = %d; want 1", got)
	}
	log.Info("two")
	if got := l.Dropped(); got != 2 {
		t.Errorf("Dropped() = %d; want 2", got)
	}
}

// fullDisk is a sink with room for a number of bytes.
type fullDisk struct {
	room int
	b    bytes.Buffer
}

func (d *fullDisk) Write(p []byte) (int, error) {
	n := min(len(p), d.room)
	d.room -= n
	d.b.Write(p[:n])
	if n < len(p) {
		return n, syscall.ENOSPC
	}
	return n, nil
}

// TestFullDisk checks that lines that a full disk refuses are counted and reported
// after the next successful write, and that a cut line is ended.
func TestFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		line := func(n int) string { return fmt.Sprintf("<6>level=INFO msg=line n=%d\n", n) }
		d := &fullDisk{room: len(line(0)) + 10}
		l := NewLog(d, Format{Journal: true})
		log := slog.New(l.Handler())
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- l.Run(ctx) }()
		for i := range 3 {
			log.Info("line", "n", i)
			synctest.Wait()
		}
		if got := l.Dropped(); got != 2 {
			t.Errorf("Dropped() = %d; want 2", got)
		}
		d.room = 1 + len(line(3)) // and no room for the report of dropped lines
		log.Info("line", "n", 3)
		synctest.Wait()
		d.room = 1000
		log.Info("line", "n", 4)
		synctest.Wait()
		cancel()
		if err := <-done; !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("Run() = %v; want %v", err, syscall.ENOSPC)
		}
		want := line(0) + line(1)[:10] + "\n" + line(3) + line(4) + "<4>level=WARN msg=\"log lines dropped\" lines=2\n"
		if got := d.b.String(); got != want {
			t.Errorf("the log is\n%s; want\n%s", got, want)
		}
	})
}

func TestHugeLine(t *testing.T) {
	var b bytes.Buffer
	l := NewLog(&b, Format{Journal: true})
	log := slog.New(l.Handler())
	log.Info(strings.Repeat("x", logBuffer))
	log.Info("small")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if got, want := b.String(), "<6>level=INFO msg=small\n<4>level=WARN msg=\"log lines dropped\" lines=1\n"; got != want {
		t.Errorf("a line larger than the buffer logs %q; want %q", got, want)
	}
}

// TestManyWriters checks, with the race detector, that no line is split or lost.
func TestManyWriters(t *testing.T) {
	var b bytes.Buffer
	l := NewLog(&b, Format{Journal: true})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			log := slog.New(l.Handler()).With("writer", i)
			for j := range 50 {
				log.Info("line", "n", j)
			}
		})
	}
	wg.Wait()
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
	if len(lines) != 8*50 {
		t.Errorf("%d lines were written; want %d", len(lines), 8*50)
	}
	for _, line := range lines {
		var writer, n int
		if _, err := fmt.Sscanf(line, "<6>level=INFO msg=line writer=%d n=%d", &writer, &n); err != nil {
			t.Fatalf("line %q is split: %v", line, err)
		}
	}
}

// TestToJournal runs this test binary with its standard error on a pipe, and with the
// JOURNAL_STREAM that a service manager would set.
func TestToJournal(t *testing.T) {
	if os.Getenv("EVICTD_TEST_TO_JOURNAL") != "" {
		fmt.Println("to journal:", ToJournal())
		return
	}
	tests := []struct {
		name   string
		stream func(own string) string
		want   bool
	}{
		{"not set", func(string) string { return "" }, false},
		{"standard error", func(own string) string { return own }, true},
		{"another file", func(string) string { return "8:1" }, false},
		{"garbage", func(string) string { return "journal" }, false},
	}
	for _, tt := range tests {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		var st syscall.Stat_t
		if err := syscall.Fstat(int(w.Fd()), &st); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(os.Args[0], "-test.run=^TestToJournal$")
		cmd.Env = append(os.Environ(), "EVICTD_TEST_TO_JOURNAL=1", "JOURNAL_STREAM="+tt.stream(fmt.Sprintf("%d:%d", st.Dev, st.Ino)))
		cmd.Stderr = w
		out, err := cmd.Output()
		w.Close()
		stderr, _ := io.ReadAll(r)
		r.Close()
		if err != nil {
			t.Fatalf("%v: %s", err, stderr)
		}
		if want := fmt.Sprintf("to journal: %v\n", tt.want); !strings.Contains(string(out), want) {
			t.Errorf("with JOURNAL_STREAM for %s: %q; want %q", tt.name, out, want)
		}
	}
}
