package main

import (
	"fmt"
	"path"
	"slices"
	"time"
)

// budgets are the total expected durations of the suites of a profile in one machine, without its boot. Commands beyond
// the budget run only in the full profile, which has none.
var budgets = map[string]time.Duration{
	profileSmoke: 6 * time.Minute,
	profileTest:  11 * time.Minute,
}

// A command's timeout is timeoutFactor times its expected duration, but at least minTimeout: a busy host slows
// everything down, and tests that hang end by their own timeouts first.
const (
	timeoutFactor = 6
	minTimeout    = 5 * time.Minute
)

func timeoutOf(expected time.Duration) time.Duration { return max(minTimeout, timeoutFactor*expected) }

// plan returns the commands of suites in order: those of further classes after all others, and one that powers the
// machine off last. It also returns the commands for which the profile's budget has no room.
func (b *runner) plan(v variant, suites []suite) (commands []planned, omitted []string) {
	left, bounded := budgets[b.profile]
	if b.suites != nil {
		bounded = false
	}
	for _, more := range []bool{false, true} {
		for _, s := range suites {
			if !v.has(s) {
				continue
			}
			for _, item := range b.items(v, s) {
				if item.more != more {
					continue
				}
				if bounded && item.takes > left {
					omitted = append(omitted, fmt.Sprintf("%s (%v)", item.command.Name, item.takes))
					continue
				}
				left -= item.takes
				commands = append(commands, item.planned)
			}
		}
	}
	last := func(p planned) int {
		if p.command.PowersOff {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(commands, func(a, b planned) int { return last(a) - last(b) })
	return commands, omitted
}

// item is a command with its expected duration and its class's more.
type item struct {
	planned
	takes time.Duration
	more  bool
}

// items returns the commands of a suite.
func (b *runner) items(v variant, s suite) []item {
	var items []item
	if s.commands != nil {
		for _, c := range s.commands(v) {
			items = append(items, item{planned: planned{s.name, false, c}, takes: s.takes})
		}
	}
	for _, pkg := range b.payload.tests[s.name] {
		if b.packages != nil && !slices.Contains(b.packages, pkg) {
			continue
		}
		name, takes := s.name, s.takes
		if long, ok := s.long[pkg]; ok {
			takes = long
		}
		if path.Base(pkg) != s.name {
			name += "/" + pkg
		}
		switch {
		case b.run != "":
			most := takes
			for _, c := range s.classes { // the tests may be of any class
				most += c.takes
			}
			items = append(items, item{planned: planned{s.name, true, testCommand(v, pkg, name, timeoutOf(most), "run="+b.run)}, takes: takes})
		case s.classes == nil:
			items = append(items, item{planned: planned{s.name, true, testCommand(v, pkg, name, timeoutOf(takes))}, takes: takes})
		}
		for _, c := range s.classes {
			if b.run == "" && c.in(b.profile) && v.hasClass(c) && (b.classes == nil || slices.Contains(b.classes, c.name)) {
				command := testCommand(v, pkg, name+"/"+c.name, timeoutOf(c.takes), s.flag(c))
				command.PowersOff = c.powersOff
				items = append(items, item{planned: planned{s.name, true, command}, takes: c.takes, more: c.more})
			}
		}
	}
	return items
}
