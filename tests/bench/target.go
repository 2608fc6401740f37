package main

import (
	"fmt"
	"slices"
)

// target is what a figure is to be at most.
type target struct {
	what  string
	most  float64
	unit  string
	value func(b *book) (figure float64, of int)
}

// figure returns a figure of crossings and of how many; none where nothing was measured.
func figure(section, name, contender string, of func(*crossings) int64, unit float64) func(*book) (float64, int) {
	return func(b *book) (float64, int) {
		c := b.series(native, section, name, contender)
		if c == nil || len(c.Killed) == 0 {
			return 0, 0
		}
		return float64(of(c)) / unit, c.n()
	}
}

func killedMedian(c *crossings) int64   { return median(c.Killed) }
func killedLate(c *crossings) int64     { return quantile(c.Killed, 0.99) }
func backMedian(c *crossings) int64     { return median(c.Back) }
func overshotMedian(c *crossings) int64 { return median(c.Overshoot) }
func overshotMost(c *crossings) int64   { return quantile(c.Overshoot, 1) }

// manyPods is how many pods there are where the memory of evictd is looked at.
const manyPods = 100

// idleWith finds evictd with all lanes beside many pods.
func idleWith(of func(*idleness) float64) func(*book) (float64, int) {
	return func(b *book) (float64, int) {
		for _, r := range b.results {
			if i := r.Idle; i != nil && i.On == native && i.Lanes == allLanes && i.Pods == manyPods {
				return of(i), 1
			}
		}
		return 0, 0
	}
}

// targets are what evictd is to reach, in its default configuration.
var targets = slices.Concat(manyCrossings, burstTargets(), whileIdle)

// burstTargets are those of the bursts, whatever file cache there is.
func burstTargets() (all []target) {
	for _, speed := range []string{fullSpeed, slowSpeed} {
		for _, cache := range caches {
			name := besideCache(speed, cache)
			of := func(c func(*crossings) int64, unit float64) func(*book) (float64, int) {
				return figure("bursts", name, allLanes, c, unit)
			}
			all = append(all,
				target{"crossing → SIGKILL, " + name + ": median", 0.6, "ms", of(killedMedian, 1000)},
				target{"crossing → SIGKILL, " + name + ": p99", 1.5, "ms", of(killedLate, 1000)},
				target{"crossing → back above, " + name + ": median", 5, "ms", of(backMedian, 1000)},
				target{"overshoot, " + name + ": median", 2, "MiB", of(overshotMedian, 1024)},
				target{"overshoot, " + name + ": max", 16, "MiB", of(overshotMost, 1024)})
		}
	}
	return all
}

var manyCrossings = []target{
	{"crossing → SIGKILL, small victim, BPF alone, 4 GiB of active file cache: median", 0.6, "ms", figure("percentiles", smallCase, bpfAlone, killedMedian, 1000)},
	{"crossing → SIGKILL, small victim, BPF alone, 4 GiB of active file cache: p99", 1.5, "ms", figure("percentiles", smallCase, bpfAlone, killedLate, 1000)},
	{"crossing → SIGKILL, small victim, all lanes, 4 GiB of active file cache: median", 0.6, "ms", figure("percentiles", smallCase, allLanes, killedMedian, 1000)},
	{"crossing → SIGKILL, small victim, all lanes, 4 GiB of active file cache: p99", 1.5, "ms", figure("percentiles", smallCase, allLanes, killedLate, 1000)},
}

var whileIdle = []target{
	{"idle beside 100 pods: CPU, BPF included", 0.1, "% of a core", idleWith((*idleness).share)},
	{"idle beside 100 pods: resident memory", 28, "MiB", idleWith(func(i *idleness) float64 { return mebibytes(i.Resident) })},
}

// verdicts holds the results against the targets.
func (b *book) verdicts() *table {
	t := &table{head: []string{"", "asked for, at most", "measured", "n", ""}}
	for _, want := range targets {
		got, n := want.value(b)
		if n == 0 {
			t.add(want.what, fmt.Sprintf("%g %s", want.most, want.unit), "–", "0", "not measured")
			continue
		}
		verdict := "reached"
		if got > want.most {
			verdict = "**missed**"
		}
		t.add(want.what, fmt.Sprintf("%g %s", want.most, want.unit), fmt.Sprintf("%.2f %s", got, want.unit), fmt.Sprint(n), verdict)
	}
	return t
}
