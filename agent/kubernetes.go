package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"time"

	"github.com/evictd/evictd/agent/config"
	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/kube"
	"github.com/evictd/evictd/agent/kube/evictions"
	"github.com/evictd/evictd/agent/podfence"
	"github.com/evictd/evictd/agent/version"
	"github.com/evictd/evictd/kernel"
)

// buildFacts loads the saved facts of evictd-kube, if one is configured.
func (d *daemon) buildFacts(cfg *config.Config) {
	if cfg.Kube.UID == 0 {
		return
	}
	d.orders = kube.NewOrders(kube.OrdersOptions{
		FenceTimeout: cfg.Kube.FenceTimeout, Lift: func(uid, why string) { d.evictions.Lift(uid, why) }, Save: d.stateWriter.Request, Log: d.log.Logger,
		Answered: d.answered,
	})
	d.facts = kube.NewFacts()
	if err := d.facts.Load(d.store); err != nil {
		d.log.Error("saved facts about pods can't be used; their priorities are unknown until evictd-kube connects", "error", err)
		d.startWarnings = append(d.startWarnings, err.Error())
	}
}

// answered records the final answer to an order. The next list exempts a pod whose report is
// forbidden.
func (d *daemon) answered(uid string, answer kube.Answer, at time.Time) {
	d.records.SetReport(uid, string(answer), at)
	if answer == kube.AnswerForbidden {
		d.inventory.Refresh()
	}
}

// startKube starts the goroutines that serve evictd-kube, save its facts and follow the orders
// to it. evictd starts without the socket: it may lack the right to give it to a group.
func (d *daemon) startKube(ctx context.Context, g *group) {
	if d.facts == nil {
		return
	}
	server := &kube.Server{
		UID: int(d.config.Kube.UID), Software: version.Of().String(), Facts: d.facts, Orders: d.orders, Changed: d.inventory.Refresh, Log: d.log.Logger,
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
	g.run("orders to evictd-kube", func() error { d.orders.Run(ctx); return nil })
	g.run("fences", func() error { d.evictions.Run(ctx); return nil })
}

// buildEvictions connects the actuator with the orders to evictd-kube.
func (d *daemon) buildEvictions() {
	if d.facts == nil {
		releaseLeft(d.options, d.log.Logger) // an earlier run may have had an evictd-kube
		return
	}
	d.evictions = evictions.New(evictions.Options{
		Orders: d.orders, Inventory: d.inventory, Records: d.records, Hierarchy: d.hierarchy, Procfs: kernel.FS(d.options.Procfs), Log: d.log.Logger,
		Exclusive: d.facts.Exclusive, Connected: func() bool { return d.facts.Status(time.Now()).Watching },
		Decided: d.decided,
		Resume: func(ctx context.Context, o evict.Order) {
			if job, ok := d.lastView.Load().ReportedJob(o, d.inventory.Guard()); ok {
				d.execute.Resume(ctx, job, false)
			}
		},
	})
	d.closers = append(d.closers, d.evictions.Close)
	if err := d.evictions.Open(podfence.Options{File: d.options.FenceFile, BootID: d.bootID, Hierarchy: d.hierarchy}); err != nil {
		d.log.Error("fences of evicted pods can't be used, or not all that an earlier run set", "error", err)
		d.startWarnings = append(d.startWarnings, err.Error())
	}
	d.killer.Fencer = d.evictions
	d.execute.Subscribe(d.evictions.Report)
}

// decided reports whether the loop's view is of the last list of the pods, and so has the
// containers that agent/kube/evictions knows of, and whether it is in dry run.
func (d *daemon) decided() (ok, dryRun bool) {
	v := d.lastView.Load()
	ok = v != nil && !v.Snapshot.Listed.IsZero() && !v.Snapshot.LastAttempt.Before(d.inventory.LastAttempt())
	return ok, v != nil && v.Mode.DryRun
}

// releaseLeft lifts the fences of an earlier run, which this one can't use.
func releaseLeft(o Options, log *slog.Logger) {
	if err := ReleaseFences(o, io.Discard); err != nil && !errors.Is(err, podfence.ErrLocked) {
		log.Error("fences of an earlier run are not lifted; their pods can't run", "error", err)
	}
}

// ReleaseFences lifts the fences that an evictd that runs no more has left, and writes a line
// about each.
func ReleaseFences(o Options, w io.Writer) error {
	return evictions.Release(w, kernel.FS(o.Cgroupfs), kernel.FS(o.Procfs), o.FenceFile)
}
