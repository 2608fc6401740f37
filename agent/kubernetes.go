package agent

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/evictd/evictd/agent/config"
	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/kube"
	"github.com/evictd/evictd/agent/version"
)

const (
	// factsSaveInterval is how often changed facts are saved. A crash loses the facts
	// about the pods of this time until evictd-kube connects again.
	factsSaveInterval = 10 * time.Second
	// factsAgeSaveInterval is how often unchanged facts are saved for their age.
	factsAgeSaveInterval = 5 * time.Minute
)

// kubernetes has the facts of evictd-kube and the socket for it. Both are nil if none is
// configured.
type kubernetes struct {
	facts    *kube.Facts
	listener net.Listener
}

// buildKubernetes creates the socket for evictd-kube and loads the saved facts.
func (d *daemon) buildKubernetes(cfg *config.Config) error {
	if cfg.Kube.UID == 0 {
		return nil
	}
	d.kubernetes.facts = kube.NewFacts()
	l, err := control.ListenShared(d.options.KubeSocket, cfg.Kube.Group())
	if err != nil {
		return fmt.Errorf("%w (--kube-socket sets another path)", err)
	}
	d.closers = append(d.closers, ignoreClosed(l.Close))
	d.kubernetes.listener = l
	content, err := d.store.LoadFacts()
	if err == nil && content != nil {
		if err = d.kubernetes.facts.Restore(content, time.Now()); err != nil {
			err = d.store.RejectFacts(err)
		}
	}
	if err != nil {
		d.log.Error("saved facts about pods can't be used; their priorities are unknown until evictd-kube connects", "error", err)
		d.startWarnings = append(d.startWarnings, err.Error())
	}
	return nil
}

// startKubernetes starts the goroutines that serve evictd-kube and save its facts.
func (d *daemon) startKubernetes(ctx context.Context, g *group) {
	k := d.kubernetes
	if k.listener == nil {
		return
	}
	server := &kube.Server{
		UID: int(d.config.Kube.UID), Software: version.Of().String(), Facts: k.facts, Changed: d.inventory.Refresh, Log: d.log.Logger,
	}
	g.run("socket for evictd-kube", func() error { return server.Serve(ctx, k.listener) })
	g.run("facts", func() error { d.saveFacts(ctx); return nil })
}

// saveFacts saves the facts after changes and every factsAgeSaveInterval, until ctx
// ends, and then once more.
func (d *daemon) saveFacts(ctx context.Context) {
	ticker := time.NewTicker(factsSaveInterval)
	defer ticker.Stop()
	saved, at, failing := d.kubernetes.facts.Version(), time.Now(), ""
	save := func() {
		content, version, err := d.kubernetes.facts.Encode()
		if err == nil {
			err = d.store.SaveFacts(content)
		}
		if err != nil {
			if text := err.Error(); text != failing {
				failing = text
				d.log.Error("facts about pods are not saved; a restart would lose them until evictd-kube connects", "error", err)
			}
			return
		}
		saved, at, failing = version, time.Now(), ""
	}
	for {
		select {
		case <-ctx.Done():
			save()
			return
		case <-ticker.C:
			if d.kubernetes.facts.Version() != saved || time.Since(at) >= factsAgeSaveInterval {
				save()
			}
		}
	}
}
