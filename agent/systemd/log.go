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
	// logBuffer is the maximum size of the queue in bytes.
	logBuffer = 256 << 10
	// flushTimeout bounds how long Run waits at its end for a sink that blocks. It is
	// a part of the unit's TimeoutStopSec=10s.
	flushTimeout = 2 * time.Second
)

// Format is the format of log lines.
type Format struct {
	JSON  bool
	Level slog.Leveler // nil means Info
	// Journal omits the time, which the journal adds, and puts the priority in front
	// of each line (sd-daemon(3)).
	Journal bool
}

// ToJournal reports whether standard error is connected to the journal: whether it
// is the file with the device and inode in JOURNAL_STREAM.
func ToJournal() bool {
	yes, err := journal.StderrIsJournalStream()
	return err == nil && yes
}

// Log queues lines in memory and writes them on one goroutine, so that a slow or
// blocked reader does not delay logging. If the queue is full, a new line is dropped
// and counted; the older lines stay, because they show the cause. Lines that could
// not be written, for example to a full disk, are counted too.
type Log struct {
	sink    lineSink
	format  Format
	wake    chan struct{}
	dropped atomic.Uint64 // lines that did not fit into the queue
	failed  atomic.Uint64 // lines that could not be written

	mu     sync.Mutex
	queue  []byte // whole lines
	spare  []byte // the second buffer
	direct bool   // Run has ended: lines are written directly to the sink
	closed bool   // Run has ended and the sink blocks: lines are dropped
}

// NewLog returns a log to the sink, usually standard error. Nothing is written
// before Run.
func NewLog(sink io.Writer, format Format) *Log {
	return &Log{
		sink: lineSink{Writer: sink}, format: format, wake: make(chan struct{}, 1),
		queue: make([]byte, 0, logBuffer), spare: make([]byte, 0, logBuffer),
	}
}

// Handler returns the handler for slog.New.
func (l *Log) Handler() slog.Handler { return l.format.handler(queueWriter{l}) }

// Dropped returns the number of lines dropped so far, including those that could
// not be written.
func (l *Log) Dropped() uint64 { return l.dropped.Load() + l.failed.Load() }

// Run writes lines until ctx ends, and then those still queued. Later lines are
// written directly. If the sink still blocks flushTimeout after the end, Run returns
// an error and does not write to it again.
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
		return errors.New("write log: the reader blocks; lines were lost")
	}
}

// write is the only goroutine that writes to the sink. After a write error, which
// loses the lines being written, it continues; it returns the first error. After the
// next successful write it logs how many lines were dropped.
func (l *Log) write(ctx context.Context) error {
	var first error
	handler := l.format.handler(&l.sink)
	reported := uint64(0)
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
			l.reuse(lines)
			if dropped += l.failed.Load(); err == nil && dropped > reported && logDropped(handler, dropped-reported) == nil {
				reported = dropped
			}
		}
		if end {
			return first
		}
	}
}

// put writes lines, and counts those that could not be written.
func (l *Log) put(lines []byte) error {
	n, err := l.sink.Write(lines)
	if err != nil {
		l.failed.Add(uint64(bytes.Count(lines[n:], []byte{'\n'})))
	}
	return err
}

// logDropped logs the number of dropped lines. It returns the error of the sink, and
// nil if the level excludes warnings.
func logDropped(h slog.Handler, lines uint64) error {
	if !h.Enabled(context.Background(), slog.LevelWarn) {
		return nil
	}
	r := slog.NewRecord(time.Now(), slog.LevelWarn, "log lines dropped", 0)
	r.Add("lines", lines)
	return h.Handle(context.Background(), r)
}

// lineSink starts a new line after a write error that cut one.
type lineSink struct {
	io.Writer
	cut bool
}

// Write writes whole lines.
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

// take returns the queued lines, and the number of lines dropped so far. At the end,
// when the queue is empty, it makes later lines go directly to the sink.
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

func (l *Log) reuse(buffer []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.spare = buffer[:0]
}

// queueWriter appends lines to the queue of a log.
type queueWriter struct{ *Log }

// Write queues one line, or drops it as a whole. It never waits for the sink while
// Run is running.
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
