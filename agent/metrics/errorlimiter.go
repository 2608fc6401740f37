package metrics

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// errorLogInterval is the minimum time between two logged errors that requests
// cause, so that clients can't fill the log.
const errorLogInterval = time.Minute

// errorLimiter drops errors within errorLogInterval of the last one. The exporter
// toolkit logs an error for each request while the web configuration can't be
// read, and every local user can send requests.
type errorLimiter struct {
	slog.Handler
	mu   sync.Mutex
	last time.Time
}

// Handle implements slog.Handler.
func (s *errorLimiter) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelError && !s.due() {
		return nil
	}
	return s.Handler.Handle(ctx, r)
}

func (s *errorLimiter) due() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if now.Sub(s.last) < errorLogInterval {
		return false
	}
	s.last = now
	return true
}
