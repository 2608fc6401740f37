package lanes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/evictd/evictd/agent/signal"
)

// input returns what lanes are reconciled with, and sets s.idle and, if that is false,
// s.lastFullCheck. While idle, it uses the last reading of polling, which is at most two
// polling intervals old, instead of another reading.
func (s *Set) input(now time.Time) *laneInput {
	in := &laneInput{idle: !s.recentAlarm(now) && now.Sub(s.lastFullCheck) < fullCheckInterval}
	s.mu.Lock()
	in.thresholds, in.observed = s.thresholds, s.lastPoll
	in.idle = in.idle && !s.thresholdsChanged && now.Sub(s.lastPollAt) < 2*maxPollInterval && !nearThreshold(in.thresholds, &in.observed)
	s.idle, s.thresholdsChanged = in.idle, false
	s.mu.Unlock()
	if !in.idle {
		s.lastFullCheck = now
		s.o.Read(now, &in.observed)
	}
	return in
}

// recentAlarm reports whether a lane raised an alarm within activeAfterAlarm.
func (s *Set) recentAlarm(now time.Time) bool {
	return slices.ContainsFunc(s.entries, func(e *entry) bool {
		at := e.lastAlarmAt.Load()
		return at != 0 && now.Sub(s.start.Add(time.Duration(at))) < activeAfterAlarm
	})
}

// reconcileAll reconciles all lanes and opens those that are due. It returns when to do so
// again. It ignores the errors of lanes once ctx has ended.
func (s *Set) reconcileAll(ctx context.Context, now time.Time) time.Duration {
	in := s.input(now)
	wait := idleInterval
	if nearThreshold(in.thresholds, &in.observed) {
		wait = activeInterval
	}
	for _, e := range s.entries {
		switch e.state {
		case Up:
			if err := s.reconcileLane(ctx, e, now, in); err != nil {
				if errors.Is(err, errMissedTasks) {
					e.missed++
				}
				s.fail(e, now, err)
			}
		case Starting:
			s.open(ctx, e, now, in)
		case Degraded:
			if !now.Before(e.retryAt) {
				e.reopened++
				s.open(ctx, e, now, in)
			}
		}
		if e.state == Degraded {
			wait = min(wait, max(e.retryAt.Sub(now), 0))
		}
	}
	if s.recentAlarm(now) {
		wait = min(wait, activeInterval)
	}
	wait = min(wait, s.failMissed(now))
	s.o.Poll.SetCovered(s.allSampled(in))
	s.publish()
	return wait
}

// nearThreshold reports whether a memory signal is below a threshold or within a sixteenth
// of its capacity above it, so that armed thresholds have to be exact.
func nearThreshold(thresholds []signal.Threshold, observed *signal.Observations) bool {
	const share = 16
	for i := range thresholds {
		t := &thresholds[i]
		o := &observed[t.Signal]
		if t.Signal.IsMemory() && o.Status == signal.Observed && o.Available-t.Value.Amount(o.Capacity) < o.Capacity/share {
			return true
		}
	}
	return false
}

// open opens a lane. When ctx ends, the Waiter closes its poller, so a lane that is being
// opened fails. Its state then stays what it was.
func (s *Set) open(ctx context.Context, e *entry, now time.Time, in *laneInput) {
	err := e.fault.open()
	if err == nil {
		fresh := *in
		fresh.idle = false
		err = e.open(now, &fresh)
	}
	now = time.Now() // opening may have taken long
	if err != nil {
		_ = e.close() // the error of open is reported
		if ctx.Err() != nil {
			return
		}
		if permanent(err) {
			s.setState(e, now, Unavailable, err.Error())
			return
		}
		s.backOff(e, now, err)
		return
	}
	s.setState(e, now, Up, "")
	e.heartbeatAt, e.reported, e.reportedAt = now, e.partialFailure(), now
	s.updateCoverage(e)
	s.selfCheck(e, now)
}

// reconcileLane reconciles a lane that is up. The error degrades it. The lane stays up if
// ctx has ended, because the Waiter has then closed its poller.
func (s *Set) reconcileLane(ctx context.Context, e *entry, now time.Time, in *laneInput) error {
	err := e.reconcile(now, in)
	if ctx.Err() != nil {
		return nil // a partial failure has the same cause
	}
	if err != nil {
		return err
	}
	s.updateCoverage(e)
	s.selfCheck(e, now)
	s.reportPartialFailure(e, now)
	l, ok := e.lane.(periodic)
	if !ok {
		return nil
	}
	if n := l.heartbeat(); n != e.heartbeatSeen && !e.fault.hideSamples() {
		e.heartbeatSeen, e.heartbeatAt = n, now
	}
	if silent := now.Sub(e.heartbeatAt); silent > heartbeatTimeout {
		return fmt.Errorf("no sample for %v", silent.Round(time.Millisecond))
	}
	return nil
}

// reportPartialFailure reports a changed partial failure of a lane that is up.
func (s *Set) reportPartialFailure(e *entry, now time.Time) {
	failure := e.partialFailure()
	if failure == e.reported || now.Sub(e.reportedAt) < reportInterval {
		return
	}
	e.reported, e.reportedAt = failure, now
	if s.o.Changed != nil {
		s.o.Changed(e.status())
	}
}

// fail closes a lane that was up, and degrades it.
func (s *Set) fail(e *entry, now time.Time, reason error) {
	if now.Sub(e.since) >= maxBackoff {
		e.backoff = 0
	}
	if err := e.close(); err != nil {
		reason = fmt.Errorf("%w; closing it: %w", reason, err)
	}
	s.backOff(e, now, reason)
}

// backOff degrades a lane until its next attempt.
func (s *Set) backOff(e *entry, now time.Time, reason error) {
	e.backoff = min(max(2*e.backoff, minBackoff), maxBackoff)
	e.retryAt = now.Add(e.backoff)
	s.mu.Lock()
	e.resetExpectations()
	s.mu.Unlock()
	s.setState(e, now, Degraded, reason.Error())
}

func (s *Set) setState(e *entry, now time.Time, state State, reason string) {
	if e.state == state && e.reason == reason {
		return
	}
	e.state, e.reason, e.since = state, reason, now
	s.publish()
	if s.o.Changed != nil {
		s.o.Changed(e.status())
	}
}

// publish replaces what Statuses, Counts and Stalls return.
func (s *Set) publish() {
	var list []Status
	for _, e := range s.entries {
		list = append(list, e.status())
	}
	var counts Counts
	var stalls []Stall
	if s.up(BPF) {
		stats := s.sampler.stats
		counts.Sampler = &stats
	}
	if s.up(Events) {
		limits := s.events.totals
		counts.Limits = &limits
	}
	if s.up(PSI) {
		stalls = s.psi.sustainedStalls()
	}
	if s.up(Reclaim) {
		counts.ReclaimCounts = s.reclaim.last
	}
	s.mu.Lock()
	s.statuses, s.counts, s.psiStalls = list, counts, stalls
	s.mu.Unlock()
}

func (s *Set) up(name string) bool {
	return slices.ContainsFunc(s.entries, func(e *entry) bool { return e.name == name && e.state == Up })
}
