package controller

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/evictd/evictd/agent/fence/nodefence"
)

// leaseLister lists the Leases of all nodes, with one request each: a Lease that is first read when its
// node is not Ready would have to be unchanged for the grace period from then on.
type leaseLister struct {
	reconciler *reconciler
	own        *ownNode
	// failed has the list only, so that no pass waits for it.
	failed *unreadable
	// notify has a node looked at.
	notify func(ctx context.Context, node string)
}

// Start implements manager.Runnable. It runs while this process is the leader, and returns an error if it must not be
// the leader any more.
func (l *leaseLister) Start(ctx context.Context) error {
	for {
		l.list(ctx)
		if err := l.own.check(ctx); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(l.period()):
		}
	}
}

// period returns the time to the next list.
func (l *leaseLister) period() time.Duration {
	config, loaded := l.reconciler.config.current()
	if !loaded {
		return configWait
	}
	return min(leasePeriod, max(time.Second, config.Policy.Timings.Grace.Duration/listsPerGrace))
}

// list lists the Leases, has the nodes looked at that are Ready in the cache although their Lease is too old, and
// removes what is remembered of nodes that are gone.
func (l *leaseLister) list(ctx context.Context) {
	r := l.reconciler
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	l.failed.read("Leases of all nodes", func() error { return r.observer.listLeases(ctx) })
	nodes := &corev1.NodeList{}
	fences := &nodefence.NodeFenceList{}
	if r.cached.List(ctx, nodes, client.UnsafeDisableDeepCopy) != nil ||
		r.cached.List(ctx, fences, client.UnsafeDisableDeepCopy) != nil {
		return // the cache has not started
	}
	now := time.Now()
	config, _ := r.config.current()
	present := make(map[string]bool, len(nodes.Items))
	for i := range nodes.Items {
		n := &nodes.Items[i]
		present[n.Name] = true
		r.observer.leases.observeAdvert(n, false, now)
		if ready(n) && r.silent(n.Name, &config) {
			l.notify(ctx, n.Name)
		}
	}
	r.observer.leases.countMajority(nodes.Items, now)
	for i := range fences.Items {
		present[fences.Items[i].Node] = true
	}
	r.prune(present)
	r.observer.leases.pruneAdverts(present)
}
