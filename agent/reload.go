package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/evictd/evictd/agent/config"
	"github.com/evictd/evictd/agent/status"
)

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
		case answer = <-d.reloads:
		}
		d.notifier.Reloading()
		cfg, err := d.loadAgain(ctx, inForce)
		if cfg != nil {
			inForce = cfg
		}
		line := "configuration not reloaded"
		if err == nil {
			line = d.board.StatusLine()
		}
		d.notifier.Reloaded(line)
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
		rejected := d.board.Loading()
		rejected.Error = err.Error()
		d.board.SetLoading(rejected)
		d.log.Error("configuration not reloaded, the old one stays in force", "error", err)
		return nil, err
	}
	if err := d.loop.Reload(ctx, cfg); err != nil {
		return nil, err
	}
	d.inventory.Configure(cfg.TrustAnnotations, cfg.Kubelet == config.KubeletAbsent)
	d.reclaimer.Configure(reclaimPolicy(cfg))
	d.arm(cfg)
	now := status.Loading{At: time.Now(), NeedsRestart: needRestart(d.config, cfg)}
	d.metrics.ConfigLoaded(now.At)
	if now.Changed, err = cfg.Changes(before); err != nil {
		d.log.Error("the changes of the configuration can't be listed", "error", err)
	}
	d.board.SetLoading(now)
	d.log.Info("configuration reloaded", "files", cfg.Files, "changed", changesText(now.Changed))
	if len(now.NeedsRestart) > 0 {
		d.log.Warn("changed configuration is in force after a restart only", "fields", now.NeedsRestart)
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

// requestReload has the configuration read again, and returns when it is in force.
func (d *daemon) requestReload(ctx context.Context) error {
	answer := make(chan error, 1)
	select {
	case d.reloads <- answer:
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
