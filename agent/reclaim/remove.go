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

// execute executes an order, within orderTimeout and, for the space of evicted pods,
// lateFreeTimeout.
func (r *Reclaimer) execute(ctx context.Context, o evict.Reclaim) evict.ReclaimReport {
	report := evict.ReclaimReport{At: time.Now(), Kind: o.Kind, Reason: Pressure, Signal: o.Signal, DryRun: r.o.DryRun(), Removed: []string{}, Deficit: o.Deficit}
	before, ok := r.available(o.Signal)
	if !ok {
		report.Note = "signal can't be read"
	} else {
		r.free(ctx, &report, before+max(1, o.Deficit), o)
	}
	r.awaitMeasurements(ctx, report.At)
	report.Duration = time.Since(report.At)
	return report
}

// resume continues the unfinished order while its signal is below the target.
func (r *Reclaimer) resume(ctx context.Context) {
	unfinished := *r.unfinished
	left, ok := r.available(unfinished.order.Signal)
	if ok && left >= unfinished.target || r.o.DryRun() {
		r.unfinished = nil
		return
	}
	report := evict.ReclaimReport{
		At: time.Now(), Kind: unfinished.order.Kind, Reason: Pressure, Signal: unfinished.order.Signal, Removed: []string{},
		Note: "rest of an earlier reclaim",
	}
	if ok {
		report.Deficit = unfinished.target - left
	}
	r.free(ctx, &report, unfinished.target, unfinished.order)
	report.Duration = time.Since(report.At)
	if len(report.Removed) > 0 {
		r.addReport(report)
	}
}

// free removes objects until the signal has reached the target or orderTimeout has
// passed since report.At. If the target is not reached and objects may be left, it sets
// r.unfinished.
func (r *Reclaimer) free(ctx context.Context, report *evict.ReclaimReport, target int64, o evict.Reclaim) {
	work, cancel := context.WithDeadline(ctx, report.At.Add(orderTimeout))
	defer cancel()
	b := r.newBatchRemover(report, target)
	if o.Kind == evict.ReclaimContainers {
		r.removeDead(work, b)
	} else {
		r.removeImages(work, b)
	}
	r.unfinished = nil
	if report.DryRun {
		return
	}
	// Other programs' removals and the space of evicted pods may also arrive late.
	r.settle(work, o.Signal, target, b.lastRemoved)
	ownUntil := time.Now()
	if b.usage > 0 {
		ownUntil = ownUntil.Add(lateFreeTimeout)
	}
	r.waitForLateFree(ctx, o.Signal, func() (promised int64, until time.Time) {
		usage, until := r.pendingFromKubelet(o.Signal)
		if ownUntil.After(until) {
			until = ownUntil
		}
		return min(target, b.before+(usage+b.usage)/10*lateFreeTenths), until
	})
	if ctx.Err() == nil {
		r.deleteCleanups(o.Signal)
	}
	after, _ := r.available(o.Signal)
	report.Freed = max(0, after-b.before)
	if (b.incomplete || work.Err() != nil) && after < target {
		r.unfinished = &unfinishedOrder{o, target}
	}
}

// removeDead removes dead objects, oldest first.
func (r *Reclaimer) removeDead(ctx context.Context, b *batchRemover) {
	sandboxes, containers, evicted, err := r.listAfterExit(ctx, b.report.At)
	if err != nil {
		b.report.Error = err.Error()
		return
	}
	kubelet := r.o.Kubelet()
	var list []removal
	for _, d := range deadObjects(sandboxes, containers, exits(ctx, r.o.Runtime, sandboxes, containers, evicted), evicted, kubelet, minDeadAge, time.Now()) {
		entry := removal{key: "remove sandbox " + d.sandbox.ID, name: "sandbox " + d.name, empty: d.containers == 0 && !d.evicted, evicted: d.evicted}
		if d.container != "" {
			entry.key, entry.name = "remove container "+d.container, "container "+d.name
		}
		if usage := evicted[d.sandbox.ID]; d.evicted && usage.Inodes == b.report.Signal.IsInodes() {
			entry.usage = usage.Amount
		}
		entry.do = func(ctx context.Context) error { return r.removeWithRetry(ctx, &d) }
		list = append(list, entry)
	}
	var orphanLogRemovals []removal
	if kubelet.Absent {
		orphanLogRemovals = r.orphanRemovals(ctx, b.report, sandboxes)
		list = append(list, orphanLogRemovals...)
	}
	if b.report.DryRun {
		b.reportDryRun(list)
		return
	}
	b.run(ctx, list)
	// The targets of the links are paths of the host.
	if len(orphanLogRemovals) > 0 && r.o.Rootfs == "/" && ctx.Err() == nil {
		if err := r.calls.do(ctx, "remove links to logs", func(context.Context) error { return removeDeadLinks(logLinks) }); err != nil {
			b.report.Error = err.Error()
		}
	}
}

// listAfterExit lists sandboxes and containers once the runtime reports the
// containers of evicted sandboxes as exited, or when containerExitTimeout has passed
// since the given time. The runtime can't remove the layer of a container that has not
// exited, and another pod would be evicted for that space.
func (r *Reclaimer) listAfterExit(ctx context.Context, since time.Time) ([]cri.Sandbox, []cri.Container, map[string]EvictedUsage, error) {
	for {
		sandboxes, containers, err := list(ctx, r.o.Runtime)
		if err != nil {
			return nil, nil, nil, err
		}
		evicted := r.pruneEvicted(sandboxes)
		runs := false
		for i := range containers {
			_, evictedByUs := evicted[containers[i].SandboxID]
			runs = runs || evictedByUs && containers[i].State != cri.StateExited
		}
		if !runs || time.Since(since) >= containerExitTimeout || !pollDelay(ctx) {
			return sandboxes, containers, evicted, nil
		}
	}
}

// pruneEvicted deletes the records of evicted sandboxes that no longer exist, and
// returns the others.
func (r *Reclaimer) pruneEvicted(sandboxes []cri.Sandbox) map[string]EvictedUsage {
	r.mu.Lock()
	defer r.mu.Unlock()
	remaining := map[string]EvictedUsage{}
	for i := range sandboxes {
		if usage, evictedByUs := r.evicted[sandboxes[i].ID]; evictedByUs {
			remaining[sandboxes[i].ID] = usage
		}
	}
	r.evicted = maps.Clone(remaining)
	return remaining
}

// list lists sandboxes and containers. It fails if either list fails: an incomplete
// list could make objects in use look dead.
func list(ctx context.Context, p PodRuntime) ([]cri.Sandbox, []cri.Container, error) {
	// List containers first, so that the later list has the sandbox of each.
	containers, err := p.Containers(ctx)
	if err != nil {
		return nil, nil, err
	}
	sandboxes, err := p.Sandboxes(ctx)
	return sandboxes, containers, err
}

// exits queries the end and log path of exited containers in sandboxes that are
// evicted or not ready. It waits for callTimeout and omits what the runtime has not
// returned by then.
func exits(ctx context.Context, p PodRuntime, sandboxes []cri.Sandbox, containers []cri.Container, evicted map[string]EvictedUsage) map[string]exit {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	ready := map[string]bool{}
	for i := range sandboxes {
		_, evictedByUs := evicted[sandboxes[i].ID]
		ready[sandboxes[i].ID] = sandboxes[i].Ready && !evictedByUs
	}
	all := map[string]exit{}
	var mu sync.Mutex
	var queries sync.WaitGroup
	free := make(chan struct{}, maxParallel)
	for i := range containers {
		c := &containers[i]
		if c.State != cri.StateExited || ready[c.SandboxID] {
			continue
		}
		free <- struct{}{}
		queries.Go(func() {
			defer func() { <-free }()
			if d, err := p.ContainerDetail(ctx, c.ID); err == nil {
				mu.Lock()
				defer mu.Unlock()
				all[c.ID] = exit{d.Finished, d.LogPath}
			}
		})
	}
	queries.Wait()
	return all
}

// Attempts to remove an evicted object are repeated after removeBackoff, doubling
// to maxRemoveBackoff: together 3.1 s, less than orderTimeout.
const removeBackoff, maxRemoveBackoff = 100 * time.Millisecond, 1600 * time.Millisecond

// removeWithRetry is remove with retries for objects of evicted pods: a runtime may
// fail for a moment after the kill, and another pod would be evicted for the same
// space.
func (r *Reclaimer) removeWithRetry(ctx context.Context, d *deadObject) error {
	err := r.remove(ctx, d)
	var logs *logsRemainError
	for wait := removeBackoff; err != nil && !errors.As(err, &logs) && !errors.Is(err, context.DeadlineExceeded) && d.evicted && wait <= maxRemoveBackoff; wait *= 2 {
		select {
		case <-ctx.Done():
			return err
		case <-time.After(wait):
		}
		err = r.remove(ctx, d)
	}
	return err
}

// logsRemainError reports that a pod's sandbox was removed, but not all of its logs.
type logsRemainError struct {
	pod string
	err error
}

func (e *logsRemainError) Error() string { return "remove logs of " + e.pod + ": " + e.err.Error() }
func (e *logsRemainError) Unwrap() error { return e.err }

// remove removes a dead object, a sandbox with its logs. The error is a
// *logsRemainError if only logs are left.
func (r *Reclaimer) remove(ctx context.Context, d *deadObject) error {
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
			return &logsRemainError{d.name, err}
		}
	}
	return nil
}
