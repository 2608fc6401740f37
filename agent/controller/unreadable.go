package controller

import (
	"log/slog"
	"sync"
	"time"
)

// The back-off of reads that fail.
const firstReadBackoff, longestReadBackoff = time.Second, 30 * time.Second

// unreadable remembers which reads fail, so that each failure is logged once and repeated with a back-off.
type unreadable struct {
	log *slog.Logger

	mu    sync.Mutex
	parts map[string]failure // by what is read
}

type failure struct {
	text    string
	backoff time.Duration
	next    time.Time
}

// read calls f unless it failed recently, and reports whether f succeeded.
func (u *unreadable) read(part string, f func() error) bool {
	u.mu.Lock()
	last, failed := u.parts[part]
	u.mu.Unlock()
	if failed && time.Now().Before(last.next) {
		return false
	}
	err := f()
	u.mu.Lock()
	defer u.mu.Unlock()
	if err == nil {
		if failed {
			u.log.Info("read again after failures", "object", part)
			delete(u.parts, part)
		}
		return true
	}
	if err.Error() != last.text {
		u.log.Warn("could not read; it is unknown until a read succeeds", "object", part, "error", err)
	}
	backoff := min(max(2*last.backoff, firstReadBackoff), longestReadBackoff)
	if u.parts == nil {
		u.parts = make(map[string]failure)
	}
	u.parts[part] = failure{err.Error(), backoff, time.Now().Add(backoff)}
	return false
}

// next returns when the first of the failed reads is repeated, zero if there is none. One that is due is repeated only
// after those before it succeeded, so next is never closer than firstReadBackoff.
func (u *unreadable) next() time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	var first time.Time
	for _, f := range u.parts {
		if first.IsZero() || f.next.Before(first) {
			first = f.next
		}
	}
	if soon := time.Now().Add(firstReadBackoff); !first.IsZero() && first.Before(soon) {
		return soon
	}
	return first
}
