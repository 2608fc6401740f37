package disks

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/evictd/evictd/agent/pollinterval"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/kernel/disk"
)

// minReadInterval and maxReadInterval bound the interval of readings. At minFillBytes
// per second, a filesystem loses 50 MiB in 50 ms. The maximum is the kubelet's
// monitoring period. lowReadInterval is the interval while every threshold is met,
// when only the recovery can be missed.
const (
	minReadInterval, maxReadInterval = 50 * time.Millisecond, 10 * time.Second
	lowReadInterval                  = 250 * time.Millisecond
)

// minFillBytes and minFillInodes are the lowest rates, per second, at which a
// filesystem is assumed to fill: the write rate of one good disk, and the rate at
// which one process creates files.
const (
	minFillBytes  = 1 << 30
	minFillInodes = 100_000
)

// observe reads one filesystem, at an adaptive interval, until ctx ends.
func (w *Watch) observe(ctx context.Context, r Role) {
	var reading singleCalls[disk.Space]
	intervals := [2]pollinterval.Interval{
		{MinRate: minFillBytes, Min: minReadInterval, Max: maxReadInterval, BelowAll: lowReadInterval},
		{MinRate: minFillInodes, Min: minReadInterval, Max: maxReadInterval, BelowAll: lowReadInterval},
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	var path string
	var on disk.Mount
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.wakeRole[r]:
		case <-timer.C:
		}
		w.mu.Lock()
		f := &w.filesystems[r]
		if f.path != path || f.mount != on {
			path, on = f.path, f.mount
			intervals[0].Reset()
			intervals[1].Reset()
		}
		w.mu.Unlock()
		if path == "" {
			timer.Reset(queryRetry)
			continue
		}
		target := path // a call that hangs outlives this iteration
		space, err := reading.get("statfs of "+target).call(callTimeout, func() (disk.Space, error) { return w.read(target) })
		wait := w.record(r, path, space, err, &intervals)
		if wait == maxReadInterval {
			wait = pollinterval.AlignedWait(time.Now(), maxReadInterval)
		}
		timer.Reset(wait)
	}
}

// record stores a reading and returns the time until the next one.
func (w *Watch) record(r Role, path string, space disk.Space, err error, intervals *[2]pollinterval.Interval) time.Duration {
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	f := &w.filesystems[r]
	if f.path != path {
		return 0 // the path has changed during the read
	}
	bytes, inodes := r.signals()
	if err != nil {
		if f.err == nil {
			w.o.Log.Error("could not read filesystem; its signals are unreadable", "filesystem", r.String(), "path", path, "error", err)
			notify(w.crossed)
		}
		f.err, f.period = err, queryRetry
		return f.period
	}
	if f.err != nil {
		w.o.Log.Info("filesystem is readable again", "filesystem", r.String(), "path", path)
	}
	before, had := f.space, !f.at.IsZero()
	f.space, f.at, f.err = space, now, nil

	available, inodesFree := signed(space.Available), signed(space.InodesFree)
	amounts := levels(w.thresholds[bytes], signed(space.Bytes))
	intervals[0].Observe(now, available)
	f.period = intervals[0].Next(amounts)
	crossed := countAbove(amounts, available) != countAbove(amounts, signed(before.Available))
	if space.CountsInodes {
		amounts := levels(w.thresholds[inodes], signed(space.Inodes))
		intervals[1].Observe(now, inodesFree)
		f.period = min(f.period, intervals[1].Next(amounts))
		crossed = crossed || countAbove(amounts, inodesFree) != countAbove(amounts, signed(before.InodesFree))
	}
	if crossed || !had {
		notify(w.crossed)
	}
	return f.period
}

// levels returns the amounts at which a decision may change: each threshold, and
// the amount at which its condition ends.
func levels(thresholds []signal.Threshold, capacity int64) []int64 {
	var amounts []int64
	for _, t := range thresholds {
		amounts = append(amounts, t.Value.Amount(capacity))
		if target := t.Target(capacity); target != amounts[len(amounts)-1] {
			amounts = append(amounts, target)
		}
	}
	return amounts
}

// countAbove counts the amounts above available.
func countAbove(amounts []int64, available int64) (n int) {
	for _, amount := range amounts {
		if available < amount {
			n++
		}
	}
	return n
}

// signed returns n, or math.MaxInt64 if n is larger.
func signed(n uint64) int64 { return int64(min(n, math.MaxInt64)) }

// Read sets the disk signals from the last readings, without waiting. A signal of a
// filesystem that was not read in time is unreadable. A signal that the node or the
// filesystem does not have, or that was not read yet, is not observed.
func (w *Watch) Read(now time.Time, into *signal.Observations) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for r := range roles {
		bytes, inodes := r.signals()
		into[bytes], into[inodes] = signal.Observation{}, signal.Observation{}
		if !w.applies(r) {
			continue
		}
		f := &w.filesystems[r]
		if f.pending() {
			continue
		}
		if err := f.unreadable(now); err != nil {
			o := signal.Observation{Status: signal.Unreadable, Time: now, Err: err}
			into[bytes], into[inodes] = o, o
			continue
		}
		into[bytes] = signal.Observation{
			Status: signal.Observed, Time: f.at, Available: signed(f.space.Available), Capacity: signed(f.space.Bytes),
			ReadOnly: f.mount.ReadOnly(),
		}
		if f.space.CountsInodes {
			into[inodes] = signal.Observation{
				Status: signal.Observed, Time: f.at, Available: signed(f.space.InodesFree), Capacity: signed(f.space.Inodes),
				ReadOnly: f.mount.ReadOnly(),
			}
		}
	}
}

var errPathUnknown = errors.New("path not known: no answer to ImageFsInfo from the container runtime")

var errNotRead = errors.New("not read yet")

// pending reports whether the first answer is still due: of the runtime about the
// path, of the filesystem about its space, or about its mount, which says whether
// it is read-only.
func (f *filesystem) pending() bool {
	return f.path == "" && f.pathErr == errNotQueried || f.path != "" && (f.at.IsZero() && f.err == nil || !f.locateTried)
}

// unreadable returns why the last reading can't be used; nil if it can.
func (f *filesystem) unreadable(now time.Time) error {
	switch {
	case f.path == "":
		return errPathUnknown // the reason is in the status
	case f.err != nil:
		return f.err
	case f.at.IsZero():
		return errNotRead
	}
	// An observer that is late by more than its calls may take hangs.
	if age := now.Sub(f.at); age > f.period+2*callTimeout {
		return fmt.Errorf("last read of %s was %v ago; the interval is %v", f.path, age.Round(time.Millisecond), f.period)
	}
	return nil
}
