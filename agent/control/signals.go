package control

import (
	"slices"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
)

// Reading is whether a signal was read.
type Reading string

// The readings, which correspond to those of signal.Status.
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
	// Available and Capacity are null unless the signal was observed. Available is
	// negative if more is used than the capacity.
	Available *int64 `json:"available"`
	Capacity  *int64 `json:"capacity"`
	// DryRunAdds is the amount that the pods that dry run counts as gone would
	// free. It is not part of Available; dry run compares thresholds with the sum of
	// both. It is 0 outside dry run.
	DryRunAdds int64 `json:"dryRunAdds"`
	// AgeSeconds is the age of the reading, null if there is none.
	AgeSeconds *float64 `json:"ageSeconds"`
	// Error is why the signal is unreadable.
	Error      string                `json:"error,omitempty"`
	Thresholds List[ThresholdStatus] `json:"thresholds"`
}

// ThresholdStatus is a threshold and whether it is met.
type ThresholdStatus struct {
	// Value is the threshold as configured, Quantity its amount; null for a
	// percentage of an unknown capacity.
	Value    string `json:"value"`
	Quantity *int64 `json:"quantity"`
	Soft     bool   `json:"soft"`
	// Derived reports whether it was derived from another signal's threshold.
	Derived      bool    `json:"derived"`
	GraceSeconds float64 `json:"graceSeconds"`
	// MinReclaim is how far above the threshold the signal must rise before the
	// threshold is no longer met; null for a percentage of an unknown capacity.
	MinReclaim *int64 `json:"minReclaim"`
	Met        bool   `json:"met"`
	// Since is when it was first met, and Past whether its grace period is over and it is not left
	// to the kubelet.
	Since time.Time `json:"since,omitzero"`
	Past  bool      `json:"past"`
	// Waiting reports whether file cache caused the crossing. evictd then waits
	// before it acts.
	Waiting bool `json:"heldByCache"`
	// Kubelet is the kubelet's hard threshold if the threshold is left to the kubelet; evictd
	// evicts for it when it is met for KubeletTimeoutSeconds. It is then empty until the threshold
	// is no longer met.
	Kubelet               string  `json:"leftToKubelet,omitempty"`
	KubeletTimeoutSeconds float64 `json:"kubeletTimeoutSeconds,omitempty"`
}

// SignalStatuses returns the status of every signal, in order, from the inputs and the
// result of the last step. Waiting are the thresholds that file cache crossed.
func SignalStatuses(p *evict.Policy, observed signal.Observations, state *evict.State, waiting []evict.ThresholdKey, now time.Time) []SignalStatus {
	all := make([]SignalStatus, signal.Count)
	for i := range all {
		all[i] = signalStatus(signal.Signal(i), observed[i], now)
	}
	for _, t := range p.Thresholds {
		s := &all[t.Signal]
		key := evict.ThresholdKey{Signal: t.Signal, Soft: !t.Hard(), Derived: t.Derived}
		status := ThresholdStatus{
			Value:        t.Value.String(),
			Quantity:     amount(t.Value, s.Capacity),
			Soft:         key.Soft,
			Derived:      t.Derived,
			GraceSeconds: t.Grace.Seconds(),
			MinReclaim:   amount(t.MinReclaim, s.Capacity),
			Waiting:      slices.Contains(waiting, key),
		}
		for _, timer := range state.Timers {
			if timer.Threshold == key {
				status.Met, status.Since, status.Past = true, timer.Since, timer.Active
			}
		}
		s.Thresholds = append(s.Thresholds, status)
	}
	return all
}

// AddKubelet sets which thresholds of a policy are left to a kubelet with these hard thresholds.
func AddKubelet(all []SignalStatus, p *evict.Policy, kubelet []evict.Threshold, observed *signal.Observations, now time.Time) {
	var next [signal.Count]int // the index of the signal's next threshold, in the order of the policy
	for i := range p.Thresholds {
		t := &p.Thresholds[i]
		status := &all[t.Signal].Thresholds[next[t.Signal]]
		next[t.Signal]++
		timeout := evict.KubeletTimeout(t.Signal)
		if status.Met && now.Sub(status.Since) >= timeout {
			continue // evictd evicts
		}
		if first := t.EvictedFirst(kubelet, &observed[t.Signal]); first != nil {
			status.Kubelet, status.KubeletTimeoutSeconds = first.Value.String(), timeout.Seconds()
		}
	}
}

// AddDryRun sets DryRunAdds of each observed signal.
func AddDryRun(all []SignalStatus, wouldFree [signal.Count]int64) {
	for i := range all {
		if s := &all[i]; s.Status == Observed {
			s.DryRunAdds = wouldFree[s.Signal]
		}
	}
}

func signalStatus(s signal.Signal, o signal.Observation, now time.Time) SignalStatus {
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

// amount returns the amount of v, nil for a percentage of an unknown capacity.
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
