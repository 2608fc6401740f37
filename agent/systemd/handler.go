package systemd

import (
	"context"
	"io"
	"log/slog"
	"slices"
	"time"
)

// handler returns the slog handler that writes lines of the format to w, each
// with one Write.
func (f Format) handler(w io.Writer) slog.Handler {
	if !f.Journal {
		return f.plain(w)
	}
	var h journalHandler
	for i, p := range priorities {
		h[i] = f.plain(prefixWriter{w: w, prefix: p.prefix})
	}
	return h
}

func (f Format) plain(w io.Writer) slog.Handler {
	options := &slog.HandlerOptions{Level: f.Level}
	if f.JSON {
		return slog.NewJSONHandler(w, options)
	}
	return slog.NewTextHandler(w, options)
}

// ErrorPrefix is the prefix of a line with the journal's priority "err"
// (sd-daemon(3)).
const ErrorPrefix = "<3>"

// priorities are the journal's for slog's levels, the highest first.
var priorities = [...]struct {
	from   slog.Level
	prefix string
}{
	{slog.LevelError, ErrorPrefix},
	{slog.LevelWarn, "<4>"},
	{slog.LevelInfo, "<6>"},
	{slog.LevelDebug, "<7>"},
}

// journalHandler has one handler for each priority, with its own prefix.
type journalHandler [len(priorities)]slog.Handler

// Enabled reports whether lines of the level are written.
func (h journalHandler) Enabled(ctx context.Context, l slog.Level) bool { return h[0].Enabled(ctx, l) }

// Handle writes the record with its priority and without its time, which the
// journal adds. Levels below debug have the priority of debug.
func (h journalHandler) Handle(ctx context.Context, r slog.Record) error {
	r.Time = time.Time{}
	for i, p := range priorities {
		if r.Level >= p.from {
			return h[i].Handle(ctx, r)
		}
	}
	return h[len(h)-1].Handle(ctx, r)
}

// WithAttrs returns the handler with further attributes.
func (h journalHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	for i := range h {
		h[i] = h[i].WithAttrs(attrs)
	}
	return h
}

// WithGroup returns the handler with a group opened.
func (h journalHandler) WithGroup(name string) slog.Handler {
	for i := range h {
		h[i] = h[i].WithGroup(name)
	}
	return h
}

// prefixWriter puts a prefix in front of each line. Each Write has one line.
type prefixWriter struct {
	w      io.Writer
	prefix string
}

// Write writes the line and its prefix together.
func (p prefixWriter) Write(line []byte) (int, error) {
	if _, err := p.w.Write(slices.Concat([]byte(p.prefix), line)); err != nil {
		return 0, err
	}
	return len(line), nil
}
