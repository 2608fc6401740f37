package signal

import "time"

// Status tells whether a signal's reading can be used.
type Status uint8

const (
	// NotObserved: nothing reads the signal here, or it does not apply to this
	// node. It is no error.
	NotObserved Status = iota
	// Observed: the reading holds.
	Observed
	// Unreadable: the signal should have been read and could not be.
	Unreadable
)

// Observation is one reading of a signal.
type Observation struct {
	Status Status
	// Available is what is left, in the signal's unit (bytes, inodes, PIDs).
	// It may be negative where more is used than the capacity.
	Available int64
	// Capacity is what percentages are taken of.
	Capacity int64
	// Cache is how much of what counts as used is active file cache, which the
	// kernel could give back: bytes, for the memory signals, and 0 where the
	// accounting counts it as available already.
	Cache int64
	// Source is where a memory signal was read.
	Source Source
	// ReadOnly tells that nothing can be freed, whatever is removed or evicted:
	// the signal is of a filesystem that nobody can write to.
	ReadOnly bool
	// Time is when the reading was taken.
	Time time.Time
	// Err says why the signal is Unreadable.
	Err error
}

// Observations holds a reading for each signal.
type Observations [Count]Observation

// Below reports whether the observation is strictly below the amount.
func (o Observation) Below(amount int64) bool {
	return o.Status == Observed && o.Available < amount
}
