package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/evict"
)

const (
	// Available memory is printed when it has changed by gaugeStep, and at the latest after gaugeEvery.
	gaugeStep  = 192 * mebibyte
	gaugeEvery = time.Second
	// askEvery is how often evictd is asked for its records.
	askEvery = 10 * time.Millisecond
)

// telling is how far the story of the kill was told.
type telling struct{ crossing, ranking, signal, gone, recovery, stopped bool }

// pressure tells what happens from the hog's waking to the memory's recovery, and returns evictd's record of it.
func (p *play) pressure(ctx context.Context) (evict.Record, error) {
	ticker := time.NewTicker(askEvery)
	defer ticker.Stop()
	end := time.After(patience)
	var told telling
	var gauge gauge
	for {
		record, done, err := p.tell(ctx, &told)
		if done || err != nil {
			return record, err
		}
		// Between the crossing and the recovery every line is about the kill.
		if quiet := !told.crossing || p.dryRun && !told.stopped; quiet {
			if err := p.show(&gauge); err != nil {
				return record, err
			}
		}
		select {
		case <-ctx.Done():
			return record, context.Cause(ctx)
		case <-end:
			return record, fmt.Errorf("wait for %s: not within %v; evictd's log:\n%s", told.next(), patience, p.daemon.LogTail())
		case <-ticker.C:
		}
	}
}

// gauge is what was printed last of available memory.
type gauge struct {
	at        time.Time
	available int64
}

// show prints available memory if it is news.
func (p *play) show(last *gauge) error {
	s, err := p.witness.testify()
	if err != nil || s.available == 0 {
		return err
	}
	if change := s.available - last.available; max(change, -change) < gaugeStep && time.Since(last.at) < gaugeEvery {
		return nil
	}
	*last = gauge{time.Now(), s.available}
	p.timeline.gauge(s.available, p.witness.threshold, p.calm)
	return nil
}

// next names what is waited for.
func (t *telling) next() string {
	switch {
	case !t.crossing:
		return "the crossing"
	case !t.ranking:
		return "evictd's decision"
	case !t.recovery:
		return "memory.available to be above the threshold again"
	}
	return "evictd to finish its record"
}

// tell prints what is new.
func (p *play) tell(ctx context.Context, told *telling) (record evict.Record, done bool, err error) {
	s, err := p.witness.testify()
	if err != nil {
		return record, false, err
	}
	if !told.crossing && !s.crossed.IsZero() {
		told.crossing = true
		p.timeline.at(s.crossed, "CROSSING  memory.available falls below the threshold of %s", control.Bytes(p.witness.threshold))
	}
	answer, err := p.daemon.Client().Records(ctx)
	if err != nil {
		return record, false, err
	}
	switch len(answer.Records) {
	case 0:
		return record, false, nil
	case 1:
		record = answer.Records[0]
	default:
		return record, false, fmt.Errorf("evictd evicted more than one pod: %+v", answer.Records)
	}
	if !told.crossing {
		if p.witness.threshold-record.Available <= 0 {
			return record, false, errors.New("evictd decided to evict before the threshold was crossed")
		}
		if record.Result == evict.ResultPending || !p.witness.believe(record.CrossingSeen, record.Available) {
			return record, false, nil // evictd was first to see it
		}
		told.crossing = true
		p.timeline.at(record.CrossingSeen, "CROSSING  memory.available falls below the threshold of %s, for less than %v: evictd's word, as the witness missed it",
			control.Bytes(p.witness.threshold), sampleEvery)
	}
	p.tellDecision(&record, told)
	if p.dryRun {
		if err := p.stopHog(ctx, &record, told); err != nil {
			return record, false, err
		}
	}
	if !told.recovery && !s.recovered.IsZero() && (told.signal || told.stopped) {
		told.recovery = true
		p.timeline.at(s.recovered, "RECOVERY  memory.available is above the threshold again, %v after the crossing; it was %s below at the lowest",
			short(s.recovered.Sub(s.crossed)), control.Bytes(p.witness.threshold-s.lowest))
	}
	if told.recovery && !told.gone && !record.LastGone.IsZero() {
		told.gone = true
		p.timeline.at(record.LastGone, "GONE      no process of %s is left, %v after the signal", record.Pod, short(record.LastGone.Sub(record.SignalSent)))
	}
	if !told.recovery || record.Result == evict.ResultPending {
		return record, false, nil
	}
	p.timeline.gauge(s.available, p.witness.threshold, p.calm)
	return record, true, nil
}

// tellDecision prints what is new of evictd's record.
func (p *play) tellDecision(r *evict.Record, told *telling) {
	if !told.ranking {
		told.ranking = true
		p.timeline.at(r.Decided, "RANKING   evictd confirms with a fresh reading, %s below, and ranks by usage over request, priority and excess:",
			control.Bytes(r.Deficit))
		p.ranking(r.Candidates)
		if p.dryRun {
			p.timeline.at(r.Decided, "VERDICT   would kill %s, expecting %s; nothing is touched", r.Pod, control.Bytes(r.Expected))
		}
	}
	if p.dryRun {
		return
	}
	if !told.signal && !r.SignalSent.IsZero() {
		told.signal = true
		p.timeline.at(r.SignalSent, "SIGKILL   to the %s of %s, %v after the crossing was seen by the lane %q",
			count(r.Processes, "process", "processes"), r.Pod, short(r.SignalSent.Sub(r.CrossingSeen)), r.Lane)
	}
}

// shown is how long a dry run is watched doing nothing.
const shown = 2 * time.Second

// stopHog ends the growth that a dry run does not, once it has shown that nothing happens.
func (p *play) stopHog(ctx context.Context, r *evict.Record, told *telling) error {
	if told.stopped || time.Since(r.Decided) < shown {
		return nil
	}
	if err := p.alive(ctx, p.hog); err != nil {
		return fmt.Errorf("in dry run: %w", err)
	}
	told.stopped = true
	p.timeline.say("STOP      the hog lives on, as nothing was done; the demonstration itself stops it now")
	return p.node.StopPod(ctx, p.hog)
}

func short(d time.Duration) time.Duration {
	if d < 10*time.Millisecond {
		return d.Round(10 * time.Microsecond)
	}
	return d.Round(time.Millisecond)
}

func count(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return fmt.Sprintf("%d %s", n, many)
}
