package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/evictd/evictd/agent/config"
	"github.com/evictd/evictd/agent/control"
)

// loading is how the configuration came into force.
type loading struct {
	at    time.Time
	error string // of the last attempt to reload
	// changed is what the last reload changed; needsRestart names the fields
	// whose new value is only read when evictd starts.
	changed      []config.Change
	needsRestart []string
}

// reload reads the configuration again on SIGHUP and on a command of the control
// socket. One that is wrong changes nothing.
func (d *daemon) reload(ctx context.Context) {
	inForce := d.config
	for {
		var answer chan<- error
		select {
		case <-ctx.Done():
			return
		case <-d.options.Reload:
		case answer = <-d.board.reloads:
		}
		d.notifier.Reloading()
		cfg, err := d.loadAgain(ctx, inForce)
		if cfg != nil {
			inForce = cfg
		}
		status := "configuration not reloaded"
		if err == nil {
			status = d.board.statusLine()
		}
		d.notifier.Reloaded(status)
		if answer != nil {
			answer <- err
		}
	}
}

// loadAgain reads the configuration and puts it into force, and returns it.
func (d *daemon) loadAgain(ctx context.Context, before *config.Config) (*config.Config, error) {
	o := d.options
	cfg, err := config.Load(config.Options{Path: o.ConfigPath, PathGiven: o.ConfigGiven, KubeletPath: o.KubeletConfigPath, DryRun: o.DryRun})
	if err != nil {
		d.metrics.ConfigRejected()
		rejected := *d.board.loaded.Load()
		rejected.error = err.Error()
		d.board.loaded.Store(&rejected)
		d.log.Error("configuration not reloaded, the old one stays in force", "error", err)
		return nil, err
	}
	if err := d.loop.Reload(ctx, cfg); err != nil {
		return nil, err
	}
	d.inventory.Configure(cfg.TrustAnnotations, cfg.Kubelet == config.KubeletAbsent)
	d.reclaimer.Configure(reclaimPolicy(cfg))
	d.arm(cfg)
	now := &loading{at: time.Now(), needsRestart: needRestart(d.config, cfg)}
	d.metrics.ConfigLoaded(now.at)
	if now.changed, err = cfg.Changes(before); err != nil {
		d.log.Error("the changes of the configuration can't be listed", "error", err)
	}
	d.board.loaded.Store(now)
	d.log.Info("configuration reloaded", "files", cfg.Files, "changed", changesText(now.changed))
	if len(now.needsRestart) > 0 {
		d.log.Warn("changed configuration is in force after a restart only", "fields", now.needsRestart)
	}
	for _, n := range cfg.Notices {
		d.log.Warn("configuration", "notice", n.String())
	}
	return cfg, nil
}

// loggedChanges is how many changes a log line lists: a file may have thousands.
const loggedChanges = 20

// changesText lists changes for a log line.
func changesText(changes []config.Change) string {
	if len(changes) == 0 {
		return "nothing"
	}
	var texts []string
	for i, c := range changes {
		if i == loggedChanges {
			texts = append(texts, fmt.Sprintf("and %d more", len(changes)-i))
			break
		}
		switch {
		case c.Before == "":
			texts = append(texts, c.Field+": now "+c.After)
		case c.After == "":
			texts = append(texts, c.Field+": no longer "+c.Before)
		default:
			texts = append(texts, c.Field+": "+c.Before+" -> "+c.After)
		}
	}
	return strings.Join(texts, "; ")
}

// Reload implements control.Source.
func (b *board) Reload(ctx context.Context) error {
	answer := make(chan error, 1)
	select {
	case b.reloads <- answer:
	case <-ctx.Done():
		return errLoadingLate
	}
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return errLoadingLate
	}
}

var errLoadingLate = errors.New("the configuration is not in force yet, evictd is busy; evictctl status shows when it is")

// configStatus describes the configuration in force.
func (b *board) configStatus() (c control.Config) {
	l := b.loaded.Load()
	if l == nil {
		return c
	}
	c.LoadedAt, c.LastReloadError, c.NeedsRestart = l.at, l.error, l.needsRestart
	for _, change := range l.changed {
		c.Changed = append(c.Changed, control.ConfigChange(change))
	}
	return c
}

// needRestart names the fields that differ and are only read when evictd starts.
func needRestart(started, now *config.Config) (fields []string) {
	if now.RuntimeEndpoint != started.RuntimeEndpoint {
		fields = append(fields, "runtimeEndpoint")
	}
	if now.NodefsPath != started.NodefsPath {
		fields = append(fields, "nodefsPath")
	}
	if now.CgroupRoot != started.CgroupRoot {
		fields = append(fields, "cgroupRoot")
	}
	if now.MemoryAccounting != started.MemoryAccounting {
		fields = append(fields, "memoryAccounting")
	}
	if now.Notification != started.Notification {
		fields = append(fields, "notification")
	}
	if now.Pressure.Memory.Full != started.Pressure.Memory.Full {
		fields = append(fields, "pressure.memory.full")
	}
	return fields
}
