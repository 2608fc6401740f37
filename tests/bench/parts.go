package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/tests/hog/stamp"
)

// recordTimes are the lane and the times in evictd's record of a kill. Times are of CLOCK_MONOTONIC, and zero where the
// record has none.
type recordTimes struct {
	lane                                    string
	above, seen, decided, confirmed, chosen time.Duration
}

// recordTimesOf converts the times of a record from wall clock to CLOCK_MONOTONIC. It uses the current difference of the
// two: a record is only milliseconds old, in which they don't diverge by a microsecond.
func recordTimesOf(r *evict.Record) recordTimes {
	wall, monotonic := time.Now(), stamp.Now()
	at := func(t time.Time) time.Duration {
		if t.IsZero() {
			return 0
		}
		return monotonic + t.Sub(wall)
	}
	return recordTimes{r.Lane, at(r.LastAbove), at(r.CrossingSeen), at(r.Decided), at(r.Confirmed), at(r.Chosen)}
}

// partNames are the parts of the time from a crossing to the SIGKILL, which add up to it: until the lane's own reading is
// below the threshold; until the hot thread gets a CPU; until it decides; for the reading that confirms the crossing; for
// choosing the victims; and until the kernel sends the first signal. The third is Go's return from a wait, unless the
// sampler reported the crossing as one that file cache brought: then it lasts until other memory has grown. "(period)" is
// the time between the lane's two readings around the crossing.
var partNames = []string{"sample", "wake-up", "decide", "confirm", "rank", "signal", "(period)"}

// parts splits the time from a crossing to the SIGKILL. It returns nil if the record lacks a time, as that of a kill by
// the decision loop does.
func (a *recordTimes) parts(crossed, killed time.Duration, runs []time.Duration) []int64 {
	if a.seen == 0 || a.decided == 0 || a.confirmed == 0 || a.chosen == 0 {
		return nil
	}
	ran := a.seen // the thread may have been running already
	for _, at := range runs {
		if at > a.seen && at <= a.decided {
			ran = at
			break
		}
	}
	var parts []int64
	last := crossed
	for _, t := range []time.Duration{a.seen, ran, a.decided, a.confirmed, a.chosen, killed} {
		parts = append(parts, microseconds(t-last))
		last = t
	}
	period := time.Duration(0)
	if a.above != 0 {
		period = a.seen - a.above
	}
	return append(parts, microseconds(period))
}

// partsAbout introduces the parts in the document.
const partsAbout = "For the crossings whose record has all times. *sample*: until the lane's own reading is below the " +
	"threshold; *wake-up*: until the hot thread gets a CPU; *decide*: until it decides, which takes longer if the sampler " +
	"reported the crossing as one that file cache brought; *confirm*: the reading that confirms the crossing; *rank*: choosing the victims; " +
	"*signal*: until the kernel sends the first SIGKILL. Together they add up to the time. *(period)* is the time between the lane's readings " +
	"around the crossing, *(uncertainty)* that between the two samples from outside: if it is long, the whole machine " +
	"was stalled. p99 is computed for each column separately."

// slowShare is the share of slowest crossings whose parts are shown separately.
const slowShare = 0.02

// partsTable returns a table of the parts of the time to the SIGKILL in each series: median, p99, and the mean of the
// slowest crossings.
func partsTable(all []*crossings) *table {
	t := new(table)
	known := func(parts []int64) bool { return len(parts) == len(partNames) }
	all = slices.DeleteFunc(slices.Clone(all), func(c *crossings) bool { return !slices.ContainsFunc(c.Parts, known) })
	if len(all) == 0 {
		return t
	}
	head, label := labels(all)
	t.head = append(append(append(head, "", "n", "crossing → SIGKILL"), partNames...), "(uncertainty)")
	for _, c := range all {
		var rows []int // of the crossings whose parts are known, the slowest last
		for i, parts := range c.Parts {
			if known(parts) {
				rows = append(rows, i)
			}
		}
		slices.SortStableFunc(rows, func(a, b int) int { return int(c.Killed[a] - c.Killed[b]) })
		slowest := rows[len(rows)-max(1, int(slowShare*float64(len(rows)))):]
		for _, q := range []struct {
			title string
			share float64
		}{{"median", 0.5}, {"p99", 0.99}} {
			t.addParts(c, append(label(c), q.title, fmt.Sprint(len(rows))), func(of func(row int) int64) int64 {
				return quantile(values(rows, of), q.share)
			})
		}
		t.addParts(c, append(label(c), fmt.Sprintf("mean of the %d slowest", len(slowest)), fmt.Sprint(len(rows))), func(of func(row int) int64) int64 {
			return mean(values(slowest, of))
		})
	}
	return t
}

// addParts adds a row with the given cells and one figure of each part.
func (t *table) addParts(c *crossings, cells []string, figure func(of func(row int) int64) int64) {
	cells = append(cells, milliseconds(figure(func(row int) int64 { return c.Killed[row] })))
	for p := range partNames {
		cells = append(cells, milliseconds(figure(func(row int) int64 { return c.Parts[row][p] })))
	}
	t.add(append(cells, milliseconds(figure(func(row int) int64 { return c.Uncertainty[row] })))...)
}

func values(rows []int, of func(row int) int64) (all []int64) {
	for _, row := range rows {
		all = append(all, of(row))
	}
	return all
}
