package metrics

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// errorLogInterval is how often an error is logged at most that requests cause.
const errorLogInterval = time.Minute

// sparing drops errors that come sooner than errorLogInterval after another. The
// exporter toolkit logs one for each request while the web configuration can't be
// read, and every local user can send requests.
type sparing struct {
	slog.Handler
	mu   sync.Mutex
	last time.Time
}

// Handle implements slog.Handler.
func (s *sparing) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelError && !s.due() {
		return nil
	}
	return s.Handler.Handle(ctx, r)
}

func (s *sparing) due() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if now.Sub(s.last) < errorLogInterval {
		return false
	}
	s.last = now
	return true
}
