package controller

import (
	"context"
	"log/slog"
)

// libraryHandler handles the log records of client-go and controller-runtime. Their information, a line for each
// watch that starts, is for debugging. So are their errors after the stop was ordered: it cancels requests.
type libraryHandler struct {
	slog.Handler
	// running ends when the stop is ordered.
	running context.Context
}

func (h libraryHandler) level(l slog.Level) slog.Level {
	if l < slog.LevelWarn || h.running.Err() != nil {
		return min(l, slog.LevelDebug)
	}
	return l
}

// Enabled implements slog.Handler.
func (h libraryHandler) Enabled(ctx context.Context, l slog.Level) bool {
	return h.Handler.Enabled(ctx, h.level(l))
}

// Handle implements slog.Handler.
func (h libraryHandler) Handle(ctx context.Context, r slog.Record) error {
	r.Level = h.level(r.Level)
	if !h.Handler.Enabled(ctx, r.Level) {
		return nil // the stop was ordered since Enabled was called
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h libraryHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return libraryHandler{h.Handler.WithAttrs(attrs), h.running}
}

// WithGroup implements slog.Handler.
func (h libraryHandler) WithGroup(name string) slog.Handler {
	return libraryHandler{h.Handler.WithGroup(name), h.running}
}
