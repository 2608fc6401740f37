package agent

import (
	"context"
	"fmt"
	"net"

	"github.com/evictd/evictd/agent/config"
	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/kube"
	"github.com/evictd/evictd/agent/version"
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
	if err := d.kubernetes.facts.Load(d.store); err != nil {
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
	g.run("facts", func() error { k.facts.SaveChanges(ctx, d.store, d.log.Logger); return nil })
}
