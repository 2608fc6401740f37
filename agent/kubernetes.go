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

// buildFacts loads the saved facts of evictd-kube, if one is configured.
func (d *daemon) buildFacts(cfg *config.Config) {
	if cfg.Kube.UID == 0 {
		return
	}
	d.facts = kube.NewFacts()
	if err := d.facts.Load(d.store); err != nil {
		d.log.Error("saved facts about pods can't be used; their priorities are unknown until evictd-kube connects", "error", err)
		d.startWarnings = append(d.startWarnings, err.Error())
	}
}

// startFacts starts the goroutines that serve evictd-kube and save its facts. evictd starts
// without the socket: it may lack the right to give it to a group.
func (d *daemon) startFacts(ctx context.Context, g *group) {
	if d.facts == nil {
		return
	}
	server := &kube.Server{
		UID: int(d.config.Kube.UID), Software: version.Of().String(), Facts: d.facts, Changed: d.inventory.Refresh, Log: d.log.Logger,
	}
	listen := func() (net.Listener, error) {
		l, err := control.ListenShared(d.options.KubeSocket, d.config.Kube.Group())
		if err != nil {
			return nil, fmt.Errorf("%w (--kube-socket sets another path)", err)
		}
		return l, nil
	}
	g.run("socket for evictd-kube", func() error { server.ListenAndServe(ctx, listen); return nil })
	g.run("facts", func() error { d.facts.SaveChanges(ctx, d.store, d.log.Logger); return nil })
}
