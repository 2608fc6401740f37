package state

import (
	"context"
	"log/slog"
	"time"
)

// Writer writes the state on request. Requests that come while it writes are answered by one
// more write.
type Writer struct{ requests chan struct{} }

// NewWriter returns a Writer; Run writes.
func NewWriter() *Writer { return &Writer{requests: make(chan struct{}, 1)} }

// Request requests that the state be written soon. It never blocks.
func (w *Writer) Request() {
	select {
	case w.requests <- struct{}{}:
	default:
	}
}

// saveRetryInterval is how long after a failure the state is written again, also without a
// request: the disk may have space again.
const saveRetryInterval = time.Minute

// Run calls save on request until ctx ends, and again after a failure. It logs when failures
// begin, have another cause, and end.
func (w *Writer) Run(ctx context.Context, save func() error, log *slog.Logger) {
	var failing string
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.requests:
		case <-again:
		}
		again = nil
		switch err := save(); {
		case err != nil:
			again = time.After(saveRetryInterval)
			if text := err.Error(); text != failing {
				failing = text
				log.Error(NotSavedMessage, "error", err)
			}
		case failing != "":
			failing = ""
			log.Info("state is saved again")
		}
	}
}
