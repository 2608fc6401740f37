package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/tests/node"
)

// dryRunShown is how long a dry run is watched doing nothing.
const dryRunShown = 2 * time.Second

// pressure wakes the hog, prints what happens until memory.available has recovered, and returns evictd's record.
func (d *demo) pressure(ctx context.Context) (r evict.Record, err error) {
	// A signal that comes before the hog listens has no effect on process 1 of a PID namespace.
	c := d.hog.Containers[0]
	if err := d.await(ctx, "the hog to wake up", func() (bool, error) {
		if err := unix.Kill(c.PID, unix.SIGUSR1); err != nil {
			return false, fmt.Errorf("wake the hog: %w", err)
		}
		usage, err := d.node.MemoryUsage(c.Cgroup)
		return usage > hog.request, err
	}); err != nil {
		return r, err
	}
	if err := d.await(ctx, "evictd to evict the hog", func() (bool, error) {
		if r, err = d.record(ctx); err != nil || !r.SignalSent.IsZero() || r.Result == evict.ResultDryRun {
			return true, err
		}
		return false, d.showAvailable()
	}); err != nil {
		return r, err
	}
	d.decision(&r)
	if d.dryRun {
		if err := d.stopHog(ctx, r.Decided); err != nil {
			return r, err
		}
	}
	if err := d.await(ctx, "memory.available to be above the threshold again", func() (bool, error) {
		n, err := d.available()
		return n >= d.threshold, err
	}); err != nil {
		return r, err
	}
	d.say("RECOVERY  memory.available is seen above the threshold again, %v after the crossing; it was %s below at the lowest",
		short(time.Since(r.CrossingSeen)), control.Bytes(d.threshold-min(d.lowest, r.Available)))
	if err := d.await(ctx, "evictd to finish its record", func() (bool, error) {
		r, err = d.record(ctx)
		return r.Result != evict.ResultPending, err
	}); err != nil {
		return r, err
	}
	if !r.LastGone.IsZero() {
		d.at(r.LastGone, "GONE      no process of %s is left, %v after the signal", r.Pod, short(r.LastGone.Sub(r.SignalSent)))
	}
	d.shown = gauge{}
	return r, d.showAvailable()
}

// record returns the record of the one eviction, empty before it.
func (d *demo) record(ctx context.Context) (r evict.Record, err error) {
	answer, err := d.daemon.Client().Records(ctx)
	if err == nil && len(answer.Records) > 0 {
		r = answer.Records[0]
	}
	return r, err
}

// decision prints what evictd saw, decided and did.
func (d *demo) decision(r *evict.Record) {
	d.at(r.CrossingSeen, "CROSSING  memory.available falls below the threshold of %s", control.Bytes(d.threshold))
	d.at(r.Decided, "RANKING   evictd confirms with a fresh reading, %s below, and ranks by usage over request, priority and excess:", control.Bytes(r.Deficit))
	d.ranking(r.Candidates)
	if d.dryRun {
		d.at(r.Decided, "VERDICT   would kill %s, expecting %s; nothing is touched", r.Pod, control.Bytes(r.Expected))
		return
	}
	processes := "process"
	if r.Processes != 1 {
		processes = fmt.Sprintf("%d processes", r.Processes)
	}
	d.at(r.SignalSent, "SIGKILL   to the %s of %s, %v after the crossing was seen by the lane %q", processes, r.Pod, short(r.SignalSent.Sub(r.CrossingSeen)), r.Lane)
}

// stopHog ends the growth that a dry run does not, once it has shown that nothing happens.
func (d *demo) stopHog(ctx context.Context, decided time.Time) error {
	if err := d.await(ctx, "the dry run to be seen", func() (bool, error) {
		return time.Since(decided) >= dryRunShown, d.showAvailable()
	}); err != nil {
		return err
	}
	if err := d.alive(ctx, d.hog); err != nil {
		return fmt.Errorf("in dry run: %w", err)
	}
	d.say("STOP      the hog lives on, as nothing was done; the demonstration itself stops it now")
	return unix.Kill(d.hog.Containers[0].PID, unix.SIGKILL)
}

// check returns an error unless everything went as it should.
func (d *demo) check(ctx context.Context, r *evict.Record) error {
	result, did := evict.ResultKilled, "was evicted"
	if d.dryRun {
		result, did = evict.ResultDryRun, "would have been evicted"
	}
	if r.Pod != "demo/hog" || r.Cause != signal.MemoryAvailable.String() || !r.Hard || r.Result != result || r.Error != "" {
		return fmt.Errorf("evictd's record is %+v; want demo/hog %s by a hard threshold on %v", *r, result, signal.MemoryAvailable)
	}
	d.ok("%s %s: %s", r.Pod, did, strings.TrimSpace(r.Message))
	if !d.dryRun {
		if err := d.await(ctx, "the hog's sandbox to be stopped", func() (bool, error) {
			now, err := d.node.Pod(ctx, d.hog.ID)
			return err == nil && !now.Ready && !now.Containers[0].Running, err
		}); err != nil {
			return err
		}
		d.ok("its sandbox is stopped, and its memory is back")
	}
	// Had the kill been too little, or the decision wrong, evictd would act again before the condition clears.
	if err := d.await(ctx, "the condition MemoryPressure to clear", func() (bool, error) {
		s, err := d.daemon.Client().Status(ctx)
		if err == nil && len(s.Records) != 1 {
			err = fmt.Errorf("evictd evicted again: %+v", s.Records)
		}
		return len(s.Conditions) == 0, err
	}); err != nil {
		return err
	}
	d.ok("the node's condition MemoryPressure came and went")
	for _, pod := range d.pods {
		if err := d.alive(ctx, pod); err != nil {
			return err
		}
		usage, err := d.node.MemoryUsage(pod.Containers[0].Cgroup)
		if err != nil {
			return err
		}
		d.ok("%s/%s lives: process %d as before, with its %s", pod.Namespace, pod.Name, pod.Containers[0].PID, control.Bytes(usage))
	}
	return nil
}

// alive returns an error unless the pod runs with the processes that it had.
func (d *demo) alive(ctx context.Context, before node.Pod) error {
	now, err := d.node.Pod(ctx, before.ID)
	if err != nil {
		return err
	}
	was, is := before.Containers[0], now.Containers[0]
	if !now.Ready || !is.Running || is.PID != was.PID || now.PID != before.PID {
		return fmt.Errorf("%s/%s does not run as before: %+v", before.Namespace, before.Name, now)
	}
	return nil
}

func short(d time.Duration) time.Duration {
	if d < 10*time.Millisecond {
		return d.Round(10 * time.Microsecond)
	}
	return d.Round(time.Millisecond)
}
