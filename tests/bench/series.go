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

// entry is a contender with the crossings that it is to get, and has.
type entry struct {
	contender
	wanted int
	result crossings
	failed []error // with mostFailures of them it gets no more
}

// mostFailures is how often something may go wrong under a contender before it is left out.
const mostFailures = 3

// round is how crossings are made: alike for all contenders, in turns.
type round struct {
	section, name string
	shape         shape
	batch         int           // victims that are made ready before a contender is begun
	rest          time.Duration // before a cue: a quarter of it, and up to as much by chance
}

// mostLost is how often in a row a contender is begun anew because something else took or gave memory.
const mostLost = 10

// press has all contenders stop victims, in turns, until each has as many as it is to get. What goes wrong is an error
// in the end, and the series goes on; a contender under which that happens too often is left out.
func (s *stage) press(ctx context.Context, r round, entries []*entry) error {
	for _, e := range entries {
		e.result = crossings{origin: s.origin(), Section: r.section, Case: r.name, Contender: e.name()}
	}
	fmt.Fprintf(s.out, "\n%s, %s:\n", r.section, r.name)
	lost := 0
	for turn := 0; ; turn++ {
		going := false
		for i := range entries {
			e := entries[(turn+i)%len(entries)] // who comes first changes
			left := e.wanted - e.result.n()
			if left <= 0 || len(e.failed) >= mostFailures {
				continue
			}
			going = true
			before := e.result.n()
			err := s.turn(ctx, r, e, min(left, r.batch))
			if errors.Is(err, errMoved) && lost < mostLost {
				lost++
				fmt.Fprintf(s.out, "  (%v)\n", err)
			} else if err != nil {
				err = fmt.Errorf("%s, %s, crossing %d under %s: %w", r.section, r.name, e.result.n()+1, e.name(), err)
				if ctx.Err() != nil {
					return errors.Join(err, s.keep(entries))
				}
				fmt.Fprintf(s.out, "  (%v)\n", err)
				e.failed = append(e.failed, err)
				e.result.Failed++
			}
			if e.result.n() > before {
				lost = 0
			}
		}
		if !going {
			break
		}
		if s.vm { // a machine that is emulated may not live to the end
			if _, err := s.add(entries); err != nil {
				return err
			}
		}
	}
	errs := []error{s.keep(entries)}
	for _, e := range entries {
		errs = append(errs, e.failed...)
	}
	return errors.Join(errs...)
}

// keep adds the series to the results, and prints them.
func (s *stage) keep(entries []*entry) error {
	all, err := s.add(entries)
	if err != nil {
		return err
	}
	_, err = fmt.Fprint(s.out, crossingsTable(all).text(), partsTable(all).text())
	return err
}

// add adds the series, as far as they have come, to the results.
func (s *stage) add(entries []*entry) (all []*crossings, err error) {
	for _, e := range entries {
		if e.result.n() == 0 {
			continue
		}
		e.result.Version = s.version
		if err := s.book.add(result{Crossings: &e.result}); err != nil {
			return nil, err
		}
		all = append(all, &e.result)
	}
	return all, nil
}

// turn is one batch under one contender.
func (s *stage) turn(ctx context.Context, r round, e *entry, n int) (err error) {
	if s.revive != nil {
		if err := s.revive(ctx); err != nil {
			return err
		}
	}
	if err := s.keepWarm(ctx); err != nil {
		return err
	}
	victims, err := s.victims(ctx, r.shape, n)
	defer func() {
		err = errors.Join(err, e.end(), s.removeAll(victims))
	}()
	if err != nil {
		return err
	}
	for _, v := range victims {
		if err := v.awaitHeld(ctx); err != nil {
			return err
		}
	}
	// What the runtime needs for the pods is not what they take, and what they hold by now is.
	at, err := available(e.meter())
	if err != nil {
		return err
	}
	threshold := at - (r.shape.drop - r.shape.held)
	if err := s.begin(ctx, e, threshold, n+len(s.bystanders)); err != nil {
		return err
	}
	for i, v := range victims {
		// Whatever the contender's period is at rest, the crossing comes at any point of it.
		if err := sleep(ctx, r.rest/4+rand.N(r.rest)); err != nil {
			return err
		}
		if !v.alive() {
			e.result.Lost++
			return fmt.Errorf("%w: a victim was killed before its cue", errMoved)
		}
		oom := s.oomKills
		c, err := s.cross(ctx, e, v, threshold, append(victims[i+1:len(victims):len(victims)], s.bystanders...))
		if err != nil {
			return err
		}
		e.result.OOMKills += s.oomKills - oom
		answered := c.by == byContender || c.by == byEarly
		if answered && c.bystanders == 0 {
			if c.account, err = s.finish(ctx, e, i+1); err != nil {
				return err
			}
		}
		c.calm, c.spared = len(s.bystanders), s.spared()
		e.result.add(c)
		if s.verbose {
			fmt.Fprintf(s.out, "  %s: by the %s after %s, back after %s, %s below %s\n", e.name(), c.by,
				milliseconds(microseconds(c.killed)), milliseconds(microseconds(c.back)), size(c.overshoot/kibibyte), c.account.lane)
		}
		if !answered || c.bystanders > 0 || !c.spared {
			return nil // a contender that did not fire, was outrun, or killed another pod is begun anew
		}
	}
	return nil
}

// begin begins a contender.
func (s *stage) begin(ctx context.Context, c contender, threshold int64, pods int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, crossingTime, fmt.Errorf("it does not watch after %v", crossingTime))
	defer cancel()
	return c.begin(ctx, threshold, pods)
}

// finish waits until a contender is done with its n-th victim.
func (s *stage) finish(ctx context.Context, c contender, n int) (account, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, backTime, fmt.Errorf("not done after %v", backTime))
	defer cancel()
	return c.done(ctx, n)
}

// atOnce is how many pods are made, or removed, at the same time.
const atOnce = 4

// victims makes n of them.
func (s *stage) victims(ctx context.Context, sh shape, n int) ([]*victim, error) {
	victims := make([]*victim, n)
	err := each(n, func(i int) (err error) {
		s.made.Add(1)
		victims[i], err = s.victim(ctx, fmt.Sprintf("hog-%04d", s.made.Load()), sh)
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

func (s *stage) removeAll(victims []*victim) error {
	return each(len(victims), func(i int) error { return victims[i].remove(s.node) })
}

// each calls do for 0 to n-1, a few at a time, and returns all errors.
func each(n int, do func(int) error) error {
	errs := make([]error, n)
	slots := make(chan struct{}, atOnce)
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

// small is a victim for crossings that are many.
func (s *stage) small() round {
	drop := int64(192 * mebibyte)
	if node.Slow(1) > 1 {
		drop = 96 * mebibyte
	}
	return round{shape: shape{drop: drop, takes: drop + gibibyte}, batch: 40, rest: 60 * time.Millisecond}
}
