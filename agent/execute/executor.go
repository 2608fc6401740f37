// Package execute carries out eviction orders, and keeps and updates their records.
//
// The decision loop and the node's shutdown make the record of an order and pass it to an
// [Executor] with the order. The Executor stores the record in its [Records] and passes the
// order to an actuator. It applies what the actuator reports to the record, the metrics, the
// log and the saved state, and passes it to its subscribers.
//
// A pod that is killed for a hard memory threshold is killed through an [act.KillHandle], if
// one can be opened, before its order reaches this package. The loop makes the record and
// passes it and the handle to [Executor.Follow]. agent/status makes the records of kills by
// the kernel's OOM killer ([Records.AddKernelKill]).
package execute

import (
	"context"
	"log/slog"

	"github.com/evictd/evictd/agent/act"
	"github.com/evictd/evictd/agent/evict"
)

// Options configure an Executor.
type Options struct {
	// Killer and DryRun create the actuators, which may call report from any goroutine.
	Killer, DryRun func(report func(act.Progress)) act.Actuator
	Records        *Records
	Log            *slog.Logger
	Metrics        Metrics
	// Save requests that the state is saved soon. It must not block.
	Save func()
}

// Metrics counts evictions that have ended.
type Metrics interface{ Evicted(*evict.Record) }

// Report is the progress of an order.
type Report struct {
	act.Progress
	// Record is the order's record after that progress; empty if the pod has no
	// pending record.
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
	e.killer, e.dryRun = o.Killer(e.onProgress), o.DryRun(e.onProgress)
	return e
}

// Subscribe has f called with every report, from any goroutine. f must not block.
// Subscribe must not be called after the first order.
func (e *Executor) Subscribe(f func(Report)) { e.subscribers = append(e.subscribers, f) }

// Records returns the records of the orders.
func (e *Executor) Records() *Records { return e.records }

// actuator returns the actuator of a mode.
func (e *Executor) actuator(dryRun bool) act.Actuator {
	if dryRun {
		return e.dryRun
	}
	return e.killer
}

// Evict adds the record of an order and passes its job to the actuator that the
// record's DryRun selects.
func (e *Executor) Evict(ctx context.Context, rec evict.Record, job act.Job) {
	e.addRecord(rec)
	e.actuator(rec.DryRun).Evict(ctx, job)
}

// Follow adds the record of a pod that was killed through a handle. The actuator
// waits until the pod is gone and closes the handle.
func (e *Executor) Follow(ctx context.Context, rec evict.Record, job act.Job, handle *act.KillHandle, result act.KillResult) {
	e.addRecord(rec)
	e.actuator(rec.DryRun).Follow(ctx, job, handle, result)
}

// Refuse adds the complete record of a pod that is refused before it started, and then calls
// report, unless in dry run: an answer to the report finds the record. If report fails, the record
// says so, and Refuse returns the error.
func (e *Executor) Refuse(rec evict.Record, report func() error) (err error) {
	e.records.add(rec)
	if !rec.DryRun {
		if err = report(); err != nil {
			rec.Result, rec.Error = evict.ResultFailed, err.Error()
			e.records.refusalFailed(rec.UID, rec.Error)
		}
	}
	e.save()
	e.metrics.Evicted(&rec)
	return err
}

// addRecord adds a record. It is called before the actuator can report on it.
func (e *Executor) addRecord(rec evict.Record) {
	e.records.add(rec)
	e.save()
}

// Resume continues an eviction of an earlier run, with its record.
func (e *Executor) Resume(ctx context.Context, job act.Job, dryRun bool) {
	e.records.resume(job.Order.UID)
	e.actuator(dryRun).Evict(ctx, job)
}

// Escalate ends the grace period of a pod that is being evicted.
func (e *Executor) Escalate(ctx context.Context, job act.Job, dryRun bool) {
	e.actuator(dryRun).Escalate(ctx, job)
}

// onProgress applies the progress of an order. The actuators call it from any
// goroutine, and it does not block.
func (e *Executor) onProgress(p act.Progress) {
	rec, ok := e.records.update(p.UID, func(rec *evict.Record) { applyProgress(p, rec) })
	if ok && rec.Result != evict.ResultPending {
		e.metrics.Evicted(&rec)
		e.logEnd(&rec)
		e.save()
	}
	for _, f := range e.subscribers {
		f(Report{Progress: p, Record: rec})
	}
}

// logEnd logs the end of an eviction.
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

// InDryRun returns dryRunMessage in dry run and message otherwise: a log line of a dry
// run must not claim an action.
func InDryRun(dryRun bool, message, dryRunMessage string) string {
	if dryRun {
		return dryRunMessage
	}
	return message
}
