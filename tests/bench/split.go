package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/tests/hog/stamp"
)

// account is what evictd's record says of a kill; times are of CLOCK_MONOTONIC, and zero where it does not say.
type account struct {
	lane                                    string
	above, seen, decided, confirmed, chosen time.Duration
}

// accountOf reads a record. Its times are of the wall clock, which is compared with CLOCK_MONOTONIC now: a record is
// some milliseconds old by then, in which the two don't part by a microsecond.
func accountOf(r *evict.Record) account {
	wall, monotonic := time.Now(), stamp.Now()
	at := func(t time.Time) time.Duration {
		if t.IsZero() {
			return 0
		}
		return monotonic + t.Sub(wall)
	}
	return account{r.Lane, at(r.LastAbove), at(r.CrossingSeen), at(r.Decided), at(r.Confirmed), at(r.Chosen)}
}

// partNames are the parts of the time from a crossing to the SIGKILL, which add up to it: until the lane's own reading is
// below the threshold, until the hot thread has a processor, until it decides, for the reading that confirms the crossing,
// for choosing the victims, and until the kernel sends the first signal. The third is Go's return from a wait, unless the
// sampler took the crossing for one that file cache brought: then it lasts until other memory has grown. "(period)" is how
// far apart the lane's two readings on both sides of the crossing were.
var partNames = []string{"sample", "wake-up", "decide", "confirm", "rank", "signal", "(period)"}

// parts splits the time from a crossing to the SIGKILL. It returns nil where the record lacks a part, as that of a kill
// that the decision loop ordered.
func (a *account) parts(crossed, killed time.Duration, runs []time.Duration) []int64 {
	if a.seen == 0 || a.decided == 0 || a.confirmed == 0 || a.chosen == 0 {
		return nil
	}
	ran := a.seen // the thread may have had a processor all along
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

// partsAbout says so in the document.
const partsAbout = "Of the crossings of which evictd's record has all times. *sample*: until the lane's own reading is below the " +
	"threshold; *wake-up*: until the hot thread has a processor; *decide*: until it decides, which takes longer where the sampler " +
	"takes the crossing for one that file cache brought; *confirm*: the reading that confirms it; *rank*: the victims are chosen; " +
	"*signal*: until the kernel sends the first SIGKILL. Together they are the whole. *(period)* is how far apart the lane's readings " +
	"on both sides of the crossing were, *(doubt)* how far apart the two samples from outside were: if that is long, the machine " +
	"itself stood still. p99 is of each column by itself."

// slowShare is the share of a series' crossings, the slowest, whose parts are looked at by themselves.
const slowShare = 0.02

// partsTable shows what the time to the SIGKILL is made of in each series: in general, and in the slowest crossings.
func partsTable(all []*crossings) *table {
	t := new(table)
	known := func(parts []int64) bool { return len(parts) == len(partNames) }
	all = slices.DeleteFunc(slices.Clone(all), func(c *crossings) bool { return !slices.ContainsFunc(c.Parts, known) })
	if len(all) == 0 {
		return t
	}
	head, label := labels(all)
	t.head = append(append(append(head, "", "n", "crossing → SIGKILL"), partNames...), "(doubt)")
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

// addParts adds a row with one figure of each part, after other cells.
func (t *table) addParts(c *crossings, cells []string, figure func(of func(row int) int64) int64) {
	cells = append(cells, milliseconds(figure(func(row int) int64 { return c.Killed[row] })))
	for p := range partNames {
		cells = append(cells, milliseconds(figure(func(row int) int64 { return c.Parts[row][p] })))
	}
	t.add(append(cells, milliseconds(figure(func(row int) int64 { return c.Doubt[row] })))...)
}

func values(rows []int, of func(row int) int64) (all []int64) {
	for _, row := range rows {
		all = append(all, of(row))
	}
	return all
}
