package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/evictd/evictd/tests/node"
)

// entry is a contender in a series, with its crossings so far.
type entry struct {
	contender
	wanted int // crossings
	result crossings
	failed []error // at maxFailures the contender is skipped
}

// maxFailures is the number of failed crossings after which a contender is skipped.
const maxFailures = 3

// crossingCase describes crossings that are the same for all contenders.
type crossingCase struct {
	section, name string
	workload      workload
	batch         int           // victims that are prepared before a contender begins
	startDelay    time.Duration // before a start signal: a quarter of it plus a random part of it
}

// maxRestarts is how often in a row a batch is repeated because other processes changed available memory.
const maxRestarts = 10

// runSeries runs batches of crossings under all contenders in turn, until each has as many as wanted. It continues after
// a failed crossing and returns all errors at the end. A contender with too many failures is skipped.
func (s *testbed) runSeries(ctx context.Context, r crossingCase, entries []*entry) error {
	for _, e := range entries {
		e.result = crossings{origin: s.origin(), Section: r.section, Case: r.name, Contender: e.name()}
	}
	fmt.Fprintf(s.out, "\n%s, %s:\n", r.section, r.name)
	restarts := 0
	for pass := 0; ; pass++ {
		more := false
		for i := range entries {
			e := entries[(pass+i)%len(entries)] // each pass begins with another contender
			left := e.wanted - e.result.n()
			if left <= 0 || len(e.failed) >= maxFailures {
				continue
			}
			more = true
			before := e.result.n()
			err := s.runBatch(ctx, r, e, min(left, r.batch))
			if errors.Is(err, errDrift) && restarts < maxRestarts {
				restarts++
				fmt.Fprintf(s.out, "  (%v)\n", err)
			} else if err != nil {
				err = fmt.Errorf("%s, %s, crossing %d under %s: %w", r.section, r.name, e.result.n()+1, e.name(), err)
				if ctx.Err() != nil {
					return errors.Join(err, s.saveAndPrint(entries))
				}
				fmt.Fprintf(s.out, "  (%v)\n", err)
				e.failed = append(e.failed, err)
				e.result.Failed++
			}
			if e.result.n() > before {
				restarts = 0
			}
		}
		if !more {
			break
		}
		if s.vm { // an emulated machine may fail before the end
			if _, err := s.add(entries); err != nil {
				return err
			}
		}
	}
	errs := []error{s.saveAndPrint(entries)}
	for _, e := range entries {
		errs = append(errs, e.failed...)
	}
	return errors.Join(errs...)
}

// saveAndPrint adds the series to the results and prints them.
func (s *testbed) saveAndPrint(entries []*entry) error {
	all, err := s.add(entries)
	if err != nil {
		return err
	}
	_, err = fmt.Fprint(s.out, crossingsTable(all).text(), partsTable(all).text())
	return err
}

// add adds the series to the results, with the crossings so far.
func (s *testbed) add(entries []*entry) (all []*crossings, err error) {
	for _, e := range entries {
		if e.result.n() == 0 {
			continue
		}
		e.result.Version = s.version
		if err := s.results.add(result{Crossings: &e.result}); err != nil {
			return nil, err
		}
		all = append(all, &e.result)
	}
	return all, nil
}

// runBatch runs up to n crossings under one contender.
func (s *testbed) runBatch(ctx context.Context, r crossingCase, e *entry, n int) (err error) {
	if err := s.prepare(ctx); err != nil {
		return err
	}
	victims, err := s.victims(ctx, r.workload, n)
	defer func() {
		err = errors.Join(err, e.end(), s.removeAll(victims))
	}()
	if err != nil {
		return err
	}
	for _, v := range victims {
		if err := v.awaitPreallocated(ctx); err != nil {
			return err
		}
	}
	// The threshold is relative to available memory now, after the pods were created and have preallocated.
	at, err := available(e.meter())
	if err != nil {
		return err
	}
	threshold := at - (r.workload.drop - r.workload.preallocated)
	if err := s.begin(ctx, e, threshold, n+len(s.bystanders)); err != nil {
		return err
	}
	for i, v := range victims {
		// The delay is random, so that the crossing falls at any point of the contender's polling interval.
		if err := sleep(ctx, r.startDelay/4+rand.N(r.startDelay)); err != nil {
			return err
		}
		if !v.alive() {
			e.result.Lost++
			return fmt.Errorf("%w: a victim was killed before its start signal", errDrift)
		}
		oom := s.oomKills
		c, err := s.cross(ctx, e, v, threshold, append(victims[i+1:len(victims):len(victims)], s.bystanders...))
		if err != nil {
			return err
		}
		e.result.OOMKills += s.oomKills - oom
		answered := c.by == byContender || c.by == byEarly
		if answered && c.bystandersKilled == 0 {
			if c.times, err = s.finish(ctx, e, i+1); err != nil {
				return err
			}
		}
		c.bystanderPods, c.bystandersAlive = len(s.bystanders), s.bystandersAlive()
		e.result.add(c)
		if s.verbose {
			fmt.Fprintf(s.out, "  %s: by the %s after %s, back after %s, %s below %s\n", e.name(), c.by,
				milliseconds(microseconds(c.killed)), milliseconds(microseconds(c.back)), size(c.overshoot/kibibyte), c.times.lane)
		}
		if !answered || c.bystandersKilled > 0 || !c.bystandersAlive {
			return nil // the contender begins again if it did not kill, was not the first, or killed another pod
		}
	}
	return nil
}

// prepare restores the bystanders and the file cache that a batch needs.
func (s *testbed) prepare(ctx context.Context) error {
	if s.revive != nil {
		if err := s.revive(ctx); err != nil {
			return err
		}
	}
	return s.refillCache(ctx)
}

// begin starts a contender, with a timeout.
func (s *testbed) begin(ctx context.Context, c contender, threshold int64, pods int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, crossingTimeout, fmt.Errorf("not ready after %v", crossingTimeout))
	defer cancel()
	return c.begin(ctx, threshold, pods)
}

// finish waits until a contender has finished with its n-th victim, with a timeout.
func (s *testbed) finish(ctx context.Context, c contender, n int) (recordTimes, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, recoveryTimeout, fmt.Errorf("not done after %v", recoveryTimeout))
	defer cancel()
	return c.done(ctx, n)
}

// maxParallel is how many pods are created or removed in parallel.
const maxParallel = 4

// victims runs n victims in parallel. It returns those that run, even with an error.
func (s *testbed) victims(ctx context.Context, sh workload, n int) ([]*victim, error) {
	victims := make([]*victim, n)
	err := each(n, func(i int) (err error) {
		s.podCount.Add(1)
		victims[i], err = s.victim(ctx, fmt.Sprintf("hog-%04d", s.podCount.Load()), sh)
		return err
	})
	var made []*victim
	for _, v := range victims {
		if v != nil {
			made = append(made, v)
		}
	}
	return made, err
}

func (s *testbed) removeAll(victims []*victim) error {
	return each(len(victims), func(i int) error { return victims[i].remove(s.node) })
}

// each calls do for 0 to n-1, at most maxParallel at a time, and returns all errors.
func each(n int, do func(int) error) error {
	errs := make([]error, n)
	slots := make(chan struct{}, maxParallel)
	var all sync.WaitGroup
	for i := range n {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			errs[i] = do(i)
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// small returns a case with a small victim, for many crossings.
func (s *testbed) small() crossingCase {
	drop := int64(192 * mebibyte)
	if node.ScaleTimeout(1) > 1 {
		drop = 96 * mebibyte
	}
	return crossingCase{workload: workload{drop: drop, total: drop + gibibyte}, batch: 40, startDelay: 60 * time.Millisecond}
}
