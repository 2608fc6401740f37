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

// reserve is the available memory that a victim must leave on a large machine.
const reserve = 4 * gibibyte

// planFor returns how far below available memory the threshold is (drop), and how much the victim allocates (total). drop
// is 3 GiB if there is room for a victim of three times as much and the reserve, else less. It fails below 8 GiB.
func planFor(available int64) (drop, total int64, err error) {
	drop = min(3*gibibyte, (available-reserve-gibibyte)/3)
	if drop < gibibyte {
		return 0, 0, fmt.Errorf("needs 8 GiB of available memory; there are %.1f", float64(available)/gibibyte)
	}
	return drop, 3 * drop, nil
}

// slowRate is the rate of the slow victim, in bytes per second. It allocates slowPart at that rate until the threshold,
// and the rest beforehand.
const (
	slowRate = 200 * mebibyte
	slowPart = 256 * mebibyte
)

// bursts is a step: crossings by a large victim at two speeds, with three amounts of active file cache.
func bursts(ctx context.Context, s *testbed) error {
	free, err := available(memAvailable)
	if err != nil {
		return err
	}
	drop, total, err := planFor(free)
	if err != nil {
		return err
	}
	rounds := []crossingCase{
		{name: fullSpeed, workload: workload{drop: drop, total: total}, batch: 4, startDelay: s.startDelay},
		{name: slowSpeed, workload: workload{drop: drop, total: total, preallocated: drop - slowPart, rate: slowRate}, batch: 1, startDelay: s.startDelay},
	}
	var errs []error
	for _, cache := range caches {
		if err := s.fillCache(ctx, cache); err != nil {
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

// caches are the amounts of active file cache during bursts, in bytes. 0 stands for what remains after the cache was
// dropped.
var caches = []int64{0, gibibyte, largeCache}

// largeCache is the active file cache of a node that has been up for some time.
const largeCache = 4 * gibibyte

// caseWithCache returns the name of a case with an amount of active file cache.
func caseWithCache(name string, cache int64) string {
	return fmt.Sprintf("%s, %d GiB of active file cache", name, cache/gibibyte)
}

// burst runs one case of the bursts.
func (s *testbed) burst(ctx context.Context, r crossingCase, cache int64) error {
	r.section, r.name = "bursts", caseWithCache(r.name, cache)
	entries, err := s.allContenders(ctx, func(string) int { return s.bursts })
	if err != nil {
		return fmt.Errorf("%s: %w", r.name, err)
	}
	if cache == largeCache {
		entries = append(entries, &entry{contender: evictds(s)[countingCache], wanted: s.bursts})
	}
	return s.runSeries(ctx, r, entries)
}

// The cases of the bursts and of the small victims, as the results store them.
const (
	fullSpeed = "full speed"
	slowSpeed = "200 MiB/s"
	smallCase = "small victim, 4 GiB of active file cache"
)

// allContenders returns the contenders that are available here, with their numbers of crossings.
func (s *testbed) allContenders(ctx context.Context, wanted func(string) int) ([]*entry, error) {
	var entries []*entry
	add := func(c contender) { entries = append(entries, &entry{contender: c, wanted: wanted(c.name())}) }
	mine := evictds(s)
	names := []string{allLanes, bpfAlone, memcgAlone, pollAlone}
	if s.machine.Cgroup != "v1" {
		names = []string{allLanes, bpfAlone, pollAlone} // only cgroup v1 has eventfds of usage thresholds
	}
	for _, name := range names {
		add(mine[name])
	}
	switch e, err := newEarlyoom(ctx, s); {
	case err == nil:
		add(e)
	case errors.Is(err, errNotFound):
		fmt.Fprintf(s.out, "\nearlyoom is skipped: %v\n", err)
	default:
		return nil, err
	}
	add(&busyPollContender{})
	return entries, nil
}

// percentiles is a step: many crossings by a small victim.
func percentiles(ctx context.Context, s *testbed) error {
	entries, err := s.allContenders(ctx, func(name string) int {
		if name == allLanes || name == bpfAlone {
			return s.crossings
		}
		return max(1, s.crossings/10)
	})
	if err != nil {
		return err
	}
	if err := s.fillCache(ctx, largeCache); err != nil {
		return err
	}
	r := s.small()
	r.section, r.name = "percentiles", smallCase
	return s.runSeries(ctx, r, entries)
}

// condition is something that makes an answer slower. do establishes it and returns a function that ends it.
type condition struct {
	name  string
	shape func(*workload)
	do    func(s *testbed) (undo func() error, err error)
}

var conditions = []condition{
	{name: "nothing else"},
	{name: "every processor busy", do: keepBusy},
	{name: "16 allocating processes", shape: func(sh *workload) { sh.processes = 16 }},
	{name: "huge pages", shape: func(sh *workload) { sh.processes, sh.huge = 1, true }},
	{name: "victim at 5 % of a processor", shape: func(sh *workload) { sh.quota, sh.drop = 5, 96*mebibyte }},
	{name: "500 more cgroups", do: func(s *testbed) (func() error, error) { return s.moreCgroups(500) }},
	{name: "a walk of 1,000,000 files", do: (*testbed).manyFiles},
}

// underConditions is the step conditions: crossings under evictd with all lanes, under each of the conditions.
func underConditions(ctx context.Context, s *testbed) error {
	if err := s.fillCache(ctx, largeCache); err != nil {
		return err
	}
	var errs []error
	for _, c := range conditions {
		if errs = append(errs, s.underCondition(ctx, c)); ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs...)
}

func (s *testbed) underCondition(ctx context.Context, c condition) (err error) {
	r := s.small()
	r.section, r.name, r.batch = "conditions", c.name, 10
	if c.shape != nil {
		c.shape(&r.workload)
	}
	if c.do != nil {
		undo, err := c.do(s)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		defer func() { err = errors.Join(err, undo()) }()
	}
	return s.runSeries(ctx, r, []*entry{{contender: evictds(s)[allLanes], wanted: s.perCondition}})
}

// keepBusy keeps all CPUs busy.
func keepBusy(*testbed) (func() error, error) {
	var all []*helper
	undo := func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		for _, a := range all {
			a.stop(ctx)
		}
		return nil
	}
	for range runtime.NumCPU() {
		a, err := startHelper("spinner")
		if err != nil {
			return nil, errors.Join(err, undo())
		}
		all = append(all, a)
	}
	return undo, nil
}

// moreCgroups creates n empty cgroups below the pods' cgroup, in the tree of the memory controller.
func (s *testbed) moreCgroups(n int) (func() error, error) {
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
	parent := filepath.Join(cgroupMount(string(mounts), tree), s.node.ChildCgroup(s.node.Kubepods(), "besteffort"))
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

// oomKills returns the number of processes that the kernel's OOM killer has killed since boot: oom_kill in /proc/vmstat.
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
