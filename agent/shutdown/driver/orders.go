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

// executeOrders passes the orders to the actuator.
func (s *Driver) executeOrders(ctx context.Context, v *loop.View, orders *shutdown.Orders, dryRun bool) {
	if len(orders.Stop)+len(orders.Kill) == 0 {
		return
	}
	guard := s.o.Inventory.Guard()
	for i := range orders.Stop {
		stop := &orders.Stop[i]
		rec := s.record(v, stop, dryRun)
		s.o.Log.Warn(execute.InDryRun(dryRun, "stopping pod", "would stop pod"), "pod", stop.Pod, "uid", stop.UID, "grace", stop.Grace.String(), "reason", rec.Reason, "again", stop.Repeated, "dry_run", dryRun)
		order := evict.Order{UID: stop.UID, Pod: stop.Pod, Cause: rec.Cause, Grace: stop.Grace, Expected: rec.Expected, Reason: rec.Reason, Message: rec.Message}
		job := loop.Job(order, &v.Snapshot, guard)
		job.StopStages = stopStages(podOf(v, stop.UID), v.Snapshot.Handles[stop.UID].Containers, stop.Grace)
		if stop.Repeated {
			s.o.Execute.Resume(ctx, job, dryRun)
		} else {
			s.o.Execute.Evict(ctx, rec, job)
		}
	}
	for i := range orders.Kill {
		m := &orders.Kill[i]
		s.o.Log.Warn("killing pod; its grace period has passed", "pod", m.Pod, "uid", m.UID, "grace", m.Grace.String())
		s.o.Execute.Escalate(ctx, loop.Job(evict.Order{UID: m.UID, Pod: m.Pod, Cause: evict.CauseShutdown, Hard: true}, &v.Snapshot, guard), dryRun)
	}
}

func podOf(v *loop.View, uid string) *evict.Pod {
	at := slices.IndexFunc(v.Snapshot.Pods, func(p evict.Pod) bool { return p.UID == uid })
	if at < 0 {
		return &evict.Pod{}
	}
	return &v.Snapshot.Pods[at]
}

// record returns a new record of a pod that is stopped.
func (s *Driver) record(v *loop.View, stop *shutdown.Stop, dryRun bool) evict.Record {
	reason, message := stop.Reason()
	lane := "logind"
	if s.state.Manual {
		lane = "operator"
	}
	return evict.Record{
		Pod: stop.Pod, UID: stop.UID, Cause: evict.CauseShutdown, DryRun: dryRun, Reason: reason, Message: message,
		DisruptionTarget: !stop.Refused, Lane: lane, Decided: v.Time, Expected: podOf(v, stop.UID).Usage.Freeable, Result: evict.ResultPending,
	}
}

// phaseChanged logs and saves a change of the phase, and lets the node shut down
// when the shutdown has ended.
func (s *Driver) phaseChanged(ctx context.Context, before *shutdown.State, dryRun bool) {
	if s.state.Phase == before.Phase {
		return
	}
	switch s.state.Phase {
	case shutdown.Stopping:
		s.o.Log.Warn(execute.InDryRun(dryRun, "node shuts down; stopping its pods", "node shuts down; dry run, no pod is stopped"), "deadline", s.state.Deadline(), "groups", len(s.state.Schedule), "manual", s.state.Manual)
		s.o.RequestSave()
	case shutdown.Ended:
		left := 0
		for i := range s.state.Pods {
			if st := s.state.Pods[i].Status; st != shutdown.Gone {
				left++
			}
		}
		s.o.Log.Warn(execute.InDryRun(dryRun, "pods are stopped; releasing the node's shutdown", "dry run: no pod was stopped; releasing the node's shutdown"),
			"took", s.state.Ended.Sub(s.state.Began).String(), "pods", len(s.state.Pods), "left", left)
		s.awaitRecords(ctx)
		s.saveWithTimeout()
		s.o.DelayLock.Release()
	default:
		s.o.Log.Warn("node shutdown canceled; no further pod is stopped", "took", s.state.Ended.Sub(s.state.Began).String())
		s.o.RequestSave()
	}
	s.o.Announce(s.state.Phase)
}

// endTimeout bounds each of the two waits before the node may shut down: until the
// records of gone pods are complete, and until the state is saved. Together they take
// at most four fifths of [shutdown.Reserve]; the rest is for the release of the lock.
const endTimeout = shutdown.Reserve * 2 / 5

// awaitRecords waits until the actuator has reported the end of every pod that is
// gone: a list can show that a pod is gone before the call that stops it has
// returned. A runtime that hangs delays it by endTimeout at most.
func (s *Driver) awaitRecords(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	gone := map[string]bool{}
	for i := range s.state.Pods {
		if m := &s.state.Pods[i]; m.Status == shutdown.Gone {
			gone[m.UID] = true
		}
	}
	pending := func(r evict.Record) bool {
		return r.Cause == evict.CauseShutdown && r.Result == evict.ResultPending && gone[r.UID]
	}
	for slices.ContainsFunc(s.o.Execute.Records().List(), pending) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// saveWithTimeout saves the state and waits for that, at most for endTimeout.
func (s *Driver) saveWithTimeout() {
	done := make(chan error, 1)
	go func() { done <- s.o.Save() }()
	select {
	case err := <-done:
		if err != nil {
			s.o.Log.Error("state not saved", "error", err)
		}
	case <-time.After(endTimeout):
		s.o.Log.Error("state not saved in time; the node may shut down without it")
	}
}
