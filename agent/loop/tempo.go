package loop

import (
	"slices"
	"time"

	"github.com/evictd/evictd/agent/lanes"
)

// The pace of the loop besides alarms.
const (
	// calm is how often the ranking and the conditions are brought up to date
	// while nothing is low.
	calm = time.Second
	// attentive is how often that is where little is left above a threshold and a
	// walk of the cgroups makes it cheap.
	attentive = 50 * time.Millisecond
	// low is how often a signal that is low is looked at while there is
	// nothing to do about it, and settling while victims are on their way.
	low, settling = 250 * time.Millisecond, 10 * time.Millisecond
	// mostBusy bounds the share of its time that the loop may work: it rests
	// at least that many times as long as it has worked.
	mostBusy = 4
	// seldomBusy is mostBusy while nothing is low.
	seldomBusy = 10
)

// rest returns how long the loop may rest: as its pace is, but not so shortly
// that it would do nothing else, nor so long that what is low is lost sight of. An
// alarm that the reading did not confirm keeps it awake for a while: memory that
// goes up and down about a threshold is below it again before another alarm says so.
func rest(v *View, last lanes.Raise) time.Duration {
	wait, busy := tempo(v), mostBusy*v.Took
	switch {
	case wait == calm && v.Time.Sub(last.Seen) < calm:
		wait = settling
	case wait == calm && v.Snapshot.Walked && v.Near():
		return max(attentive, min(seldomBusy*v.Took, calm))
	}
	if wait < calm {
		busy = min(busy, low)
	}
	return max(wait, busy)
}

// tempo returns when to look again: soon while victims are on their way, now
// and then while a signal is low, and else at ease.
func tempo(v *View) time.Duration {
	if slices.ContainsFunc(v.State.Victims, onTheWay) {
		return settling
	}
	if len(v.Orders.Met) > 0 {
		return low
	}
	return calm
}
