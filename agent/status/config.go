package status

import (
	"context"
	"time"

	"github.com/evictd/evictd/agent/config"
	"github.com/evictd/evictd/agent/control"
)

// LoadResult is the result of loading the configuration.
type LoadResult struct {
	At    time.Time // of the last success
	Error string    // of the last attempt to reload
	// Changed lists the fields that the last reload changed. NeedsRestart lists the
	// fields whose new value is only read when evictd starts.
	Changed      []config.Change
	NeedsRestart []string
}

// LoadResult returns the result of the last load.
func (b *Backend) LoadResult() LoadResult { return *b.loadResult.Load() }

// SetLoadResult sets the result of the last load.
func (b *Backend) SetLoadResult(l LoadResult) { b.loadResult.Store(&l) }

// Reload implements control.Source.
func (b *Backend) Reload(ctx context.Context) error { return b.o.Reload(ctx) }

// configStatus returns the status of the configuration, except its files.
func (b *Backend) configStatus() (c control.Config) {
	l := b.loadResult.Load()
	c.LoadedAt, c.LastReloadError, c.NeedsRestart = l.At, l.Error, l.NeedsRestart
	for _, change := range l.Changed {
		c.Changed = append(c.Changed, control.ConfigChange(change))
	}
	return c
}
