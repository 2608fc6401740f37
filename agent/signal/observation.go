package signal

import "time"

// Status says whether a signal's reading can be used.
type Status uint8

const (
	// NotObserved: nothing reads the signal on this node, or it does not apply to the
	// node. This is not an error.
	NotObserved Status = iota
	// Observed: the reading is valid.
	Observed
	// Unreadable: the signal applies, but reading it failed.
	Unreadable
)

// Observation is one reading of a signal.
type Observation struct {
	Status Status
	// Available is the amount left, in the signal's unit (bytes, inodes, PIDs). It is
	// negative if more than the capacity is used.
	Available int64
	// Capacity is the amount that percentages refer to.
	Capacity int64
	// Cache is the active file cache that a memory signal counts as used, in bytes. The
	// kernel could reclaim it. It is 0 if the accounting counts it as available
	// already.
	Cache int64
	// Source is the origin of a memory signal's reading.
	Source Source
	// ReadOnly is set if the signal's filesystem is read-only: no eviction and no
	// reclaim can free anything on it.
	ReadOnly bool
	// Time is when the reading was taken.
	Time time.Time
	// Err is why the signal is Unreadable.
	Err error
}

// Observations is one observation per signal.
type Observations [Count]Observation

// Below reports whether the signal was observed and is strictly below amount.
func (o Observation) Below(amount int64) bool {
	return o.Status == Observed && o.Available < amount
}
