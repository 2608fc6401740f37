package control

import (
	"slices"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
)

// Reading tells whether a signal's numbers can be used.
type Reading string

// The readings, as signal.Status has them.
const (
	NotObserved Reading = "not observed"
	Observed    Reading = "observed"
	Unreadable  Reading = "unreadable"
)

// SignalStatus is the last reading of a signal, and the thresholds on it.
// Amounts are in the signal's unit: bytes, inodes or PIDs.
type SignalStatus struct {
	Signal signal.Signal `json:"signal"`
	Status Reading       `json:"status"`
	// Available and Capacity are null unless the signal was observed.
	// Available may be negative where more is used than the capacity.
	Available *int64 `json:"available"`
	Capacity  *int64 `json:"capacity"`
	// DryRunAdds is what the pods that dry run counts as gone would free.
	// Available is as it was read: in dry run thresholds are met, or not, by the
	// sum of both. It is 0 where evictd acts.
	DryRunAdds int64 `json:"dryRunAdds"`
	// AgeSeconds is how old the reading is, null where there is none.
	AgeSeconds *float64 `json:"ageSeconds"`
	// Error is why the signal is unreadable.
	Error      string                `json:"error,omitempty"`
	Thresholds List[ThresholdStatus] `json:"thresholds"`
}

// ThresholdStatus is a threshold and how it stands.
type ThresholdStatus struct {
	// Value is the threshold as it was configured, Quantity what it means of
	// the capacity; null where that is not known.
	Value    string `json:"value"`
	Quantity *int64 `json:"quantity"`
	Soft     bool   `json:"soft"`
	// Derived tells that it was made from another signal's threshold.
	Derived      bool    `json:"derived"`
	GraceSeconds float64 `json:"graceSeconds"`
	// MinReclaim is how far above the threshold the signal has to come back;
	// null where it is a share of a capacity that is not known.
	MinReclaim *int64 `json:"minReclaim"`
	Met        bool   `json:"met"`
	// Since is when it was first met, and Past whether that is longer ago than
	// its grace.
	Since time.Time `json:"since,omitzero"`
	Past  bool      `json:"past"`
	// HeldByCache tells that file cache brought the crossing, which therefore
	// waits before it is acted upon.
	HeldByCache bool `json:"heldByCache"`
}

// Signals describes every signal, in order, from what the last step was given
// and what it returned.
func Signals(p *evict.Policy, observed signal.Observations, state *evict.State, held []evict.Key, now time.Time) []SignalStatus {
	all := make([]SignalStatus, signal.Count)
	for i := range all {
		all[i] = describe(signal.Signal(i), observed[i], now)
	}
	for _, t := range p.Thresholds {
		s := &all[t.Signal]
		key := evict.Key{Signal: t.Signal, Soft: !t.Hard(), Copy: t.Copy}
		status := ThresholdStatus{
			Value:        t.Value.String(),
			Quantity:     amount(t.Value, s.Capacity),
			Soft:         key.Soft,
			Derived:      t.Copy,
			GraceSeconds: t.Grace.Seconds(),
			MinReclaim:   amount(t.MinReclaim, s.Capacity),
			HeldByCache:  slices.Contains(held, key),
		}
		for _, timer := range state.Timers {
			if timer.Threshold == key {
				status.Met, status.Since, status.Past = true, timer.Since, timer.Past
			}
		}
		s.Thresholds = append(s.Thresholds, status)
	}
	return all
}

// AddDryRun completes the signals with what the pods that dry run counts as
// gone would free of each.
func AddDryRun(all []SignalStatus, wouldFree [signal.Count]int64) {
	for i := range all {
		if s := &all[i]; s.Status == Observed {
			s.DryRunAdds = wouldFree[s.Signal]
		}
	}
}

func describe(s signal.Signal, o signal.Observation, now time.Time) SignalStatus {
	status := SignalStatus{Signal: s, Status: NotObserved}
	switch o.Status {
	case signal.Observed:
		status.Status = Observed
		status.Available, status.Capacity = &o.Available, &o.Capacity
	case signal.Unreadable:
		status.Status = Unreadable
		if o.Err != nil {
			status.Error = o.Err.Error()
		}
	}
	if o.Status != signal.NotObserved && !o.Time.IsZero() {
		age := now.Sub(o.Time).Seconds()
		status.AgeSeconds = &age
	}
	return status
}

// amount is nil for a share of a capacity that is not known.
func amount(v signal.Value, capacity *int64) *int64 {
	var n int64
	switch {
	case !v.IsPercentage():
		n = v.Amount(0)
	case capacity == nil:
		return nil
	default:
		n = v.Amount(*capacity)
	}
	return &n
}
