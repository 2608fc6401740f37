package state

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// Writer writes the state and its copy on request. Requests that come while it writes are answered by
// one more write.
type Writer struct{ requests, copies chan struct{} }

// NewWriter returns a Writer; Run writes.
func NewWriter() *Writer {
	return &Writer{requests: make(chan struct{}, 1), copies: make(chan struct{}, 1)}
}

// Request requests that the state be written soon. It never blocks.
func (w *Writer) Request() {
	for _, requests := range []chan struct{}{w.copies, w.requests} {
		select {
		case requests <- struct{}{}:
		default:
		}
	}
}

// saveRetryInterval is how long after a failure the state is written again, also without a
// request: the disk may have space again.
const saveRetryInterval = time.Minute

// Run calls save and saveCopy on request until ctx ends, concurrently because save may wait for a disk.
// After a failure it calls save again. It logs when failures of save begin, have another cause, and end,
// and the first failure of saveCopy.
func (w *Writer) Run(ctx context.Context, save, saveCopy func() error, log *slog.Logger) {
	var copying sync.WaitGroup
	defer copying.Wait()
	copying.Go(func() { w.runCopies(ctx, saveCopy, log) })
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

func (w *Writer) runCopies(ctx context.Context, saveCopy func() error, log *slog.Logger) {
	failed := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.copies:
		}
		if err := saveCopy(); err != nil && !failed {
			failed = true
			log.Warn("copy of the state is not saved; an evictd that is killed while its disk is slow would lose victims in flight", "error", err)
		}
	}
}
