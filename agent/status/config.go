package status

import (
	"context"
	"time"

	"github.com/evictd/evictd/agent/config"
	"github.com/evictd/evictd/agent/control"
)

// Loading is the result of loading the configuration.
type Loading struct {
	At    time.Time // of the last success
	Error string    // of the last attempt to reload
	// Changed lists the fields that the last reload changed. NeedsRestart lists the
	// fields whose new value is only read when evictd starts.
	Changed      []config.Change
	NeedsRestart []string
}

// Loading returns the result of the last load.
func (b *Board) Loading() Loading { return *b.loadResult.Load() }

// SetLoading sets the result of the last load.
func (b *Board) SetLoading(l Loading) { b.loadResult.Store(&l) }

// Reload implements control.Source.
func (b *Board) Reload(ctx context.Context) error { return b.o.Reload(ctx) }

// configStatus returns the status of the configuration, except its files.
func (b *Board) configStatus() (c control.Config) {
	l := b.loadResult.Load()
	c.LoadedAt, c.LastReloadError, c.NeedsRestart = l.At, l.Error, l.NeedsRestart
	for _, change := range l.Changed {
		c.Changed = append(c.Changed, control.ConfigChange(change))
	}
	return c
}
