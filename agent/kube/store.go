package kube

import (
	"context"
	"io"
	"log/slog"
	"time"
)

const (
	// saveInterval is how often changed facts are saved. A crash loses the facts about the
	// pods of this time until evictd-kube connects again.
	saveInterval = 10 * time.Second
	// ageSaveInterval is how often facts are saved that are unchanged, for their age, and how often
	// at most while Facts.Busy is true, also if that fails.
	ageSaveInterval = 5 * time.Minute
)

// Store saves the facts. agent/state implements it.
type Store interface {
	// SaveFacts replaces the saved facts by what write writes.
	SaveFacts(write func(io.Writer) error) error
	// LoadFacts returns the saved facts; nil and no error if there are none.
	LoadFacts() ([]byte, error)
	// RejectFacts moves saved facts aside that could not be decoded. It returns an error
	// that wraps cause and names the file.
	RejectFacts(cause error) error
}

// Load loads the facts that an earlier run saved, before the first session. It returns an
// error, and loads nothing, if they can't be used.
func (f *Facts) Load(store Store) error {
	content, err := store.LoadFacts()
	if err != nil || content == nil {
		return err
	}
	if err := f.Restore(content, time.Now()); err != nil {
		return store.RejectFacts(err)
	}
	return nil
}

// SaveChanges saves the facts after changes, unless Busy is true, and every ageSaveInterval, until ctx
// ends, and then once more. It logs when failures begin or have another cause.
func (f *Facts) SaveChanges(ctx context.Context, store Store, log *slog.Logger) {
	ticker := time.NewTicker(saveInterval)
	defer ticker.Stop()
	savedVersion, savedAt, failing := f.Version(), time.Now(), ""
	triedAt := savedAt
	save := func() {
		triedAt = time.Now()
		var version uint64
		err := store.SaveFacts(func(w io.Writer) (err error) {
			version, err = f.Encode(w)
			return err
		})
		if err != nil {
			if text := err.Error(); text != failing {
				failing = text
				log.Error("facts about pods are not saved; a restart would lose them until evictd-kube connects", "error", err)
			}
			return
		}
		savedVersion, savedAt, failing = version, time.Now(), ""
	}
	for {
		select {
		case <-ctx.Done():
			save()
			return
		case <-ticker.C:
			due := f.Version() != savedVersion || time.Since(savedAt) >= ageSaveInterval
			if f.Busy != nil && f.Busy() {
				due = time.Since(triedAt) >= ageSaveInterval
			}
			if due {
				save()
			}
		}
	}
}
