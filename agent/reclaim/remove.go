package reclaim

import (
	"context"
	"errors"
	"maps"
	"path/filepath"
	"sync"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/cri"
	"github.com/evictd/evictd/kernel/disk"
)

// carryOut does what an order asks for, until its deadline.
func (r *Reclaimer) carryOut(ctx context.Context, o evict.Reclaim) evict.ReclaimReport {
	report := evict.ReclaimReport{At: time.Now(), Kind: o.Kind, Reason: Pressure, Signal: o.Signal, DryRun: r.o.DryRun(), Removed: []string{}, Deficit: o.Deficit}
	before, ok := r.left(o.Signal)
	if !ok {
		report.Note = "the signal can't be read"
	} else {
		r.free(ctx, &report, before+max(1, o.Deficit), o)
	}
	r.await(ctx, report.At)
	report.Took = time.Since(report.At)
	return report
}

// finish goes on with what the last order has not come to, as long as its signal
// is below the target.
func (r *Reclaimer) finish(ctx context.Context) {
	rest := *r.rest
	left, ok := r.left(rest.order.Signal)
	if ok && left >= rest.target || r.o.DryRun() {
		r.rest = nil
		return
	}
	report := evict.ReclaimReport{
		At: time.Now(), Kind: rest.order.Kind, Reason: Pressure, Signal: rest.order.Signal, Removed: []string{},
		Note: "what an earlier reclaim had not come to",
	}
	if ok {
		report.Deficit = rest.target - left
	}
	r.free(ctx, &report, rest.target, rest.order)
	report.Took = time.Since(report.At)
	if len(report.Removed) > 0 {
		r.keep(report)
	}
}

// free removes what an order asks for until the signal has come up to the target,
// but only until the deadline. It notes what it did not come to.
func (r *Reclaimer) free(ctx context.Context, report *evict.ReclaimReport, target int64, o evict.Reclaim) {
	work, cancel := context.WithDeadline(ctx, report.At.Add(reclaimFor))
	defer cancel()
	b := r.batches(report, target)
	if o.Kind == evict.ReclaimContainers {
		r.removeDead(work, b)
	} else {
		r.removeImages(work, b)
	}
	r.rest = nil
	if report.DryRun {
		return
	}
	// What others removed, and what evicted pods held, comes back late too.
	r.settle(work, o.Signal, target, b.removed)
	own := time.Now()
	if b.held > 0 {
		own = own.Add(lateFor)
	}
	r.wait(ctx, o.Signal, func() (promised int64, until time.Time) {
		held, until := r.fromKubelet(o.Signal)
		if own.After(until) {
			until = own
		}
		return min(target, b.before+(held+b.held)/10*enough), until
	})
	if ctx.Err() == nil {
		r.returned(o.Signal)
	}
	after, _ := r.left(o.Signal)
	report.Freed = max(0, after-b.before)
	if (b.left || work.Err() != nil) && after < target {
		r.rest = &rest{o, target}
	}
}

// removeDead removes what is dead, the oldest first.
func (r *Reclaimer) removeDead(ctx context.Context, b *batches) {
	sandboxes, containers, evicted, err := r.listEnded(ctx, b.report.At)
	if err != nil {
		b.report.Error = err.Error()
		return
	}
	kubelet := r.o.Kubelet()
	var list []removal
	for _, d := range dead(sandboxes, containers, exits(ctx, r.o.Runtime, sandboxes, containers, evicted), evicted, kubelet, minimumAge, time.Now()) {
		m := removal{key: "remove sandbox " + d.sandbox.ID, name: "sandbox " + d.name, empty: d.containers == 0 && !d.evicted, evicted: d.evicted}
		if d.container != "" {
			m.key, m.name = "remove container "+d.container, "container "+d.name
		}
		if held := evicted[d.sandbox.ID]; d.evicted && held.Inodes == b.report.Signal.IsInodes() {
			m.held = held.Amount
		}
		m.do = func(ctx context.Context) error { return r.buryAgain(ctx, &d) }
		list = append(list, m)
	}
	var orphans []removal
	if kubelet.Absent {
		orphans = r.orphanRemovals(ctx, b.report, sandboxes)
		list = append(list, orphans...)
	}
	if b.report.DryRun {
		b.wouldRemove(list)
		return
	}
	b.run(ctx, list)
	// The targets of links are paths on the host.
	if len(orphans) > 0 && r.o.Rootfs == "/" && ctx.Err() == nil {
		if err := r.calls.do(ctx, "remove links to logs", func(context.Context) error { return removeDeadLinks(logLinks) }); err != nil {
			b.report.Error = err.Error()
		}
	}
}

// listEnded lists what the runtime has, once it has seen the end of what is
// evicted: until then its layers can't be removed, and the next pod would go for
// them.
func (r *Reclaimer) listEnded(ctx context.Context, since time.Time) ([]cri.Sandbox, []cri.Container, map[string]Held, error) {
	for {
		sandboxes, containers, err := list(ctx, r.o.Runtime)
		if err != nil {
			return nil, nil, nil, err
		}
		evicted := r.stillThere(sandboxes)
		runs := false
		for i := range containers {
			_, ours := evicted[containers[i].SandboxID]
			runs = runs || ours && containers[i].State != cri.StateExited
		}
		if !runs || time.Since(since) >= endFor || !pause(ctx) {
			return sandboxes, containers, evicted, nil
		}
	}
}

// stillThere forgets evicted sandboxes that are gone and returns the others.
func (r *Reclaimer) stillThere(sandboxes []cri.Sandbox) map[string]Held {
	r.mu.Lock()
	defer r.mu.Unlock()
	there := map[string]Held{}
	for i := range sandboxes {
		if held, ours := r.evicted[sandboxes[i].ID]; ours {
			there[sandboxes[i].ID] = held
		}
	}
	r.evicted = maps.Clone(there)
	return there
}

// list lists what the runtime has, as a whole or not at all: what a part leaves
// out may be what keeps the rest alive.
func list(ctx context.Context, p Pods) ([]cri.Sandbox, []cri.Container, error) {
	// Containers first: the sandbox of each is then in the later list.
	containers, err := p.Containers(ctx)
	if err != nil {
		return nil, nil, err
	}
	sandboxes, err := p.Sandboxes(ctx)
	return sandboxes, containers, err
}

// exits asks when and where containers ended that are in sandboxes that are not
// ready, or evicted. It waits for callPatience: what the runtime does not say by then
// is left out.
func exits(ctx context.Context, p Pods, sandboxes []cri.Sandbox, containers []cri.Container, evicted map[string]Held) map[string]exit {
	ctx, cancel := context.WithTimeout(ctx, callPatience)
	defer cancel()
	ready := map[string]bool{}
	for i := range sandboxes {
		_, ours := evicted[sandboxes[i].ID]
		ready[sandboxes[i].ID] = sandboxes[i].Ready && !ours
	}
	all := map[string]exit{}
	var mu sync.Mutex
	var asking sync.WaitGroup
	free := make(chan struct{}, parallel)
	for i := range containers {
		c := &containers[i]
		if c.State != cri.StateExited || ready[c.SandboxID] {
			continue
		}
		free <- struct{}{}
		asking.Go(func() {
			defer func() { <-free }()
			if d, err := p.ContainerDetail(ctx, c.ID); err == nil {
				mu.Lock()
				defer mu.Unlock()
				all[c.ID] = exit{d.Finished, d.LogPath}
			}
		})
	}
	asking.Wait()
	return all
}

// The times between two attempts to remove what was evicted, doubling.
const firstAgain, lastAgain = 100 * time.Millisecond, 1600 * time.Millisecond

// buryAgain is bury, and again for what evictd has just killed: a runtime may fail
// over that for a moment, and the next pod would go for what it holds.
func (r *Reclaimer) buryAgain(ctx context.Context, d *remains) error {
	err := r.bury(ctx, d)
	var logs *logsLeftError
	for wait := firstAgain; err != nil && !errors.As(err, &logs) && !errors.Is(err, context.DeadlineExceeded) && d.evicted && wait <= lastAgain; wait *= 2 {
		select {
		case <-ctx.Done():
			return err
		case <-time.After(wait):
		}
		err = r.bury(ctx, d)
	}
	return err
}

// logsLeftError says that a pod was removed, but for some of its logs.
type logsLeftError struct {
	pod string
	err error
}

func (e *logsLeftError) Error() string { return "remove logs of " + e.pod + ": " + e.err.Error() }
func (e *logsLeftError) Unwrap() error { return e.err }

// bury removes what is left of a pod, with its logs. It is a *logsLeftError where
// only those are left.
func (r *Reclaimer) bury(ctx context.Context, d *remains) error {
	if d.container != "" {
		return r.o.Runtime.RemoveContainer(ctx, d.container)
	}
	if d.sandbox.Ready { // evicted; nothing runs in it
		if err := r.o.Runtime.StopSandbox(ctx, d.sandbox.ID); err != nil {
			return err
		}
	}
	if err := r.o.Runtime.RemoveSandbox(ctx, d.sandbox.ID); err != nil {
		return err
	}
	if dir := d.logDir(); dir != "" {
		if err := disk.RemoveTree(filepath.Join(r.o.Rootfs, dir)); err != nil {
			return &logsLeftError{d.name, err}
		}
	}
	return nil
}
