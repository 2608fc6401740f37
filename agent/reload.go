package agent

import (
	"context"
	"errors"
	"time"

	"github.com/evictd/evictd/agent/config"
	"github.com/evictd/evictd/agent/status"
)

// reload reads the configuration again on SIGHUP and on request of the control socket. A
// wrong one changes nothing.
func (d *daemon) reload(ctx context.Context) {
	inForce := d.config
	for {
		var answer chan<- error
		select {
		case <-ctx.Done():
			return
		case <-d.options.Reload:
		case answer = <-d.reloadRequests:
		}
		d.notifier.Reloading()
		cfg, err := d.reloadConfig(ctx, inForce)
		if cfg != nil {
			inForce = cfg
		}
		line := "configuration not reloaded"
		if err == nil {
			line = d.statusBackend.StatusLine()
		}
		d.notifier.Reloaded(line)
		if answer != nil {
			answer <- err
		}
	}
}

// reloadConfig reads the configuration, puts it into force and returns it. On an error the
// old one stays in force.
func (d *daemon) reloadConfig(ctx context.Context, before *config.Config) (*config.Config, error) {
	o := d.options
	cfg, err := config.Load(config.Options{Path: o.ConfigPath, PathGiven: o.ConfigGiven, KubeletPath: o.KubeletConfigPath, DryRun: o.DryRun})
	if err != nil {
		d.metrics.ConfigRejected()
		rejected := d.statusBackend.LoadResult()
		rejected.Error = err.Error()
		d.statusBackend.SetLoadResult(rejected)
		d.log.Error("configuration not reloaded, the old one stays in force", "error", err)
		return nil, err
	}
	if err := d.loop.Reload(ctx, cfg); err != nil {
		return nil, err
	}
	d.inventory.Configure(cfg.TrustAnnotations, cfg.Kubelet == config.KubeletAbsent)
	d.reclaimer.Configure(reclaimPolicy(cfg))
	d.setThresholds(cfg)
	now := status.LoadResult{At: time.Now(), NeedsRestart: config.NeedRestart(d.config, cfg)}
	d.metrics.ConfigLoaded(now.At)
	if now.Changed, err = cfg.Changes(before); err != nil {
		d.log.Error("could not compare the configuration with the old one", "error", err)
	}
	d.statusBackend.SetLoadResult(now)
	d.log.Info("configuration reloaded", "files", cfg.Files, "changed", config.ChangesText(now.Changed))
	if len(now.NeedsRestart) > 0 {
		d.log.Warn("changed fields take effect after a restart of evictd", "fields", now.NeedsRestart)
	}
	for _, n := range cfg.Notices {
		d.log.Warn("configuration", "notice", n.String())
	}
	return cfg, nil
}

// requestReload reloads the configuration, and returns when it is in force.
func (d *daemon) requestReload(ctx context.Context) error {
	answer := make(chan error, 1)
	select {
	case d.reloadRequests <- answer:
	case <-ctx.Done():
		return errReloadTimeout
	}
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return errReloadTimeout
	}
}

var errReloadTimeout = errors.New("the configuration is not in force yet, evictd is busy; evictctl status shows when it is")
