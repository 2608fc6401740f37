package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"time"
)

// reserve is what every victim leaves a large machine.
const reserve = 4 * gibibyte

// planFor shares out what is available: the threshold is 3 GiB below it where that leaves room for a hog of three times
// as much, and as far as room allows where it does not.
func planFor(available int64) (drop, takes int64, err error) {
	drop = min(3*gibibyte, (available-reserve-gibibyte)/3)
	if drop < gibibyte {
		return 0, 0, fmt.Errorf("needs 8 GiB of available memory; there are %.1f", float64(available)/gibibyte)
	}
	return drop, 3 * drop, nil
}

// slowRate is that of the hog that takes its time, and slowPart what it takes of it until the threshold.
const (
	slowRate = 200 * mebibyte
	slowPart = 256 * mebibyte
)

// bursts are crossings by a large victim, at two speeds.
func bursts(ctx context.Context, s *stage) error {
	free, err := available(memAvailable)
	if err != nil {
		return err
	}
	drop, takes, err := planFor(free)
	if err != nil {
		return err
	}
	rounds := []round{
		{name: fullSpeed, shape: shape{drop: drop, takes: takes}, batch: 4, rest: s.rest},
		{name: slowSpeed, shape: shape{drop: drop, takes: takes, held: drop - slowPart, rate: slowRate}, batch: 1, rest: s.rest},
	}
	var errs []error
	for _, cache := range caches {
		if err := s.warm(ctx, cache); err != nil {
			return errors.Join(append(errs, fmt.Errorf("bursts: %w", err))...)
		}
		for _, r := range rounds {
			errs = append(errs, s.burst(ctx, r, cache))
			if ctx.Err() != nil {
				return errors.Join(errs...)
			}
		}
	}
	return errors.Join(errs...)
}

// caches are the amounts of active file cache, in bytes, that bursts are made beside. What a node has after its cache was
// dropped stands for 0.
var caches = []int64{0, gibibyte, warmCache}

// warmCache is the active file cache of a node that has been up for a while.
const warmCache = 4 * gibibyte

// besideCache names a case by its cache.
func besideCache(name string, cache int64) string {
	return fmt.Sprintf("%s, %d GiB of active file cache", name, cache/gibibyte)
}

// burst is one case of the bursts beside some file cache.
func (s *stage) burst(ctx context.Context, r round, cache int64) error {
	r.section, r.name = "bursts", besideCache(r.name, cache)
	entries, err := s.everyone(ctx, func(string) int { return s.bursts })
	if err != nil {
		return fmt.Errorf("%s: %w", r.name, err)
	}
	if cache == warmCache {
		entries = append(entries, &entry{contender: evictds(s)[countingCache], wanted: s.bursts})
	}
	return s.press(ctx, r, entries)
}

// The cases of the bursts and of the small victims, as the results name them.
const (
	fullSpeed = "full speed"
	slowSpeed = "200 MiB/s"
	smallCase = "small victim, 4 GiB of active file cache"
)

// everyone are the contenders that can be had here, with their number of crossings.
func (s *stage) everyone(ctx context.Context, wanted func(string) int) ([]*entry, error) {
	var entries []*entry
	add := func(c contender) { entries = append(entries, &entry{contender: c, wanted: wanted(c.name())}) }
	mine := evictds(s)
	names := []string{allLanes, bpfAlone, memcgAlone, pollAlone}
	if s.machine.Cgroup != "v1" {
		names = []string{allLanes, bpfAlone, pollAlone} // thresholds of usage are cgroup v1's
	}
	for _, name := range names {
		add(mine[name])
	}
	switch e, err := newEarlyoom(ctx, s); {
	case err == nil:
		add(e)
	case errors.Is(err, errAbsent):
		fmt.Fprintf(s.out, "\nearlyoom is left out: %v\n", err)
	default:
		return nil, err
	}
	add(&withKiller{})
	return entries, nil
}

// percentiles are crossings by a small victim, many of them.
func percentiles(ctx context.Context, s *stage) error {
	entries, err := s.everyone(ctx, func(name string) int {
		if name == allLanes || name == bpfAlone {
			return s.crossings
		}
		return max(1, s.crossings/10)
	})
	if err != nil {
		return err
	}
	if err := s.warm(ctx, warmCache); err != nil {
		return err
	}
	r := s.small()
	r.section, r.name = "percentiles", smallCase
	return s.press(ctx, r, entries)
}

// condition is something that makes it harder. undo ends what do began.
type condition struct {
	name  string
	shape func(*shape)
	do    func(s *stage) (undo func() error, err error)
}

var conditions = []condition{
	{name: "nothing else"},
	{name: "every processor busy", do: spin},
	{name: "16 allocating processes", shape: func(sh *shape) { sh.processes = 16 }},
	{name: "huge pages", shape: func(sh *shape) { sh.processes, sh.huge = 1, true }},
	{name: "victim at 5 % of a processor", shape: func(sh *shape) { sh.quota, sh.drop = 5, 96*mebibyte }},
	{name: "500 more cgroups", do: func(s *stage) (func() error, error) { return s.moreCgroups(500) }},
	{name: "a walk of 1,000,000 files", do: (*stage).manyFiles},
}

// hardships are crossings under evictd with all lanes while something makes it harder.
func hardships(ctx context.Context, s *stage) error {
	if err := s.warm(ctx, warmCache); err != nil {
		return err
	}
	var errs []error
	for _, c := range conditions {
		if errs = append(errs, s.hardship(ctx, c)); ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs...)
}

func (s *stage) hardship(ctx context.Context, c condition) (err error) {
	r := s.small()
	r.section, r.name, r.batch = "conditions", c.name, 10
	if c.shape != nil {
		c.shape(&r.shape)
	}
	if c.do != nil {
		undo, err := c.do(s)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		defer func() { err = errors.Join(err, undo()) }()
	}
	return s.press(ctx, r, []*entry{{contender: evictds(s)[allLanes], wanted: s.hard}})
}

// spin keeps every processor busy.
func spin(*stage) (func() error, error) {
	var all []*actor
	undo := func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		for _, a := range all {
			a.stop(ctx)
		}
		return nil
	}
	for range runtime.NumCPU() {
		a, err := startActor("spinner")
		if err != nil {
			return nil, errors.Join(err, undo())
		}
		all = append(all, a)
	}
	return undo, nil
}

// moreCgroups makes n cgroups below the one of all pods, in the tree that has the memory controller. Nobody is in them.
func (s *stage) moreCgroups(n int) (func() error, error) {
	dirs, err := cgroupDirs(os.Getpid())
	if err != nil {
		return nil, err
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	tree := ""
	if _, ok := dirs["memory"]; ok {
		tree = "memory"
	}
	parent := filepath.Join(cgroupMount(string(mounts), tree), s.node.Child(s.node.Kubepods(), "besteffort"))
	var made []string
	undo := func() error {
		var errs []error
		for _, dir := range made {
			errs = append(errs, os.Remove(dir))
		}
		return errors.Join(errs...)
	}
	for i := range n {
		dir := filepath.Join(parent, "more-"+strconv.Itoa(i))
		if err := os.Mkdir(dir, 0o755); err != nil {
			return nil, errors.Join(err, undo())
		}
		made = append(made, dir)
	}
	return undo, nil
}

// oomKills is how many processes the kernel has killed for want of memory since the boot: the line oom_kill of
// /proc/vmstat.
func oomKills() (int, error) {
	text, err := os.ReadFile("/proc/vmstat")
	if err != nil {
		return 0, err
	}
	n, err := statusField(text, "oom_kill")
	if err != nil {
		return 0, fmt.Errorf("parse vmstat: %w", err)
	}
	return int(n), nil
}
