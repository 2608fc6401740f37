package evict

import "time"

// newVictim returns the victim for an order to evict a pod. It does not allocate.
func newVictim(pod *podEntry, k ThresholdKey, o *Order, now time.Time) Victim {
	due := now
	if !o.Hard {
		due = now.Add(o.Grace)
	}
	return Victim{
		UID: pod.UID, Pod: o.Pod, Cause: o.Cause, Signal: k, Soft: !o.Hard, Decided: now, Due: due,
		Expected: pod.freeable, NotFreed: max(0, pod.memory-pod.freeable), Lowest: pod.freeable, ProgressAt: due, Status: Unsettled,
		Kubelet: pod.Kubelet, LastStart: pod.LastStart,
	}
}

// outstanding returns how much of the expected memory a victim still uses, in bytes, if
// it uses memory bytes of which a kill frees freeable. The kernel subtracts a huge page
// from the anonymous memory as soon as it is unmapped, but frees the pages of a whole
// mapping together later (mm/mmu_gather.c). Until then they count as used.
func (v *Victim) outstanding(memory, freeable int64) int64 {
	return max(freeable, min(v.Lowest, memory-v.NotFreed))
}

// escalate ends a victim's grace period, if it has one, and reports whether it did.
func (v *Victim) escalate(measured bool, now time.Time) bool {
	if !v.Soft {
		return false
	}
	switch v.Status {
	case Failed, Stuck: // a pod that could not be stopped may still be killed
		v.Status = Unsettled
	case Settled:
		if !measured {
			return false // assumed to be gone
		}
	}
	v.Soft, v.Due, v.ProgressAt = false, now, now
	return true
}

// expired reports whether the victim, which is still listed, may be chosen again.
func (v *Victim) expired(measured bool, now time.Time) bool {
	return v.Status == Failed && now.Sub(v.ProgressAt) >= failedRetryAfter ||
		v.Status == Stuck && now.Sub(v.ProgressAt) >= stuckRetryAfter ||
		v.Status == Settled && measured && now.Sub(v.ProgressAt) >= stuckRetryAfter && now.Sub(v.Due) >= stuckRetryAfter
}

// settleResult is the result of updating a victim.
type settleResult uint8

const (
	unchanged       settleResult = iota // still waited for, or settled before
	returnedEnough                      // it has freed what was expected
	becameStuck                         // it has freed nothing during the settle timeout
	assumedReturned                     // usage is not measured, so it is assumed to have freed everything
)

// victimMemory is the memory of a victim when it is updated.
type victimMemory struct {
	// measured is Inputs.Measured: whether the usage of pods is measured at all.
	measured bool
	// known is set if the usage of this pod was measured too. outstanding is then the
	// expected memory that it still uses, in bytes.
	known       bool
	outstanding int64
}

// update settles a victim that has freed enough or has been waited for long enough.
func (v *Victim) update(m victimMemory, timeout time.Duration, now time.Time) settleResult {
	if v.Status != Unsettled && v.Status != Settled {
		return unchanged
	}
	end := unchanged
	if m.known {
		if v.Lowest-m.outstanding >= min(progressBytes, max(1, v.Expected/progressDivisor)) {
			v.Lowest, v.ProgressAt = m.outstanding, now
		}
		if v.Status == Unsettled && v.Expected > 0 && m.outstanding*10 <= v.Expected*(10-settledTenths) {
			v.Status, end = Settled, returnedEnough
		}
	}
	if v.Status == Settled {
		return end
	}
	from := v.Due
	if v.ProgressAt.After(from) {
		from = v.ProgressAt
	}
	if now.Sub(from) < timeout {
		return unchanged
	}
	if !m.measured {
		v.Status = Settled
		return assumedReturned
	}
	v.Status = Stuck
	return becameStuck
}

// inFlight reports whether the memory that the victim still uses is expected to be
// freed: while it is unsettled, and once it is settled as long as its usage has fallen
// within the timeout. If usage is not measured, a victim settles after the timeout.
func (v *Victim) inFlight(timeout time.Duration, now time.Time) bool {
	return v.Status == Unsettled || v.Status == Settled && now.Sub(v.ProgressAt) < timeout
}
