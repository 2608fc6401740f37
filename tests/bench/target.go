package main

import "fmt"

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

// targets are what evictd is to reach.
var targets = []target{
	{"crossing → SIGKILL, small victim, BPF alone: median", 0.6, "ms", figure("percentiles", smallCase, bpfAlone, killedMedian, 1000)},
	{"crossing → SIGKILL, small victim, BPF alone: p99", 1.5, "ms", figure("percentiles", smallCase, bpfAlone, killedLate, 1000)},
	{"crossing → SIGKILL, small victim, all lanes: median", 0.6, "ms", figure("percentiles", smallCase, allLanes, killedMedian, 1000)},
	{"crossing → SIGKILL, small victim, all lanes: p99", 1.5, "ms", figure("percentiles", smallCase, allLanes, killedLate, 1000)},
	{"crossing → SIGKILL, burst at full speed, all lanes: median", 0.6, "ms", figure("bursts", fullSpeed, allLanes, killedMedian, 1000)},
	{"crossing → back above, burst at full speed, all lanes: median", 5, "ms", figure("bursts", fullSpeed, allLanes, backMedian, 1000)},
	{"overshoot, burst at full speed, all lanes: median", 2, "MiB", figure("bursts", fullSpeed, allLanes, overshotMedian, 1024)},
	{"overshoot, burst at full speed, all lanes: max", 16, "MiB", figure("bursts", fullSpeed, allLanes, overshotMost, 1024)},
	{"crossing → SIGKILL, burst at 200 MiB/s, all lanes: median", 0.6, "ms", figure("bursts", slowSpeed, allLanes, killedMedian, 1000)},
	{"crossing → back above, burst at 200 MiB/s, all lanes: median", 5, "ms", figure("bursts", slowSpeed, allLanes, backMedian, 1000)},
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
