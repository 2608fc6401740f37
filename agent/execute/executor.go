// Package execute is the one place where an order becomes an action, and where
// the result of an action becomes a record and a report.
//
// The decision loop and the node's shutdown give their orders to an [Executor].
// It adds the record, chooses the actuator, and takes what the actuator reports:
// into the record, the metrics, the log and the saved state, and to those who
// subscribed. The hot path's thread kills through agent/act without it; the loop
// hands those kills to [Executor.Follow].
package execute

import (
	"context"
	"log/slog"

	"github.com/evictd/evictd/agent/act"
	"github.com/evictd/evictd/agent/evict"
)

// Options are what an Executor needs.
type Options struct {
	// Killer and DryRun make the actuators. Each calls report from any goroutine.
	Killer, DryRun func(report func(act.Progress)) act.Actuator
	Records        *Records
	Log            *slog.Logger
	Metrics        Metrics
	// Save asks for the state to be saved soon. It must not block.
	Save func()
}

// Metrics counts evictions that have ended.
type Metrics interface{ Evicted(*evict.Record) }

// Report is the progress of an order.
type Report struct {
	act.Progress
	// Record is the order's record with that progress in it; empty if no record of
	// the pod is pending.
	Record evict.Record
}

// Executor carries out orders. It is safe for concurrent use.
type Executor struct {
	killer, dryRun act.Actuator
	records        *Records
	log            *slog.Logger
	metrics        Metrics
	save           func()
	subscribers    []func(Report)
}

// New returns an Executor.
func New(o Options) *Executor {
	e := &Executor{records: o.Records, log: o.Log, metrics: o.Metrics, save: o.Save}
	e.killer, e.dryRun = o.Killer(e.take), o.DryRun(e.take)
	return e
}

// Subscribe has f called with every report, from any goroutine. f must not block.
// Subscribe must not be called after the first order.
func (e *Executor) Subscribe(f func(Report)) { e.subscribers = append(e.subscribers, f) }

// Records returns the records of the orders.
func (e *Executor) Records() *Records { return e.records }

func (e *Executor) actuator(dryRun bool) act.Actuator {
	if dryRun {
		return e.dryRun
	}
	return e.killer
}

// Evict adds the record of an order and hands its job to the actuator: the dry
// run if the record is one of a dry run.
func (e *Executor) Evict(ctx context.Context, rec evict.Record, job act.Job) {
	e.begin(rec)
	e.actuator(rec.DryRun).Evict(ctx, job)
}

// Follow adds the record of a pod that was killed through a Hold, and has the
// actuator wait for its end and close the Hold.
func (e *Executor) Follow(ctx context.Context, rec evict.Record, order evict.Order, hold *act.Hold, strike act.Strike) {
	e.begin(rec)
	e.actuator(rec.DryRun).Follow(ctx, order, hold, strike)
}

// begin adds a record before the actuator can report anything about it.
func (e *Executor) begin(rec evict.Record) {
	e.records.add(rec)
	e.save()
}

// Resume continues an eviction of an earlier run, with the record that it has.
func (e *Executor) Resume(ctx context.Context, job act.Job, dryRun bool) {
	e.records.takeUp(job.Order.UID)
	e.actuator(dryRun).Evict(ctx, job)
}

// Harden ends the grace period of a pod that is being evicted.
func (e *Executor) Harden(ctx context.Context, job act.Job, dryRun bool) {
	e.actuator(dryRun).Harden(ctx, job)
}

// take notes the progress of an order. The actuators call it from any goroutine,
// and it never waits.
func (e *Executor) take(p act.Progress) {
	rec, ok := e.records.update(p.UID, func(rec *evict.Record) { apply(p, rec) })
	if ok && rec.Result != evict.ResultPending {
		e.metrics.Evicted(&rec)
		e.logEnd(&rec)
		e.save()
	}
	for _, f := range e.subscribers {
		f(Report{Progress: p, Record: rec})
	}
}

func (e *Executor) logEnd(rec *evict.Record) {
	attributes := []any{"pod", rec.Pod, "signal", rec.Cause, "result", rec.Result, "dry_run", rec.DryRun, "processes", rec.Processes}
	if !rec.SignalSent.IsZero() && !rec.LastGone.IsZero() {
		attributes = append(attributes, "gone_after", rec.LastGone.Sub(rec.SignalSent).String(), "freed_bytes", rec.Freed)
	}
	if rec.Error != "" {
		attributes = append(attributes, "error", rec.Error)
	}
	switch rec.Result {
	case evict.ResultFailed, evict.ResultStuck:
		e.log.Error(InDryRun(rec.DryRun, "eviction did not succeed", "eviction would not succeed"), attributes...)
	default:
		e.log.Info(InDryRun(rec.DryRun, "eviction ended", "dry run: pod left alone"), attributes...)
	}
}

// InDryRun returns the log message for the mode: in dry run a line must not say
// that evictd does what it leaves alone.
func InDryRun(dryRun bool, acting, rehearsing string) string {
	if dryRun {
		return rehearsing
	}
	return acting
}
