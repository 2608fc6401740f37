package status

import (
	"context"
	"time"

	"github.com/evictd/evictd/agent/config"
	"github.com/evictd/evictd/agent/control"
)

// Loading is how the configuration came into force.
type Loading struct {
	At    time.Time
	Error string // of the last attempt to reload
	// Changed is what the last reload changed; NeedsRestart names the fields
	// whose new value is only read when evictd starts.
	Changed      []config.Change
	NeedsRestart []string
}

// Loading returns how the configuration came into force.
func (b *Board) Loading() Loading { return *b.loading.Load() }

// SetLoading changes that.
func (b *Board) SetLoading(l Loading) { b.loading.Store(&l) }

// Reload implements control.Source.
func (b *Board) Reload(ctx context.Context) error { return b.o.Reload(ctx) }

// configStatus describes the configuration in force.
func (b *Board) configStatus() (c control.Config) {
	l := b.loading.Load()
	c.LoadedAt, c.LastReloadError, c.NeedsRestart = l.At, l.Error, l.NeedsRestart
	for _, change := range l.Changed {
		c.Changed = append(c.Changed, control.ConfigChange(change))
	}
	return c
}
