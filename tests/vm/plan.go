package main

import (
	"fmt"
	"path"
	"slices"
	"time"
)

// budgets are how long the suites of a profile may take in one machine, its boot apart. What is expected to take
// longer is left to the full profile, which has no bound.
var budgets = map[string]time.Duration{
	profileSmoke: 6 * time.Minute,
	profileTest:  11 * time.Minute,
}

// slack is by how much a command may take longer than expected before it is stopped: a busy host stretches
// everything, and what hangs is noticed by its own patience before.
const slack = 6

// leastTimeout is what even the shortest gets.
const leastTimeout = 5 * time.Minute

func timeoutOf(takes time.Duration) time.Duration { return max(leastTimeout, slack*takes) }

// plan returns the commands of suites in order, what is more after the rest and the end of the machine last, and names what the profile's budget has no
// room for.
func (b *bed) plan(v variant, suites []suite) (commands []planned, omitted []string) {
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

// item is a command with the time that it is expected to take; more is its class's.
type item struct {
	planned
	takes time.Duration
	more  bool
}

// items are the commands of a suite.
func (b *bed) items(v variant, s suite) []item {
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
			for _, c := range s.classes { // whichever the tests are of
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
