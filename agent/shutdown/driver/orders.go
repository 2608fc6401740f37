package driver

import (
	"context"
	"slices"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/execute"
	"github.com/evictd/evictd/agent/loop"
	"github.com/evictd/evictd/agent/shutdown"
)

// executeOrders passes the orders to the executor.
func (d *Driver) executeOrders(ctx context.Context, v *loop.View, orders *shutdown.Orders, dryRun bool) {
	if len(orders.Stop)+len(orders.Kill) == 0 {
		return
	}
	guard := d.o.Inventory.Guard()
	for i := range orders.Stop {
		stop := &orders.Stop[i]
		rec := d.record(v, stop, dryRun)
		d.o.Log.Warn(execute.InDryRun(dryRun, "stopping pod", "would stop pod"), "pod", stop.Pod, "uid", stop.UID, "grace", stop.Grace.String(), "reason", rec.Reason, "again", stop.Repeated, "dry_run", dryRun)
		order := evict.Order{UID: stop.UID, Pod: stop.Pod, Cause: rec.Cause, Grace: stop.Grace, Expected: rec.Expected, Reason: rec.Reason, Message: rec.Message}
		job := d.newJob(v, order, guard)
		job.StopStages = stopStages(podOf(v, stop.UID), v.Snapshot.Handles[stop.UID].Containers, stop.Grace)
		if stop.Repeated {
			d.o.Execute.Resume(ctx, job, dryRun)
		} else {
			d.o.Execute.Evict(ctx, rec, job)
		}
	}
	for i := range orders.Kill {
		kill := &orders.Kill[i]
		d.o.Log.Warn("killing pod; its grace period has passed", "pod", kill.Pod, "uid", kill.UID, "grace", kill.Grace.String())
		d.o.Execute.Escalate(ctx, d.newJob(v, evict.Order{UID: kill.UID, Pod: kill.Pod, Cause: evict.CauseShutdown, Hard: true}, guard), dryRun)
	}
}

func podOf(v *loop.View, uid string) *evict.Pod {
	at := slices.IndexFunc(v.Snapshot.Pods, func(p evict.Pod) bool { return p.UID == uid })
	if at < 0 {
		return &evict.Pod{}
	}
	return &v.Snapshot.Pods[at]
}

// record returns the record of a pod that is being stopped.
func (d *Driver) record(v *loop.View, stop *shutdown.Stop, dryRun bool) evict.Record {
	reason, message := stop.Reason()
	if d.newJob(v, evict.Order{UID: stop.UID}, nil).Reported {
		// The kubelet has started the pod, whenever that was.
		reason, message = shutdown.ReasonTerminated, shutdown.MessageTerminated
	}
	lane := "logind"
	if d.state.Manual {
		lane = "operator"
	}
	return evict.Record{
		Pod: stop.Pod, UID: stop.UID, Cause: evict.CauseShutdown, DryRun: dryRun, Reason: reason, Message: message,
		DisruptionTarget: !stop.Refused, Lane: lane, Decided: v.Time, Expected: podOf(v, stop.UID).Usage.Freeable, Result: evict.ResultPending,
	}
}

func (d *Driver) logBegin(dryRun bool) {
	d.o.Log.Warn(execute.InDryRun(dryRun, "node shuts down; stopping its pods", "node shuts down; dry run, no pod is stopped"), "deadline", d.state.Deadline(), "groups", len(d.state.Schedule), "manual", d.state.Manual)
}

// phaseChanged logs and saves a change of the phase, and lets the node shut down
// when the shutdown has ended.
func (d *Driver) phaseChanged(ctx context.Context, before *shutdown.State, dryRun bool) {
	if d.state.Phase == before.Phase {
		return
	}
	switch d.state.Phase {
	case shutdown.Stopping:
		d.o.RequestSave()
		return // announced before the orders
	case shutdown.Ended:
		left := 0
		for i := range d.state.Pods {
			if st := d.state.Pods[i].Status; st != shutdown.Gone {
				left++
			}
		}
		d.o.Log.Warn(execute.InDryRun(dryRun, "pods are stopped; releasing the node's shutdown", "dry run: no pod was stopped; releasing the node's shutdown"),
			"took", d.state.Ended.Sub(d.state.Began).String(), "pods", len(d.state.Pods), "left", left)
		d.awaitReports(ctx)
		d.saveWithTimeout()
		d.o.DelayLock.Release()
	default:
		d.o.Log.Warn("node shutdown canceled; no further pod is stopped", "took", d.state.Ended.Sub(d.state.Began).String())
		d.o.RequestSave()
	}
	d.o.Announce(d.state.Phase)
}

// endTimeout bounds each of the two waits before the node may shut down: until the records of gone
// pods are complete, which may also take the time for answers of evictd-kube, and until the state
// is saved. Together they take at most four fifths of [shutdown.Reserve]; the rest is for the
// release of the lock.
const endTimeout = shutdown.Reserve * 2 / 5

// awaitReports waits for the answers of evictd-kube, and for the records of pods that are gone, at
// most for endTimeout and the time for answers.
func (d *Driver) awaitReports(ctx context.Context) {
	answers := d.timeForAnswers()
	ctx, cancel := context.WithTimeout(ctx, answers+endTimeout)
	defer cancel()
	if answers > 0 {
		answersCtx, cancel := context.WithTimeout(ctx, answers)
		defer cancel()
		d.awaitAnswers(answersCtx)
	}
	d.awaitRecords(ctx)
}

// awaitRecords waits until the records of all pods that are gone are complete or ctx
// ends: a list can show that a pod is gone before the call that stops it has
// returned, and that call may hang.
func (d *Driver) awaitRecords(ctx context.Context) {
	gone := map[string]bool{}
	for i := range d.state.Pods {
		if p := &d.state.Pods[i]; p.Status == shutdown.Gone {
			gone[p.UID] = true
		}
	}
	pending := func(r evict.Record) bool {
		return r.Cause == evict.CauseShutdown && r.Result == evict.ResultPending && gone[r.UID]
	}
	for slices.ContainsFunc(d.o.Execute.Records().List(), pending) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// saveWithTimeout saves the state and waits for that, at most for endTimeout.
func (d *Driver) saveWithTimeout() {
	done := make(chan error, 1)
	go func() { done <- d.o.Save() }()
	select {
	case err := <-done:
		if err != nil {
			d.o.Log.Error("state not saved", "error", err)
		}
	case <-time.After(endTimeout):
		d.o.Log.Error("state not saved in time; the node may shut down without it")
	}
}
