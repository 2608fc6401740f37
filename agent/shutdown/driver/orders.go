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

// carryOut hands the orders to the actuator.
func (s *Driver) carryOut(ctx context.Context, v *loop.View, orders *shutdown.Orders, dryRun bool) {
	if len(orders.Stop)+len(orders.Kill) == 0 {
		return
	}
	guard := s.o.Inventory.Guard()
	for i := range orders.Stop {
		stop := &orders.Stop[i]
		rec := s.record(v, stop, dryRun)
		s.o.Log.Warn(execute.InDryRun(dryRun, "stopping pod", "would stop pod"), "pod", stop.Pod, "uid", stop.UID, "grace", stop.Grace.String(), "reason", rec.Reason, "again", stop.Again, "dry_run", dryRun)
		order := evict.Order{UID: stop.UID, Pod: stop.Pod, Cause: rec.Cause, Grace: stop.Grace, Expected: rec.Expected, Reason: rec.Reason, Message: rec.Message}
		one := loop.Job(order, &v.Snapshot, guard)
		one.Turns = turns(podOf(v, stop.UID), v.Snapshot.Handles[stop.UID].Containers, stop.Grace)
		if stop.Again {
			s.o.Execute.Resume(ctx, one, dryRun)
		} else {
			s.o.Execute.Evict(ctx, rec, one)
		}
	}
	for i := range orders.Kill {
		m := &orders.Kill[i]
		s.o.Log.Warn("killing pod, its time is up", "pod", m.Pod, "uid", m.UID, "grace", m.Grace.String())
		s.o.Execute.Harden(ctx, loop.Job(evict.Order{UID: m.UID, Pod: m.Pod, Cause: evict.CauseShutdown, Hard: true}, &v.Snapshot, guard), dryRun)
	}
}

func podOf(v *loop.View, uid string) *evict.Pod {
	at := slices.IndexFunc(v.Snapshot.Pods, func(p evict.Pod) bool { return p.UID == uid })
	if at < 0 {
		return &evict.Pod{}
	}
	return &v.Snapshot.Pods[at]
}

// record begins the record of a pod that is stopped.
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

// announce tells what has changed, keeps it, and lets the node go down when all
// is done.
func (s *Driver) announce(ctx context.Context, before *shutdown.State, dryRun bool) {
	if s.state.Phase == before.Phase {
		return
	}
	switch s.state.Phase {
	case shutdown.Stopping:
		s.o.Log.Warn(execute.InDryRun(dryRun, "the node goes down, stopping its pods", "the node goes down; dry run, no pod is stopped"), "deadline", s.state.Deadline(), "groups", len(s.state.Schedule), "manual", s.state.Manual)
		s.o.RequestSave()
	case shutdown.Ended:
		left := 0
		for i := range s.state.Pods {
			if st := s.state.Pods[i].Status; st != shutdown.Gone {
				left++
			}
		}
		s.o.Log.Warn(execute.InDryRun(dryRun, "the pods are stopped, the node may go down", "dry run: no pod was stopped, the node may go down"),
			"took", s.state.Over.Sub(s.state.Began).String(), "pods", len(s.state.Pods), "left", left)
		s.awaitRecords(ctx)
		s.saveSoon()
		s.o.Guard.Done()
	default:
		s.o.Log.Warn("the shutdown was called off, no further pod is stopped", "took", s.state.Over.Sub(s.state.Began).String())
		s.o.RequestSave()
	}
	s.o.Announce(s.state.Phase)
}

// What is reserved for the report: concluding is how long the records of pods that
// have gone are waited for to be complete, saving for how long the state to be on
// the disk, before the node may go down. glance is how often that is looked for.
const (
	concluding, saving = shutdown.Reserve * 2 / 5, shutdown.Reserve * 2 / 5
	glance             = 10 * time.Millisecond
)

// awaitRecords waits until the actuator has told the end of every pod that has
// gone, but not for a runtime that hangs: the list of pods says sooner than the
// call that asked a pod to stop that it has.
func (s *Driver) awaitRecords(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, concluding)
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
		case <-time.After(glance):
		}
	}
}

// saveSoon keeps the state and waits for that, but not for a disk that hangs.
func (s *Driver) saveSoon() {
	done := make(chan error, 1)
	go func() { done <- s.o.Save() }()
	select {
	case err := <-done:
		if err != nil {
			s.o.Log.Error("state not saved", "error", err)
		}
	case <-time.After(saving):
		s.o.Log.Error("state not saved in time")
	}
}
