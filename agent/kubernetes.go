package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/evictd/evictd/agent/config"
	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/kube"
	"github.com/evictd/evictd/agent/kube/evictions"
	"github.com/evictd/evictd/agent/kube/kubeletcert"
	"github.com/evictd/evictd/agent/podfence"
	"github.com/evictd/evictd/agent/version"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/process"
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
	uptime, _ := process.Uptime() // evictd does not start without it, see clock
	d.node = kube.NewNode(kube.NodeOptions{Uptime: uptime, Log: d.log.Logger})
	d.buildSelfFencing()
	d.facts = kube.NewFacts()
	d.facts.Forbidden = d.orders.Forbidden
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
		UID: int(d.config.Kube.UID), Software: version.Of().String(), Facts: d.facts, Orders: d.orders, Node: d.node, Marks: d.marks,
		Changed: d.inventory.Refresh, Log: d.log.Logger,
		KubeletCertificates: func() string { return kubeletcert.Read(d.disks.NodePath(), d.log.Logger) },
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
	g.run("self-fencing", func() error { d.selfFencing.Run(ctx); return nil })
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
		Runtime:   func() string { return d.inventory.Status().RuntimeName },
		Exclusive: d.facts.Exclusive, DaemonSet: d.facts.DaemonSet, Connected: d.watching,
		Decided: d.decided, ShuttingDown: func() bool { return d.shutdown.State().Active() },
		Resume: func(ctx context.Context, o evict.Order) bool {
			job, ok := d.lastView.Load().ReportedJob(o, d.inventory.Guard())
			if ok {
				d.execute.Resume(ctx, job, false)
			}
			return ok
		},
	})
	d.closers = append(d.closers, d.evictions.Close)
	if err := d.evictions.Open(podfence.Options{File: d.options.FenceFile, BootID: d.bootID, Hierarchy: d.hierarchy}); err != nil {
		d.log.Error("fences of evicted pods can't be used, or not all that an earlier run set", "error", err)
		d.startWarnings = append(d.startWarnings, err.Error())
	}
	d.killer.Fencer, d.killer.Guard = d.evictions, d.inventory.Guard
	d.execute.Subscribe(d.evictions.Report)
}

// viewChanged passes a new view on. The Node object stays as an earlier run has left it until
// the mode is known: until the pods are listed, and evictd-kube had found out its rights when the
// view's mode was decided.
func (d *daemon) viewChanged() {
	d.shutdown.ViewChanged()
	if v := d.lastView.Load(); d.node != nil && !v.Snapshot.Listed.IsZero() && v.Mode.RightsKnown {
		d.node.Set(v.Orders.Conditions, v.Mode.DryRun, v.Time)
	}
}

// stopKube ends the evictions, and removes the conditions and taints of the Node object.
func (d *daemon) stopKube() {
	if d.facts == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), evictions.StopTimeout)
	defer cancel()
	if !d.watching() {
		cancel()
	}
	var node sync.WaitGroup
	node.Go(func() { d.node.Stop(ctx) })
	node.Go(d.stopSelfFencing)
	d.evictions.Stop()
	node.Wait()
}

// watching reports whether evictd-kube watches the API server, so that it can answer.
func (d *daemon) watching() bool { return d.facts.Status(time.Now()).Watching }

// decided reports whether the loop's view is of the last list of the pods, and so has the
// containers that agent/kube/evictions knows of, and whether it is in dry run. A dry run because no
// evictd-kube has connected yet decides nothing: an earlier run may not have saved that one had. Nor has
// the loop decided while victims of an earlier run wait for facts. A
// shutdown of the node that an earlier run has begun resumes evictions, too.
func (d *daemon) decided() (ok, dryRun bool) {
	v := d.lastView.Load()
	ok = v != nil && (v.Mode.RightsKnown || !v.Mode.DryRun) && !v.Resuming && !d.shutdown.Resuming() && !v.Snapshot.Listed.IsZero() && !v.Snapshot.LastAttempt.Before(d.inventory.LastAttempt())
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
