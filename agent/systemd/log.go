package systemd

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coreos/go-systemd/v22/journal"
)

const (
	// logBuffer is how many bytes of log wait for the writer at most.
	logBuffer = 256 << 10
	// flushTimeout is how long Run waits, at its end, for a reader that blocks.
	flushTimeout = 2 * time.Second
)

// Format is how log lines look.
type Format struct {
	JSON  bool
	Level slog.Leveler // nil is Info
	// Journal makes the lines fit for the journal: without a time, which it
	// adds itself, and with their priority in front (sd-daemon(3)).
	Journal bool
}

// ToJournal reports whether standard error is connected to the journal: whether
// it is the file that JOURNAL_STREAM names by device and inode.
func ToJournal() bool {
	yes, err := journal.StderrIsJournalStream()
	return err == nil && yes
}

// Log takes lines into a bounded memory and writes them from there, so that a
// reader that is slow, or blocks, delays nobody who logs. A line for which
// there is no room is dropped and counted; those before it tell how it came to
// that. So is one that could not be written, because the disk is full, say.
type Log struct {
	sink    lineSink
	format  Format
	wake    chan struct{}
	dropped atomic.Uint64 // for want of room
	failed  atomic.Uint64 // for want of a sink that takes them

	mu     sync.Mutex
	queue  []byte // whole lines
	spare  []byte // the buffer that is not the queue
	direct bool   // Run is over: lines go straight to the sink
	closed bool   // Run is over and the sink blocks: lines are dropped
}

// NewLog returns a log to the sink, usually standard error. Nothing is written
// before Run.
func NewLog(sink io.Writer, format Format) *Log {
	return &Log{
		sink: lineSink{Writer: sink}, format: format, wake: make(chan struct{}, 1),
		queue: make([]byte, 0, logBuffer), spare: make([]byte, 0, logBuffer),
	}
}

// Handler returns what slog.New takes.
func (l *Log) Handler() slog.Handler { return l.format.handler(queueWriter{l}) }

// Dropped returns how many lines were dropped so far, those that could not be
// written among them.
func (l *Log) Dropped() uint64 { return l.dropped.Load() + l.failed.Load() }

// Run writes until ctx ends, and then what is left. What is logged after that
// is written at once. A sink that still blocks two seconds after the end makes
// Run return an error and is left alone.
func (l *Log) Run(ctx context.Context) error {
	written := make(chan error, 1)
	go func() { written <- l.write(ctx) }()
	select {
	case err := <-written:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-written:
		return err
	case <-time.After(flushTimeout):
		l.mu.Lock()
		defer l.mu.Unlock()
		l.closed = true
		return errors.New("write log: the reader blocks, lines were lost")
	}
}

// write is the one goroutine that touches the sink. An error of the sink loses
// what was being written and does not stop it; the first is returned. How many
// lines were dropped is told after the first that it takes again.
func (l *Log) write(ctx context.Context) error {
	var first error
	note := l.format.handler(&l.sink)
	told := uint64(0)
	for end := false; ; {
		select {
		case <-l.wake:
		case <-ctx.Done():
			end = true
		}
		for lines, dropped := l.take(end); len(lines) > 0; lines, dropped = l.take(end) {
			err := l.put(lines)
			if err != nil {
				first = cmp.Or(first, fmt.Errorf("write log: %w", err))
			}
			l.giveBack(lines)
			if dropped += l.failed.Load(); err == nil && dropped > told && tellDropped(note, dropped-told) == nil {
				told = dropped
			}
		}
		if end {
			return first
		}
	}
}

// put writes lines, and counts those that the sink does not take.
func (l *Log) put(lines []byte) error {
	n, err := l.sink.Write(lines)
	if err != nil {
		l.failed.Add(uint64(bytes.Count(lines[n:], []byte{'\n'})))
	}
	return err
}

// tellDropped writes that lines were dropped; a level that has no room for that
// is none of the sink's faults.
func tellDropped(h slog.Handler, lines uint64) error {
	if !h.Enabled(context.Background(), slog.LevelWarn) {
		return nil
	}
	r := slog.NewRecord(time.Now(), slog.LevelWarn, "log lines dropped", 0)
	r.Add("lines", lines)
	return h.Handle(context.Background(), r)
}

// lineSink keeps a line that was cut by an error apart from what is written
// after it.
type lineSink struct {
	io.Writer
	cut bool
}

// Write is the sink's, for whole lines.
func (s *lineSink) Write(lines []byte) (int, error) {
	if s.cut {
		if _, err := s.Writer.Write([]byte{'\n'}); err != nil {
			return 0, err
		}
		s.cut = false
	}
	n, err := s.Writer.Write(lines)
	s.cut = n > 0 && n < len(lines) && lines[n-1] != '\n'
	return n, err
}

// take returns the lines that wait, and how many lines had been dropped, after
// them, by then. At the end, when none wait, those to come are written
// directly.
func (l *Log) take(end bool) (lines []byte, dropped uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines = l.queue
	if len(lines) == 0 {
		l.direct = end
		return nil, 0
	}
	l.queue, l.spare = l.spare[:0], nil
	return lines, l.dropped.Load()
}

func (l *Log) giveBack(buffer []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.spare = buffer[:0]
}

// queueWriter takes lines into the queue of a log.
type queueWriter struct{ *Log }

// Write takes one line, whole or not at all. It never waits for the sink while
// the log runs.
func (w queueWriter) Write(line []byte) (int, error) {
	w.mu.Lock()
	switch {
	case w.direct:
		defer w.mu.Unlock()
		return len(line), w.put(line)
	case w.closed, len(w.queue)+len(line) > logBuffer:
		w.dropped.Add(1)
		w.mu.Unlock()
		return len(line), nil
	}
	w.queue = append(w.queue, line...)
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
	return len(line), nil
}
